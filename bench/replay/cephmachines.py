"""Cephs whose OSDs are machines of the replayed network, each with a link of its own."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.replay.netns import Network
from tools.ceph.cluster import Ceph

_READ_ONLY = 'profile rbd-read-only pool=images'


class MachinesCeph(Ceph):
    """A Ceph with an OSD on each machine, and its monitor on the first.

    :ivar machines: names of these.

    :param network: in which they are.
    """

    def __init__(self, directory: Path, network: Network, machines: Sequence[str]):
        self.machines = list(machines)
        places = {f'osd.{number}': (name, network.address(name))
                  for number, name in enumerate(machines)}
        super().__init__(directory, osds=len(machines),
                         places={**places, 'mon.a': places['osd.0']})
        self._storage = network.storage

    def run(self, *command: str, stdin: str = '', timeout: float = 60) -> str:
        """Run a program of Ceph's where the storage node is, which reaches all machines."""
        inside = () if command[0] == 'ip' else ('ip', 'netns', 'exec', self._storage)
        return super().run(*inside, *command, stdin=stdin, timeout=timeout)

    def make_readers(self, hosts: Sequence[str]) -> None:
        """Make pools, and the keys of the page about Ceph: the storage service's, and hosts'."""
        for pool in ('images', 'bootcache'):
            self.make_pool(pool)
        for user, namespace in (('bootcache', 'storage'), *((name, name) for name in hosts)):
            self.run('rbd', 'namespace', 'create', f'bootcache/{namespace}')
            self.make_user(user, f'{_READ_ONLY}, profile rbd pool=bootcache namespace={namespace}')


@contextlib.contextmanager
def cephs(network: Network, counts: Sequence[int]) -> Iterator[dict[int, MachinesCeph]]:
    """Bring Cephs up, by their number of OSDs, and end them whatever happens.

    :param network: with as many machines as they have OSDs.
    """
    # Paths of sockets are short.
    directory = Path(tempfile.mkdtemp(prefix='bcr-ceph-', dir='/tmp'))
    free = list(network.machines)
    made: dict[int, MachinesCeph] = {}
    try:
        for count in counts:
            one = made[count] = MachinesCeph(directory / str(count), network, free[:count])
            del free[:count]
            one.up()
            one.make_readers(network.hosts)
        yield made
    finally:
        for one in made.values():
            one.down()
        shutil.rmtree(directory, ignore_errors=True)
