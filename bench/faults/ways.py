"""Ways to a base that fail, while guests read it and servers start: see doc/source/faults.rst."""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import libvirt

from bench.faults import images, storageside, wayguest
from bench.faults.cephside import AWAY
from bench.faults.hostside import HostSide, LocalNova
from bench.faults.images import Image
from bench.faults.kinds import EXPORTER, GATEWAY, HOST, READER, STORAGE
from bench.faults.lives import LifeOfImage
from bench.faults.plan import READING, Life, Row
from bench.faults.report import Outcome
from bench.faults.stage import Stage, Trouble
from bench.faults.wayguest import Figures, QemuSide
from bench.replay import children, netns, trace
from bootcache import exception
from bootcache.connectors import supervisor
from bootcache.storagedaemon import StorageDaemon, UnixListener
from glance_bootcache.smallca import SmallCA
from nova_bootcache import upkeep
from nova_bootcache.gateway import graph
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.standstill.standingservers import StandingServers
from tools import libvirtd

NBD, TLS, CEPH = WAYS = 'nbd', 'tls', 'ceph'
# In MiB: a base for each image.
FILE_SYSTEMS = {'storage': 320, 'host': 200, 'memory': 64}
# What has to hold, in seconds: until a read is answered or its guest is paused, and until servers
# start; until a guest goes on after its way has returned.
MOST_SECONDS, ON_SECONDS = 25.0, 5.0
# So long all of it may last before it is called hanging.
_GIVEN_UP = 90.0
_QEMU, _UNITS = 'qemu', 'units'
_GUESTS = 'scsi', 'virtio'
_NAME, _DNS_PORT = 'storage-1.example', 53
_SMALL_BYTES = 1300
# After which the host asks for it again.
_KNOWN_SECONDS = 12.0
_UPKEEP_SECONDS = upkeep.PERIOD_SECONDS


@dataclasses.dataclass(frozen=True)
class Case:
    """A way that fails.

    :ivar name: for people.
    :ivar seconds: for which the way is away; 0 where it returns as soon as something runs again.
    :ivar ways: of which it is tried.
    :ivar is_quick: whether it is in the short run.
    """

    name: str
    seconds: float
    ways: tuple[str, ...] = WAYS
    is_quick: bool = True


CASES = (
    Case('kill-supervisor', 0), Case('kill-connector', 0), Case('kill-gateway', 0),
    Case('kill-compute', 0), Case('certificate-renewed', 15, (TLS,)),
    Case('idle-flow-dropped', 35), Case('packets-dropped', 35), Case('mtu-black-hole', 35),
    Case('exporter-frozen-35s', 35), Case('reopen-under-a-read', 35),
    Case('name-unresolved', 35, (NBD, TLS)), Case('ceph-away', 35, (CEPH,)),
    Case('disk-hangs', 35), Case('exporter-frozen-200s', 200, WAYS, False))


@dataclasses.dataclass(frozen=True)
class WayOutcome(Outcome):
    """What came of a case.

    :ivar way: by which the base is read: nbd, tls or ceph.
    :ivar seconds_unanswered: the longest until a read was answered or its guest paused.
    :ivar seconds_until_on: the longest until a guest went on after the way's return.
    :ivar seconds_other: the longest start of a server of another image while the way was away.
    :ivar seconds_same: the same of the guests' image.
    """

    way: str = ''
    seconds_unanswered: float = 0.0
    seconds_until_on: float = 0.0
    seconds_other: float = 0.0
    seconds_same: float = 0.0


def chosen(names: Sequence[str], is_quick: bool) -> list[tuple[str, list[Case]]]:
    """Return the cases of each way that are asked for. Pure.

    :param names: of ways, or parts of cases' names; all are, where there are none.
    :raises ValueError: if there is no such name; it tells which there are.
    """
    for name in names:
        if name not in WAYS and not any(name in case.name for case in CASES):
            raise ValueError(f'{name}: neither a way ({", ".join(WAYS)}) nor a case'
                             f' ({", ".join(case.name for case in CASES)})')
    ways = [way for way in WAYS if way in names] or list(WAYS)
    parts = [name for name in names if name not in WAYS]
    found = [(way, [case for case in CASES if way in case.ways and (
        any(part in case.name for part in parts) if parts else case.is_quick or not is_quick)])
        for way in ways]
    return [(way, cases) for way, cases in found if cases]


def faults_of(figures: Sequence[Figures], others: float, same: float) -> list[str]:
    """Return what is not as it has to be. Pure."""
    found = []
    if (longest := max(one.unanswered for one in figures)) > MOST_SECONDS:
        found.append(f'a read waited for {longest:.1f} s, and its guest ran')
    on = [one.until_on for one in figures]
    if None in on:
        found.append(f'a guest does not go on {_GIVEN_UP:.0f} s after the way\'s return')
    elif (latest := max(one for one in on if one is not None)) > ON_SECONDS:
        found.append(f'a guest went on {latest:.1f} s after the way\'s return')
    for seconds, what in (others, 'another'), (same, 'the same'):
        if seconds > MOST_SECONDS:
            found.append(f'a server of {what} image took {seconds:.1f} s to start')
    return found


# The processes.

class _Nova(LocalNova):
    """Its servers run, as libvirt has them."""

    def __init__(self, directory: str):
        super().__init__(directory)
        self._home = wayguest.home(str(Path(directory).parent))

    def connect(self) -> Any:
        return libvirtd.connect(self._home)

    def server(self, server_id: str) -> LocalServer | None:
        found = super().server(server_id)
        return found and dataclasses.replace(found, state='active', runs=True)


class WaysHost(HostSide):
    """nova-compute's part, which lets guests go on; made in its process.

    :param directory: of the stage.
    :param options: more of the product's.
    """

    def __init__(self, directory: str, options: dict[str, Any]):
        super().__init__(directory, options, _Nova)
        # As it is: guests wait for it.
        upkeep.PERIOD_SECONDS = _UPKEEP_SECONDS
        host = self._host
        self._standing = StandingServers(self._nova, host.chains, host.cache.holds_path, host.boots)
        self._standing.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Stand for libvirt's events, which the driver takes."""
        before: set[str] = set()
        while True:
            with contextlib.suppress(libvirt.libvirtError):
                connection = self._nova.connect()
                while True:
                    now = {domain.UUIDString() for domain in connection.listAllDomains(
                        libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED)}
                    if now - before:
                        self._standing.wake()
                    before = now
                    time.sleep(0.1)
            time.sleep(1)

    def reopen(self, image_id: str) -> None:
        """Begin to have servers read an image from where they do, whatever reads wait."""
        def reopen() -> None:
            # It is given up after a while.
            with contextlib.suppress(exception.StorageDaemonError):
                self._host.gateway.read_from(image_id, graph.REMOTE)

        threading.Thread(target=reopen, daemon=True).start()

    def open(self, server_id: str, image_id: str) -> None:
        """See that a stopped server can be started, whose guest waits for what is away."""
        self._host.chains.keep_chain(image_id, f'{self._nova.directory(server_id)}/disk', 30.0,
                                     guest_waits=True)


class Units:
    """The units of a host beside nova-compute: supervisor, in this process, and gateway.

    :param directory: of the stage.
    """

    def __init__(self, directory: str):
        storageside.log_to(f'{directory}/log/units.log')
        run_dir = f'{directory}/g'
        server = supervisor._Server(run_dir)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._gateway = StorageDaemon('gateway', run_dir, UnixListener(f'{run_dir}/nbd'))
        self._gateway.ensure_running()
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        while True:
            # As the unit has it.
            time.sleep(1)
            if not self._gateway.runs:
                self._gateway.ensure_running()

    def left(self) -> list[str]:
        """Return nothing: connectors and gateway are looked at by themselves."""
        return []


class WaysStage(Stage):
    """A storage node that is known by a name, and a host with guests.

    :param way: by which bases are read.
    """

    def __init__(self, root: Path, network: netns.Network, image: Image, way: str):
        self.way = way
        super().__init__(root, network, image, {'compression': 'none'}, Row(
            READING, way, Life.CEPH if way == CEPH else Life.FETCH, ()))
        self._home = root / 'ways'
        self._home.mkdir(exist_ok=True)
        self._ca = SmallCA(str(self._home / 'ca')) if way == TLS else None
        self._disk: subprocess.Popen[bytes] | None = None
        self._base = ''

    def _options_of(self, name: str) -> dict[str, Any]:
        found = super()._options_of(name)
        found |= {'advertise_host': _NAME} if name == STORAGE else {'gateway_autostart': False}
        return {**found, 'tls_directory': self.issue(name)} if self._ca is not None else found

    def issue(self, name: str) -> str:
        """Issue a machine's certificate, anew if there is one, and return its directory."""
        assert self._ca is not None
        return self._ca.issue(name, [_NAME, netns.STORAGE_ADDRESS] if name == STORAGE else [])

    def _sides(self) -> dict[str, tuple[str, Callable[[], Any]]]:
        root, host = str(self.root), self.network.hosts[0]
        return {**super()._sides(), _UNITS: (host, lambda: Units(root)),
                _QEMU: (host, lambda: QemuSide(root)),
                HOST: (host, lambda: WaysHost(root, self._options_of(HOST)))}

    def start(self) -> None:
        """Start all processes: first those that nova-compute needs."""
        for name, text in ('hosts', ''), ('resolv.conf', f'nameserver {netns.STORAGE_ADDRESS}\n'):
            (self._home / name).write_text(text)
            subprocess.run(['mount', '--bind', str(self._home / name), f'/etc/{name}'], check=True)
        self.resolve(True)
        # Nobody answers there.
        self.filter(self.network.storage, 'INPUT', '-p', 'udp', '--dport', str(_DNS_PORT))
        for name in ('log', 'g'):
            (self.root / name).mkdir(exist_ok=True)
        for name in (_UNITS, _QEMU):
            self.call(name, 'left')
        super().start()
        self.call(_QEMU, 'know', str(self.image.raw))

    def close(self) -> None:
        """End all of it."""
        worker = self._workers.get(_QEMU)
        if worker is not None and not worker.has_ended:
            with contextlib.suppress(children.ChildError):
                worker.call('stop', seconds=20)
        self.take_disk_away()
        super().close()
        for path in self._home, Path(wayguest.home(str(self.root))):
            shutil.rmtree(path, ignore_errors=True)
        for name in ('hosts', 'resolv.conf'):
            subprocess.run(['umount', '--lazy', f'/etc/{name}'], check=False)

    # What fails, and returns.

    def resolve(self, is_known: bool) -> None:
        """Have the storage node's name be known, or the name service hang."""
        (self._home / 'hosts').write_text(
            f'127.0.0.1 localhost\n{netns.STORAGE_ADDRESS} {_NAME}\n' if is_known else '')

    def filter(self, namespace: str, *rule: str) -> Callable[[], None]:
        """Have packets dropped, and return what undoes that."""
        def run(verb: str) -> None:
            subprocess.run(['ip', 'netns', 'exec', namespace, 'iptables', '-w', verb, *rule, '-j',
                            'DROP'], check=True,
                           env={'PATH': f'{os.environ["PATH"]}:/usr/sbin'})

        run('-A')
        return lambda: run('-D')

    def _forget_flows(self) -> Callable[[], None]:
        """Drop the packets of all connections that there are."""
        found = netns._run('ip', 'netns', 'exec', self.network.storage, 'ss', '-Htn', 'state',
                           'established').splitlines()
        host = self.network.address(self.network.hosts[0])
        stack = contextlib.ExitStack()
        for own, peer in [line.split()[-2:] for line in found]:
            if peer.startswith(f'{host}:'):
                stack.callback(self.filter(
                    self.network.storage, 'INPUT', '-p', 'tcp', '--dport', own.rpartition(':')[2],
                    '--sport', peer.rpartition(':')[2]))
        return stack.close

    def put_disk_below(self, base: str) -> None:
        """Have a base be a file of FUSE, which an nbdkit serves."""
        below, socket, seen = (self._home / name for name in ('below', 'nbd', 'seen'))
        shutil.copyfile(base, below)
        seen.touch()
        for command in (['nbdkit', '--foreground', '--unix', str(socket), 'file', str(below)],
                        ['nbdfuse', str(seen), '--unix', str(socket)]):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True,
                                       preexec_fn=netns.die_with_parent)
            self._disk = self._disk or process
            self.until(lambda: socket.exists(), 'nbdkit')
        self.until(lambda: seen.stat().st_size, 'nbdfuse')
        subprocess.run(['mount', '--bind', str(seen), base], check=True)
        self._base = base
        self._kill(EXPORTER)

    def take_disk_away(self) -> None:
        """Have the base be the file that it was, if it is another."""
        if self._disk is not None and self._base:
            os.kill(self._disk.pid, signal.SIGCONT)
            for path in self._base, str(self._home / 'seen'):
                subprocess.run(['umount', '--lazy', path], check=True)
            self._base = ''

    def _hang(self) -> Callable[[], None]:
        assert self._disk is not None
        pid = self._disk.pid
        os.kill(pid, signal.SIGSTOP)
        file = os.open(self._base, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
        return lambda: os.kill(pid, signal.SIGCONT)

    def _signal_all(self, number: int, name: str) -> None:
        pids = [pid for one, pid in self.ceph._ceph.pids().items() if one.startswith(name)] \
            if self.way == CEPH else [self._pid(EXPORTER)]
        for pid in pids:
            if pid is not None:
                os.kill(pid, number)

    def fail(self, case: Case, image_id: str) -> Callable[[], None]:
        """Have the way fail, and return what undoes that."""
        name = case.name
        if name.startswith(('exporter-frozen', 'reopen')) \
                or (name == 'disk-hangs' and self.way == CEPH):
            ceph = 'osd' if name == 'disk-hangs' else ''
            self._signal_all(signal.SIGSTOP, ceph)
            if name.startswith('reopen'):
                time.sleep(0.5)
                self.call(HOST, 'reopen', image_id)
            return lambda: self._signal_all(signal.SIGCONT, ceph)
        if name == 'disk-hangs':
            return self._hang()
        if name == 'packets-dropped':
            self._link('down')
            return lambda: self._link('up')
        if name == 'idle-flow-dropped':
            return self._forget_flows()
        if name == 'mtu-black-hole':
            return self.filter(self.network.hosts[0], 'INPUT', '-m', 'length', '--length',
                               f'{_SMALL_BYTES + 1}:65535')
        if name == 'name-unresolved':
            self.resolve(False)
            undo = contextlib.ExitStack()

            def drop() -> None:
                # Others have to be made, and what the name stands for is known no more.
                undo.callback(self._forget_flows())

            self._lifts.append((time.monotonic() + _KNOWN_SECONDS, drop))

            def return_() -> None:
                undo.close()
                self.resolve(True)

            return return_
        if name == 'ceph-away':
            self.ceph.spoil(AWAY)
            return self.ceph.mend
        if name == 'certificate-renewed':
            for machine in (STORAGE, HOST):
                self.issue(machine)
            return lambda: None
        return self._kill_one(name)

    def _kill_one(self, name: str) -> Callable[[], None]:
        """Kill a process of the host; what is returned waits until it runs again."""
        def runs_now() -> set[int]:
            if name == 'kill-connector':
                return set(self._connectors().values())
            if name == 'kill-gateway':
                return {pid} if (pid := self._pid(GATEWAY)) is not None else set()
            worker = self._workers.get(_UNITS if name == 'kill-supervisor' else HOST)
            return set() if worker is None or worker.has_ended else {worker.pid}

        before = runs_now()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        return lambda: self.until(lambda: any(
            Path(f'/proc/{pid}').exists() for pid in runs_now() - before), f'{name}: it runs again')


class _Trial:
    """A way, with guests that read by it, and its cases one after the other.

    :param stage: its processes, started.
    """

    def __init__(self, stage: WaysStage):
        self._stage = stage
        self._life = LifeOfImage(stage, Row(READING, stage.way, Life.CEPH if stage.way == CEPH
                                            else Life.FETCH, ()))
        self._reads = [one for one in images.boot(self._life._row.life)
                       if one.op == trace.READ and not images._is_missed(one)]
        self._wrong = self._errors = 0
        self._image_id = self._other_id = self._stopped_id = ''

    def begin(self, with_disk: bool) -> None:
        """Have two images, and guests of the first.

        :param with_disk: whether its base is on a disk that can hang.
        """
        stage = self._stage
        self._image_id, self._other_id = self._life._register(), self._life._register()
        if with_disk and stage.way != CEPH:
            stage.put_disk_below(stage.call(STORAGE, 'base', self._image_id))
        # The exporter may be about to start.
        self._stopped_id = stage.until(lambda: self._make_disk(self._image_id), 'a cache image')
        stage.until(lambda: self._start_new()[1], 'servers that start')
        self._life._servers.append(self._stopped_id)

    def _start_guests(self) -> list[str]:
        """Start guests, and return their servers once they have read."""
        stage, found = self._stage, []
        for bus in _GUESTS:
            server_id = stage.until(lambda: self._make_disk(self._image_id), 'a cache image')
            stage.call(HOST, 'keep', server_id, self._image_id)
            stage.call(_QEMU, 'start', server_id, bus, self._disk(server_id))
            found.append(server_id)
        stage.until(lambda: all(one.reads > 1 for one in self._seen()), 'guests that read')
        stage.call(_QEMU, 'begin')
        return found

    def _delete(self, server_id: str) -> None:
        self._stage.call(HOST, 'server_goes', server_id)
        shutil.rmtree(self._stage.root / 'host/instances' / server_id)

    def _make_disk(self, image_id: str) -> str:
        """Make a server's disk, and return the server's id; none for the stock way."""
        stage, server_id = self._stage, str(uuid.uuid4())
        if not stage.call(HOST, 'make_disk', server_id, image_id):
            shutil.rmtree(stage.root / 'host/instances' / server_id)
            return ''
        return server_id

    def _disk(self, server_id: str) -> str:
        return str(self._stage.root / 'host/instances' / server_id / 'disk')

    def _boot(self, server_id: str) -> None:
        """Start a server, and have it read what a boot reads."""
        stage = self._stage
        stage.call(READER, 'know', str(stage.image.raw))
        stage.call(READER, 'start', self._disk(server_id))
        found = stage.call(READER, 'play', self._reads, 0.0)
        self._wrong, self._errors = self._wrong + found['wrong'], self._errors + found['errors']
        stage.call(READER, 'stop')

    def _start_new(self) -> tuple[float, bool]:
        """Start a new server of the other image, and delete it.

        :returns: the seconds until it has booted, and whether it stands on a cache image.
        """
        stage, began = self._stage, time.monotonic()
        if not (server_id := self._make_disk(self._other_id)):
            return time.monotonic() - began, False
        stage.call(HOST, 'keep', server_id, self._other_id)
        self._boot(server_id)
        took = time.monotonic() - began
        self._delete(server_id)
        return took, True

    def _start_again(self) -> float:
        """Start the stopped server of the guests' image; the seconds until it has booted."""
        began = time.monotonic()
        self._stage.call(HOST, 'open', self._stopped_id, self._image_id)
        self._boot(self._stopped_id)
        return time.monotonic() - began

    def _seen(self, since: float | None = None) -> list[Figures]:
        found: list[Figures] = self._stage.call(_QEMU, 'figures', since)
        return found

    def run(self, case: Case) -> WayOutcome:
        """Try a case."""
        stage, began, returned = self._stage, time.monotonic(), 0.0
        self._wrong = self._errors = stock = 0
        other = same = 0.0

        def lift() -> None:
            nonlocal returned
            undo()
            returned = time.monotonic()

        # New ones: those that stop again soon have to wait for longer each time.
        guests = self._start_guests()
        undo = stage.fail(case, self._image_id)
        if case.seconds:
            stage._lifts.append((time.monotonic() + case.seconds, lift))
        else:
            lift()
        is_first = True
        while is_first or not returned:
            is_first = False
            took, is_ours = self._start_new()
            other, same, stock = max(other, took), max(same, self._start_again()), \
                stock + (not is_ours)
            for _tick in range(50):
                stage.tick()
        with contextlib.suppress(Trouble):
            stage.until(lambda: all(one.until_on is not None for one in self._seen(returned)),
                        'that guests go on', _GIVEN_UP)
        seen = self._seen(returned)
        stage.call(_QEMU, 'end_guests')
        for server_id in guests:
            self._delete(server_id)
        return WayOutcome(
            READING, case.name, self._life._row.life.value, round(time.monotonic() - began, 1),
            round(max(max(one.unanswered, one.paused) for one in seen), 1),
            self._errors + sum(one.errors for one in seen),
            self._wrong + sum(one.wrong for one in seen), (), sum(one.pauses for one in seen),
            stock, (), '; '.join(faults_of(seen, other, same)), stage.way,
            round(max(one.unanswered for one in seen), 1),
            round(max((one.until_on or 0.0) for one in seen), 1),
            round(other, 1), round(same, 1))

    def end(self) -> WayOutcome:
        """Delete servers and images; what is left of them."""
        began, trouble, left = time.monotonic(), '', []
        try:
            self._stage.take_disk_away()
            left = self._life._end()
        except Trouble as error:
            trouble = str(error)
        return WayOutcome(READING, 'deletion', self._life._row.life.value,
                          round(time.monotonic() - began, 1), leftovers=tuple(left),
                          trouble=trouble, way=self._stage.way)


def run(way: tuple[str, list[Case]], root: Path, network: netns.Network,
        image: Image) -> Iterator[WayOutcome]:
    """Try the cases of a way, and yield what comes of each."""
    name, cases = way
    stage = WaysStage(root, network, image, name)
    try:
        stage.start()
        trial = _Trial(stage)
        trial.begin(any(case.name == 'disk-hangs' for case in cases))
        for case in cases:
            yield trial.run(case)
        yield trial.end()
    except Exception as error:
        stage.ask_what_they_do()
        yield WayOutcome(READING, 'start', '', 0.0, trouble=repr(error), way=name)
    finally:
        stage.close()


def line(one: Outcome) -> str:
    """Return what is told of a case beside the line of its run."""
    assert isinstance(one, WayOutcome)
    return f'{one.way}: unanswered {one.seconds_unanswered} s, on after {one.seconds_until_on} s,' \
        f' servers {one.seconds_other} and {one.seconds_same} s'
