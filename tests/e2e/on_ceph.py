"""A cloud whose Glance keeps its images in a real Ceph."""

import contextlib
import tempfile
from pathlib import Path

from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.rbdstore import RbdStore


@contextlib.contextmanager
def glance_in_ceph(cloud, **options):
    """Bring up a Ceph, and have Glance and the storage service use it, with the pages' keys.

    :param options: of the storage service.
    """
    # Not in pytest's own place: paths of sockets are short.
    store = RbdStore(Path(tempfile.mkdtemp(prefix='bcceph', dir='/tmp')))
    try:
        store.up()
        store.configure(cloud, **options)
        restart(cloud)
        yield store.ceph
    finally:
        store.unconfigure(cloud)
        restart(cloud)
        store.down()
        # The next one is another cluster.
        cloud.kill_ceph_readers()


def restart(cloud):
    """Start Glance and the storage service anew."""
    cloud.restart('glance')
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
