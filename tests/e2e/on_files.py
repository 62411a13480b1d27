"""A cloud whose Glance keeps its images on a file system with reflinks."""

import contextlib
import os
import tempfile

import pytest
from on_ceph import restart

from tools import reflinks
from tools.cloud.bootcache import STORAGE_SERVICE

LAYER = '80-files'
PORTS = '10820-10829'


@contextlib.contextmanager
def glance_on_xfs(cloud, stores):
    """Have Glance and the storage service keep their files on XFS; gives its path.

    :param stores: ``enabled_backends`` of Glance; the store is called ``file``.
    """
    if reason := reflinks.reason_without():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix='bcxfs', dir='/tmp') as directory, \
            reflinks.xfs(directory) as place:
        os.mkdir(f'{place}/images')
        cloud.layer('glance', LAYER, {'DEFAULT': {'enabled_backends': stores},
                                      'file': {'filesystem_store_datadir': f'{place}/images'}})
        cloud.layer(STORAGE_SERVICE, LAYER, {'bootcache': {
            'glance_store_dirs': f'{place}/images', 'state_dir': f'{place}/state',
            'export_ports': PORTS}})
        try:
            restart(cloud)
            yield place
        finally:
            cloud.layer('glance', LAYER, None)
            cloud.layer(STORAGE_SERVICE, LAYER, None)
            restart(cloud)
