"""The stage on which storage nodes fail: three of them, and a host whose guests read bases.

The nodes have a RabbitMQ, a MariaDB and a directory of Glance's in common, the latter as by NFS.
Each has a network namespace, and disks, of its own; all see their own files by the same path, as
machines do.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.faults import rabbit, spoiledfiles, wayguest
from bench.faults.clock import Clock
from bench.faults.gate import Worker
from bench.faults.guestside import GuestSide
from bench.faults.images import Image
from bench.faults.kinds import HOST, READER
from bench.faults.nodeplan import NODES, Case, Rows, longest_gap, node_name
from bench.faults.plan import READING, Life, Row
from bench.faults.rabbit import Rabbit
from bench.faults.stage import PATIENCE, Stage, Trouble
from bench.faults.storageside import ProfileBoots, StorageSide
from bench.faults.waydatabase import WayDatabase
from bench.faults.wayguest import QemuSide
from bench.faults.wayhost import Units, WaysHost
from bench.faults.wayplan import Event
from bench.faults.waystage import QEMU, UNITS
from bench.replay import children, netns
from bootcache.rpc.messages import NodeWish
from tools.databases import GaleraNode, MariaDB, made, start_again
from tools.ports import free_port

# In MiB: cache images of all images, and bases of some.
FILE_SYSTEMS = {'host': 400, **{f'disk-{number}': 192 for number in range(1, NODES + 1)}}
_HOUR = 3600
_REPORT_SECONDS = 5
# Of wayguest.py's code: a call of the BIOS that waits for 0.1 s by a clock of 1024 ticks a second,
# of which 20 guests keep a processor busy. Instead: sti; hlt; hlt, of the clock of 18.
_WAIT = bytes.fromhex('b90100baa086b486cd15')
_HALTS = bytes.fromhex('fbf4f4').ljust(len(_WAIT), b'\x90')
_LOOK_SECONDS = 0.02
_IPTABLES = '/usr/sbin/iptables'


class _ByNetwork(MariaDB):
    """A MariaDB that machines reach by the network.

    :param namespace: in which it listens, at the address of the bus.
    :param more: arguments of the class beside this one.
    """

    def __init__(self, namespace: str, *more: Any):
        self._namespace, self.port = namespace, free_port()
        super().__init__(*more)

    def command(self) -> list[str]:
        return ['ip', 'netns', 'exec', self._namespace, *super().command(), '--skip-networking=0',
                f'--bind-address={rabbit.ADDRESS}', f'--port={self.port}', '--skip-name-resolve']

    def by_network(self, name: str) -> str:
        """Return a database's URL for other machines."""
        return f'mysql+pymysql://root@{rabbit.ADDRESS}:{self.port}/{name}?charset=utf8mb4'


class _ByNetworkOfGalera(_ByNetwork, GaleraNode):
    """One of a Galera cluster."""


class NodesDatabase(WayDatabase):
    """The database of all nodes; the harness has a way of its own to it.

    :param namespace: in which it listens.
    :param is_galera: whether each node has a node of a Galera cluster.
    """

    def __init__(self, namespace: str, is_galera: bool):
        self._cluster: list[GaleraNode] = []
        self._servers = [_ByNetworkOfGalera(namespace, self._cluster) for _node in range(NODES)] \
            if is_galera else [_ByNetwork(namespace)]
        self._server: _ByNetwork = self._servers[0]
        self._server.sql('CREATE USER root@\'%\'; GRANT ALL ON *.* TO root@\'%\'')
        self._name = self._server.new_name()
        self._database = made(self._server.url(self._name))

    def _of(self, node: str) -> _ByNetwork:
        return self._servers[(int(node.rpartition('-')[2]) - 1) % len(self._servers)]

    def url_of(self, node: str) -> str:
        """Return the URL for a node."""
        return self._of(node).by_network(self._name)

    def port_of(self, node: str) -> int:
        """Return the port at which a node reaches it."""
        return self._of(node).port

    def close(self) -> None:
        """End it, and remove its files."""
        self._database.close()
        for server in self._servers:
            server.remove()

    def go_away(self) -> Callable[[], None]:
        """End all of it as kill -9 does; return what starts it again."""
        for server in self._servers:
            server.stop()
        return functools.partial(start_again, self._cluster) if self._cluster \
            else self._server.start


class _CountedBoots(ProfileBoots):
    """Profile boots of which each is noted, whichever node has it."""

    def booted(self, image_id: str) -> None:
        with open(recordings(self._directory), 'a') as stream:
            stream.write(f'{image_id}\n')


def recordings(directory: str) -> Path:
    """Return the file that names the image of each profile boot. Pure.

    :param directory: of a node.
    """
    return Path(directory, 'glance', 'recorded')


class NodeSide(StorageSide):
    """A storage node's service; made in its process.

    :param directory: of the node.
    :param disk: of the node, which has its state directory.
    :param seen_as: by which path it sees that.
    :param options: more of the product's.
    """

    profile_boots = _CountedBoots

    def __init__(self, directory: str, disk: str, seen_as: str, options: dict[str, Any]):
        # The exporter that it starts sees it, too.
        netns.see_as(disk, seen_as)
        super().__init__(directory, {'state_dir': f'{seen_as}/state', **options})
        # Cases say which node works on an image.
        self._endpoints._controller._home_for = lambda parent_id: None

    def seen_nodes(self) -> dict[str, tuple[str, str | None]]:
        """Return of each node how this one sees it, and what operators want of it, by name."""
        return {node['name']: (node['state'], node['wish'])
                for node in self._endpoints._nodes.list_nodes()}

    def wish(self, name: str, wish: str | None) -> bool:
        """Hear what an operator wants of a node."""
        wished: bool = self._endpoints._nodes.set_wish(
            name, None if wish is None else NodeWish(wish))
        return wished

    def under_way(self) -> list[str]:
        """Return what is done here, and what is served though another node works on it."""
        controller = self._endpoints._controller
        return [*(f'a step of {image_id}' for image_id in controller._running.images()),
                *(f'what is served of {image_id}'
                  for image_id in sorted(self._exporter.served_images())
                  if self._store.known(image_id) is None)]


class NodesQemu(QemuSide):
    """A host's QEMUs, of so many guests that these have to be idle between reads."""

    def __init__(self, directory: str):
        assert _WAIT in wayguest._CODE
        wayguest._CODE = wayguest._CODE.replace(_WAIT, _HALTS)
        super().__init__(directory)

    def gaps(self, since: float) -> list[float]:
        """Return for how long each guest had no answer at the longest, in seconds.

        :param since: in monotonic seconds.
        """
        found = []
        for guest in self._guests.values():
            with guest._lock:
                ends = [moment for moment, event in guest._events if event is Event.ENDED]
            found.append(longest_gap(ends, since, time.monotonic()))
        return found


class HangingDisk:
    """A disk that can hang: a file system on a loop device, whose file is one of FUSE.

    :param home: a directory of its own, made here.
    :param place: where it is mounted.
    :param mebibytes: its size.
    """

    def __init__(self, home: Path, place: Path, mebibytes: int):
        home.mkdir()
        self._place, self._seen, socket = place, home / 'seen', home / 'nbd'
        self._seen.touch()
        self._processes: list[subprocess.Popen[bytes]] = []
        for command, is_there in (
                (['nbdkit', '--foreground', '--unix', str(socket), 'memory', f'{mebibytes}M'],
                 socket.exists),
                (['nbdfuse', str(self._seen), '--unix', str(socket)],
                 lambda: self._seen.stat().st_size)):
            self._processes.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=netns.die_with_parent))
            deadline = time.monotonic() + PATIENCE
            while not is_there():
                if time.monotonic() > deadline or self._processes[-1].poll() is not None:
                    raise Trouble(f'{command[0]} does not start')
                time.sleep(_LOOK_SECONDS)
        # What is written may not keep other machines' file systems from being synced for longer
        # than the disk hangs: it has no journal.
        subprocess.run(['mkfs.ext4', '-q', '-F', '-O', '^has_journal', str(self._seen)], check=True)
        subprocess.run(['mount', '-o', 'loop', str(self._seen), str(place)], check=True)
        # Opened now: who opens or closes it while it hangs waits.
        self._below = os.open(self._seen, os.O_RDONLY)

    def hang(self) -> None:
        """Have it hang; nothing of it is in memory then."""
        with contextlib.ExitStack() as stack:
            opened = []
            for path in self._place.rglob('*'):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file():
                        opened.append(os.open(path, os.O_RDONLY))
                        stack.callback(os.close, opened[-1])
            for file in opened:
                os.fsync(file)
            os.kill(self._processes[-1].pid, signal.SIGSTOP)
            for file in (*opened, self._below):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def go_on(self) -> None:
        """Have it answer again."""
        os.kill(self._processes[-1].pid, signal.SIGCONT)

    def close(self) -> None:
        """End it; nobody has a file of it open."""
        os.close(self._below)
        for path in self._place, self._seen:
            subprocess.run(['umount', '--lazy', str(path)], check=False)
        for process in reversed(self._processes):
            process.kill()
            process.wait()


class NodesStage(Stage):
    """Storage nodes, and a host with guests.

    :param root: directory of it all; its path is short.
    :param network: with one host, and with other machines that are storage nodes.
    :param image: its content is that of the first image.
    :param have_hanging_disks: whether nodes' disks can hang.
    :param is_galera: whether the database is a Galera cluster.
    """

    def __init__(self, root: Path, network: netns.Network, image: Image,
                 have_hanging_disks: bool = False, is_galera: bool = False):
        self.row = Row(READING, 'nodes', Life.FETCH, ())
        super().__init__(root, network, image, {'compression': 'none'}, self.row)
        self._namespaces = {node_name(number): name for number, name in enumerate(
            (network.storage, *network.machines), 1)}
        self._clocks |= {name: Clock() for name in self._namespaces}
        # Nodes whose service is not started again for now.
        self._down: set[str] = set()
        # A node that is killed at a step, and that; whether it was.
        self._armed: tuple[str, str] | None = None
        self.has_struck = False
        self._have_hanging_disks, self._is_galera = have_hanging_disks, is_galera
        self._disks: dict[str, HangingDisk] = {}
        self._bus = Rabbit(network, root / 'mq')
        self._database: NodesDatabase | None = None

    @property
    def nodes(self) -> list[str]:
        """The nodes, by name."""
        return list(self._namespaces)

    def disk(self, node: str) -> Path:
        """Return a node's disk."""
        return self.root / f'disk-{node.rpartition("-")[2]}'

    def store(self) -> Path:
        """Return the directory of Glance's store that nodes read."""
        return self.root / 'store'

    # Processes.

    def start(self) -> None:
        """Start all processes, and wait until the nodes see each other."""
        root = self.root
        for name in ('storage', 'host/tmp', 'host/instances/_base', 'log', 'glance', 'store', 'g',
                     'r', 'q', 'memory'):
            (root / name).mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            if self._have_hanging_disks:
                size = FILE_SYSTEMS[self.disk(node).name]
                self._disks[node] = HangingDisk(root / f'below-{node}', self.disk(node), size)
            (self.disk(node) / 'tmp').mkdir()
            for name in ('g', 'r', 'memory'):
                (root / node / name).mkdir(parents=True)
            (root / 'log' / node).mkdir()
            # As each machine has its own.
            for name, target in {'glance': root / 'glance', 'host': root / 'host',
                                 'log': root / 'log' / node, 'storage': self.disk(node)}.items():
                (root / node / name).symlink_to(target)
        self._bus.start()
        self._database = NodesDatabase(self.network._switch, self._is_galera)
        for name in (UNITS, QEMU, *self.nodes, HOST, READER):
            self.call(name, 'left')
        self.until(self.all_see_all, 'that storage nodes see each other')

    def close(self) -> None:
        """End all of it."""
        worker = self._workers.get(QEMU)
        if worker is not None and not worker.has_ended:
            with contextlib.suppress(children.ChildError, OSError):
                worker.call('stop', seconds=20)
        self._lift(everything=True)
        for disk in self._disks.values():
            disk.go_on()
        for name in self._namespaces.values():
            netns.kill_all(name)
        super().close()
        for path in (self.root / 'mq/log').glob('*.log'):
            shutil.copy(path, self.root / 'log')
        self._bus.stop()
        if self._database is not None:
            self._database.close()
        for disk in self._disks.values():
            disk.close()
        for path in (*(self.root / node for node in self.nodes), self.store(),
                     Path(wayguest.home(str(self.root)))):
            shutil.rmtree(path, ignore_errors=True)

    def _options_of(self, name: str) -> dict[str, Any]:
        found = {**super()._options_of(name), 'transport_url': self._bus.url}
        if name == HOST:
            # Guests are to read from nodes all the time. Each report may have the host ask for
            # all images that have moved.
            return {**found, 'gateway_autostart': False, 'settle_delay': 24 * _HOUR,
                    'report_interval': _REPORT_SECONDS}
        assert self._database is not None
        if self._is_galera:
            found['mysql_wsrep_sync_wait'] = 1
        return {**found, 'host': name, 'connection': self._database.url_of(name),
                'gateway_socket': str(self.root / 'g/nbd'),
                'glance_store_dirs': [str(self.store())],
                'export_host': self.network.address(self._namespaces[name])}

    def _sides(self) -> dict[str, tuple[str, Callable[[], Any]]]:
        root, host = str(self.root), self.network.hosts[0]

        def side(node: str) -> Callable[[], NodeSide]:
            return lambda: NodeSide(f'{root}/{node}', str(self.disk(node)), f'{root}/storage',
                                    self._options_of(node))

        return {UNITS: (host, lambda: Units(root)), QEMU: (host, lambda: NodesQemu(root)),
                READER: (host, lambda: GuestSide(root)),
                HOST: (host, lambda: WaysHost(root, self._options_of(HOST))),
                **{node: (name, side(node)) for node, name in self._namespaces.items()}}

    def _worker(self, name: str) -> Worker | None:
        return None if name in self._down else super()._worker(name)

    def _armed_of(self, name: str) -> list[str]:
        return [self._armed[1]] if self._armed is not None and self._armed[0] == name else []

    def arm(self, node: str, step: str) -> None:
        """Have a node's service begin anew; when it comes to a step, all of the node is killed."""
        self._armed, self.has_struck = (node, step), False
        self._workers[node].kill()

    def strike(self, step: str) -> None:
        """Kill the node that has come to a step, once."""
        if self._armed is not None and not self.has_struck:
            self.has_struck = True
            self._kill_node(self._armed[0], service_alone=False)

    def come_back(self, node: str) -> None:
        """Have a node that was killed at a step be started again."""
        self._armed = None
        self._down.discard(node)

    # What there is.

    def rows(self) -> Rows:
        """Return all rows of the database, by table."""
        assert self._database is not None
        return self._database.copy()

    def all_see_all(self, seconds: float = PATIENCE) -> bool:
        """Tell whether each node sees all of them work, and operators want nothing of any.

        :param seconds: for which each is asked.
        :raises Trouble: if one does not answer.
        """
        wanted = dict.fromkeys(self.nodes, ('up', None))
        return all(self.call(node, 'seen_nodes', seconds=seconds) == wanted for node in self.nodes)

    def files(self, nodes: Sequence[str]) -> set[str]:
        """Return the files of images that some nodes have, and what is in Glance's store."""
        places = {'Glance\'s store': self.store(), **{
            node: self.disk(node) / 'state/images' for node in nodes}}
        return {f'file {path.relative_to(place)} of {whose}' for whose, place in places.items()
                for path in place.rglob('*') if path.is_file()}

    # What fails, and returns.

    def fail(self, case: Case, node: str) -> Callable[[], None]:
        """Have a node fail, and return what undoes that.

        :param node: its name; of all nodes where the case is of all.
        """
        assert self._database is not None
        name = case.name
        if name == 'database-away':
            return self._database.go_away()
        if name in ('killed', 'got-again', 'service-killed'):
            return self._kill_node(node, service_alone=name == 'service-killed')
        if name == 'power-loss':
            self._link_of(node, 'down')
            return lambda: self._link_of(node, 'up')
        if name == 'frozen':
            return self._freeze(node)
        if name == 'disk-hangs':
            self._disks[node].hang()
            return self._disks[node].go_on
        if name in ('cut-from-database', 'cut-from-bus'):
            return self._cut(node, self._database.port_of(node) if name == 'cut-from-database'
                             else int(self._bus.url.rstrip('/').rpartition(':')[2]))
        if name == 'full-disk':
            filler = self.disk(node) / 'filler'
            spoiledfiles.fill(filler, 0)
            return filler.unlink
        if name == 'drained':
            asked = next(one for one in self.nodes if one != node)
            self.call(asked, 'wish', node, NodeWish.DRAINED.value)
            return lambda: self.call(asked, 'wish', node, None)
        assert name == 'clock-moved'
        self._clocks[node].move(_HOUR)
        return lambda: self._clocks[node].move(-_HOUR)

    def _kill_node(self, node: str, service_alone: bool) -> Callable[[], None]:
        self._down.add(node)
        worker = self._workers.get(node)
        if worker is not None and not worker.has_ended:
            worker.kill()
        if not service_alone:
            netns.kill_all(self._namespaces[node])
        return lambda: self._down.discard(node)

    def _freeze(self, node: str) -> Callable[[], None]:
        def signal_all(number: int) -> None:
            for pid in netns._run('ip', 'netns', 'pids', self._namespaces[node]).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), number)

        signal_all(signal.SIGSTOP)
        return lambda: signal_all(signal.SIGCONT)

    def _link_of(self, node: str, state: str) -> None:
        port = self.network._all.index(self._namespaces[node])
        netns._run('ip', '-n', self.network._switch, 'link', 'set', f'p{port}', state)

    def _cut(self, node: str, port: int) -> Callable[[], None]:
        """Drop what a node and a server say to each other."""
        def run(verb: str) -> None:
            for chain, sides in ('OUTPUT', ('-d', '--dport')), ('INPUT', ('-s', '--sport')):
                netns._run('ip', 'netns', 'exec', self._namespaces[node], _IPTABLES, '-w', verb,
                           chain, '-p', 'tcp', sides[0], rabbit.ADDRESS, sides[1], str(port),
                           '-j', 'DROP')

        run('-A')
        return lambda: run('-D')
