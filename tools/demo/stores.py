"""Where the demo's Glance keeps its images: in files, or in a small real Ceph."""

import contextlib
import dataclasses
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.cloud.bootcache import TAP_PORT, BootcacheCloud
from tools.cloud.layout import Host
from tools.cloud.rbdstore import SNAPSHOTS, RbdStore

FILE, RBD = 'file', 'rbd'
STORES = FILE, RBD
# Beside the cloud; its sockets' paths have to be short.
CEPH = 'demo-ceph'


@dataclasses.dataclass(frozen=True)
class BaseReads:
    """What was read of bases.

    :ivar from_exporter: bytes, by the tap.
    :ivar from_ceph: bytes that the host read in Ceph itself, by librbd's count.
    :ivar requests: how many reads both were.
    """

    from_exporter: int
    from_ceph: int
    requests: int


class Store:
    """Glance's file store, as the cloud has it.

    :ivar disk_format: of the images.
    :ivar base_access: of the host.
    :ivar was_there: whether another run left it up, or it needs nothing.
    :ivar shares_snapshots: whether a server's snapshot shares with its base what it can.
    """

    disk_format = 'qcow2'
    base_access = 'exporter'
    was_there = True
    shares_snapshots = False

    def bring_up(self, cloud: BootcacheCloud) -> None:
        """Have what it needs run, and configure a cloud that is to come up."""
        RbdStore.unconfigure(cloud)

    def senders(self, cloud: BootcacheCloud) -> list[list[int]]:
        """Return the ports of each machine that sends images or bases to the host."""
        return [[cloud.layout.ports.glance, TAP_PORT]]

    @contextlib.contextmanager
    def upload(self, qcow2: Path) -> Iterator[Path]:
        """Give an image as it is uploaded to Glance.

        :param qcow2: the image.
        """
        yield qcow2

    def read_by_host(self, _host: Host) -> tuple[int, int]:
        """Return how many bytes of bases a host has read past the exporter; by how many reads."""
        return 0, 0

    def stored(self, image_id: str) -> int:
        """Return the bytes that an image takes in a store whose snapshots share."""
        raise NotImplementedError

    def node(self, image_id: str) -> dict[str, object]:
        """Return the block node by which QEMU reads an image's file in such a store."""
        raise NotImplementedError

    def usage(self) -> str:
        """Return how people use what it needs, for who keeps it; lines, or nothing."""
        return ''

    def down(self) -> None:
        """End what it needs, and remove it."""


class CephStore(Store):
    """Glance's RBD store, in a Ceph of one OSD; the host reads bases there itself.

    :param directory: of Ceph.
    """

    disk_format = 'raw'
    base_access = 'rbd'
    shares_snapshots = True

    def __init__(self, directory: Path):
        self.was_there = directory.exists()
        self._store = RbdStore(directory)

    def bring_up(self, cloud: BootcacheCloud) -> None:
        cloud.progress('a small Ceph is brought up')
        self._store.up(cloud.hosts)
        # By the tap, which is before the exporter that all hosts share.
        self._store.configure(cloud, cloud.hosts, rbd_snapshot_pool=SNAPSHOTS,
                              snapshot_exporters='common')

    def senders(self, cloud: BootcacheCloud) -> list[list[int]]:
        return [*super().senders(cloud), self._store.osd_ports()]

    @contextlib.contextmanager
    def upload(self, qcow2: Path) -> Iterator[Path]:
        # Clouds on Ceph have raw images, which need not be downloaded to be used.
        with tempfile.TemporaryDirectory(prefix='demo-', dir=self._store.ceph.directory) as place:
            raw = Path(place) / 'image.raw'
            subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', str(qcow2),
                            str(raw)], check=True)
            yield raw

    def read_by_host(self, host: Host) -> tuple[int, int]:
        return self._store.read_by_host(host)

    def stored(self, image_id: str) -> int:
        return self._store.stored(image_id)

    def node(self, image_id: str) -> dict[str, object]:
        return self._store.node(image_id)

    def usage(self) -> str:
        return f"Ceph's commands:              export CEPH_CONF={self._store.ceph.conf}\n"

    def down(self) -> None:
        self._store.down()


def make(kind: str, directory: Path) -> Store:
    """Return a store that is not up yet.

    :param kind: one of STORES.
    :param directory: in which the cloud's is.
    """
    return CephStore(directory / CEPH) if kind == RBD else Store()
