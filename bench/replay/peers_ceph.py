"""bootcache where the base is in Ceph: read through the exporter, or by the host's own clone."""

from bench.replay.host import HostChild, Image
from bench.replay.peers import Ours, OursFirst


class FirstByExporter(OursFirst):
    """On demand and kept, as nobody has booted the image yet; the storage node reads in Ceph."""

    name = 'bootcache first, base by exporter'
    phases = '',


class ColdByExporter(Ours):
    """The cache image is fetched first; what it lacks the storage node reads in Ceph."""

    name = 'bootcache, base by exporter'
    phases = 'cold',


def _read_in_ceph(host: HostChild, conf: str) -> None:
    """Have a host read bases in Ceph itself, until it is reset."""
    host.options = {'base_access': 'rbd', 'base_rbd_ceph_conf': conf,
                    'base_rbd_user': host.name, 'base_rbd_namespace': host.name}


def _check(host: HostChild, image: Image) -> None:
    """Check that a server's base was read as its peer has it.

    :raises RuntimeError: if the host went to the exporter: that was not to be measured.
    """
    there = host.compute.gateway.present([image.image_id]).get(image.image_id)
    if there is None or not host.compute.connections.is_in_ceph(there.content):
        raise RuntimeError(f'{host.name}: the base of {image.image_id} is not read in Ceph')


class _FromCeph(Ours):
    """The host reads in Ceph: what its peers have in common.

    :param conf: path of Ceph's configuration file.
    """

    def __init__(self, conf: str):
        super().__init__()
        self._conf = conf

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Have the driver run, with the host's key."""
        _read_in_ceph(host, self._conf)
        super().prepare(host, image, phase)

    def finish(self, host: HostChild, phase: str) -> None:
        """See that it is read there, and remove the disk."""
        assert host._image is not None
        _check(host, host._image)
        super().finish(host, phase)


class FirstFromCeph(_FromCeph, FirstByExporter):
    """On demand and kept; the host reads in Ceph."""

    name = 'bootcache first, base from Ceph'
    phases = '',


class ColdFromCeph(_FromCeph, ColdByExporter):
    """The cache image is fetched first, from the exporter; what it lacks the host reads in Ceph."""

    name = 'bootcache, base from Ceph'
    phases = 'cold',
