"""A cloud whose Glance keeps its images on a file system with reflinks."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from on_ceph import restart

from tools import reflinks
from tools.cloud.bootcache import STORAGE_SERVICE

LAYER = '80-files'
PORTS = '10820-10829'


@contextlib.contextmanager
def glance_on_xfs(cloud, stores):
    """Have Glance and the storage service keep their files on XFS; gives its path for root.

    :param stores: ``enabled_backends`` of Glance; the store is called ``file``.
    """
    if reason := reflinks.reason_without():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix='bcxfs', dir='/tmp') as directory, \
            reflinks.xfs(directory) as place:
        # The services have it at its own path, in their namespaces.
        path = place[place.index(directory):]
        os.chmod(directory, 0o711)
        for name in ('images', 'state'):
            os.mkdir(f'{place}/{name}')
            shutil.chown(f'{place}/{name}', 'glance', 'glance')
        cloud.layer('glance', LAYER, {'DEFAULT': {'enabled_backends': stores},
                                      'file': {'filesystem_store_datadir': f'{path}/images'}})
        cloud.layer(STORAGE_SERVICE, LAYER, {'bootcache': {
            'glance_store_dirs': f'{path}/images', 'state_dir': f'{path}/state',
            'export_ports': PORTS}})
        try:
            start_anew(cloud, f'{device(place)}={path}')
            yield place
        finally:
            cloud.layer('glance', LAYER, None)
            cloud.layer(STORAGE_SERVICE, LAYER, None)
            start_anew(cloud, '')


def device(place):
    """Return the block device of the file system at /proc/PID/root/PATH."""
    _root, _proc, pid, _link, path = place.split('/', 4)
    mounts = [line.split() for line in Path(f'/proc/{pid}/mounts').read_text().splitlines()]
    return next(found for found, where, *_more in mounts if where == f'/{path}')


def start_anew(cloud, mount):
    """Start all that has Glance's files open anew, with another file system.

    :param mount: DEVICE=PATH, in the services' own namespaces; empty for none.
    """
    for name in ('glance', STORAGE_SERVICE):
        found = cloud.service(name)
        argv = [word for word in found.argv if not word.startswith('--mount=')]
        place = argv.index('--')
        argv[place:place] = [f'--mount={mount}'] if mount else []
        cloud.replace(dataclasses.replace(found, argv=argv))
    cloud.stop(STORAGE_SERVICE)
    # They outlive the service, and have the files that it had.
    cloud.end_exporters()
    restart(cloud)
