"""A storage node and a compute host: their processes, started again as systemd does, and faults."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.faults import bus, exchanges, spoiledfiles, storageside, way
from bench.faults.cephside import CephSide
from bench.faults.clock import Clock
from bench.faults.gate import Worker
from bench.faults.guestside import GuestSide
from bench.faults.hostside import HostSide
from bench.faults.images import Image
from bench.faults.kinds import (
    CLONES,
    EXPORTER,
    GATEWAY,
    HOST,
    NODES_CLONES,
    READER,
    STORAGE,
    Act,
    Fault,
)
from bench.faults.plan import Life, Row, Strike
from bench.faults.storageside import StorageSide
from bench.replay import children, netns
from bootcache.connectors.ways import rbd_origin

FILE_SYSTEMS = {'storage': 160, 'host': 200, 'memory': 64}  # MiB of each
_PIDS = {GATEWAY: 'g/gateway.pid', EXPORTER: 'r/exporter.pid', READER: 'q/qemu.pid'}
# Options that are the storage service's; all others are the host's.
_OF_STORAGE = 'profile_boots', 'compression'
_RESTART_SECONDS = 0.3
_TICK_SECONDS = 0.01
# A machine that is busy takes its time: this tells what hangs from what is slow.
PATIENCE = 240.0


class Trouble(Exception):
    """Something did not come to its end."""


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class Stage:
    """The files and processes of one run.

    :param root: directory of all runs; its path is short, and what is in it is this stage's.
    :param network: with one host.
    :param image: its content.
    :param options: more of the product's.
    :param row: what is to go wrong.
    :param file: finds the file that a step is about.
    """

    def __init__(self, root: Path, network: netns.Network, image: Image,
                 options: dict[str, Any], row: Row | None = None,
                 file: Callable[[str], Path] | None = None):
        self.root, self.network, self.image, self._options = root, network, image, options
        # What is still to go wrong, by step.
        self._waiting = {strike.step: strike for strike in row.strikes} if row else {}
        self._file = file
        self.grace = 0.0 if row is None else row.grace
        self._has_way = row is not None and (row.has(Act.NBDKIT) or row.life is Life.MOVE)
        self._way: way.Way | None = None
        self._exchanges = exchanges.Exchanges(root, network, row is not None
                                              and row.life is Life.EXCHANGE)
        self.ceph = CephSide(root, network, row is not None and row.life is Life.CEPH)
        # Of the machines; the reader is on the host.
        self._clocks = {STORAGE: Clock(), HOST: Clock()}
        self._clocks[READER] = self._clocks[HOST]
        self._workers: dict[str, Worker] = {}
        self._started: set[str] = set()
        self._again_at: dict[str, float] = {}
        # What undoes faults, and when.
        self._lifts: list[tuple[float, Callable[[], None]]] = []

    @property
    def unreached(self) -> list[str]:
        """The steps at which something was to go wrong, and that nobody came to."""
        return list(self._waiting)

    def start(self) -> None:
        """Make the directories, and start all processes."""
        for name in ('storage/tmp', 'host/tmp', 'host/instances/_base', 'log', 'glance', 'g', 'r',
                     'q', 'memory'):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        if self._has_way:
            self._way = way.Way(self.network.storage, storageside.PORT)
        self._exchanges.start()
        self.ceph.start()
        for name in (STORAGE, HOST, READER):
            self.call(name, 'left')

    def ask_what_they_do(self) -> None:
        """Have the processes write into their logs where their threads are."""
        for worker in self._workers.values():
            if not worker.has_ended and worker._process.is_alive():
                os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(_RESTART_SECONDS)

    def close(self) -> None:
        """End all processes, and remove all files but the logs."""
        # What would mend it has nothing to do any more.
        self.ceph.end()
        self._lift(everything=True)
        if self._way is not None:
            self._way.end()
        self._exchanges.end()
        for worker in self._workers.values():
            worker.close()
        for name in (self.network.storage, *self.network.hosts):
            netns.kill_all(name)
        for name in ('storage', 'host', 'memory', 'glance', 'g', 'r', 'q'):
            for path in (self.root / name).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.root / 'bus').unlink(missing_ok=True)

    # Processes.

    def _options_of(self, name: str) -> dict[str, Any]:
        """Return the options of a machine's part of the product."""
        of_storage = {key: value for key, value in self._options.items() if key in _OF_STORAGE}
        if name == HOST:
            return {**{key: value for key, value in self._options.items() if key not in of_storage},
                    **self._exchanges.options(HOST), **self.ceph.options(HOST)}
        return {'profile_boots': True, **self._exchanges.options(STORAGE),
                **self.ceph.options(STORAGE), **of_storage,
                **({'advertise_port': self._way.port} if self._way is not None else {})}

    def _sides(self) -> dict[str, tuple[str, Callable[[], Any]]]:
        """Return the processes, by name: in which network, and what makes each there."""
        root = str(self.root)
        return {
            STORAGE: (self.network.storage, lambda: StorageSide(root, self._options_of(STORAGE))),
            HOST: (self.network.hosts[0], lambda: HostSide(root, self._options_of(HOST))),
            READER: (self.network.hosts[0], lambda: GuestSide(root))}

    def _make(self, name: str) -> Worker:
        namespace, make = self._sides()[name]
        return Worker(namespace, make, self._clocks.get(name, Clock()), self._armed_of(name))

    def _armed_of(self, name: str) -> list[str]:
        """Return the steps at which something is to go wrong in a process."""
        return [strike.step for strike in self._waiting.values() if strike.process == name]

    def _worker(self, name: str) -> Worker | None:
        """Return a process; started again some time after it has ended."""
        worker = self._workers.get(name)
        if worker is not None and not worker.has_ended and worker._process.is_alive():
            return worker
        now = time.monotonic()
        if worker is not None:
            worker.close()
            del self._workers[name]
            self._again_at[name] = now + _RESTART_SECONDS
        if now < self._again_at.get(name, 0.0):
            return None
        self._started.add(name)
        self._workers[name] = self._make(name)
        return self._workers[name]

    def call(self, name: str, method: str, *arguments: Any, seconds: float = PATIENCE,
             again: bool = True) -> Any:
        """Have a process do something; again, if it ended meanwhile or could not.

        :param again: whether what could not be done is tried again.
        :raises Trouble: if it was not done in that time.
        """
        deadline, why = time.monotonic() + seconds + self.grace, 'no answer'
        while time.monotonic() < deadline:
            worker = self._worker(name)
            if worker is None:
                self.tick()
                continue
            try:
                worker.send(method, *arguments)
                while not worker.has_answer() and not worker.has_ended \
                        and time.monotonic() < deadline:
                    self.tick()
                if time.monotonic() >= deadline and not worker.has_answer():
                    break
                return worker.result(0)
            except (children.ChildError, OSError) as error:
                why = str(error).strip().rpartition('\n')[2]
                if worker._process.is_alive() and not again:
                    break
            for _tick in range(10):
                self.tick()
        raise Trouble(f'{name}: {method}: {why}')

    def call_and(self, name: str, method: str, *arguments: Any, after: float,
                 do: Callable[[], None] | None) -> Any:
        """Have a process do something, and do something else meanwhile.

        :param after: seconds.
        :raises Trouble: if it was not done.
        """
        if do is not None:
            self._lifts.append((time.monotonic() + after, do))
        return self.call(name, method, *arguments, again=False)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait until something is so, and return what the condition gave.

        :raises Trouble: if it does not come about.
        """
        deadline = time.monotonic() + seconds + self.grace
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise Trouble(f'{what} did not come about within {seconds:.0f} s')
            for _tick in range(20):
                self.tick()
        return value

    def tick(self) -> None:
        """Look at all processes: steps that are reached, faults that are over, restarts."""
        for worker in list(self._workers.values()):
            while not worker.has_ended and (step := worker.gate.reached()) is not None:
                self.strike(step)
                if not worker.has_ended:
                    worker.gate.go_on()
        for name in list(self._started):
            self._worker(name)
        self._lift()
        if self._way is not None:
            self._way.tick()
        time.sleep(_TICK_SECONDS)

    # Faults.

    def strike(self, step: str) -> None:
        """Do what is to go wrong at a step."""
        strike = self._waiting.pop(step, None)
        if strike is None:
            return
        fault = strike.fault
        if fault.act is Act.KILL:
            for target in strike.targets:
                self._kill(target)
        elif fault.act is Act.FREEZE:
            for pid in map(self._pid, strike.targets):
                if pid is not None:
                    os.kill(pid, signal.SIGSTOP)
                    self._later(fault, lambda pid=pid: os.kill(pid, signal.SIGCONT))
        elif fault.act is Act.CORRUPT:
            assert self._file is not None
            spoiledfiles.flip(self._file(step))
        elif fault.act is Act.DELETE:
            self._delete_images()
        elif fault.act is Act.CLOCK:
            for name in strike.targets:
                self._clocks[name].move(fault.amount)
        else:
            self._spoil(strike)

    def _spoil(self, strike: Strike) -> None:
        """Do what passes by itself."""
        fault = strike.fault
        if fault.act is Act.LINK:
            self._link('down')
            self._later(fault, lambda: self._link('up'))
        elif fault.act is Act.SLOW:
            self._shape(f'tbf rate {fault.amount}bit burst 32kb latency 400ms')
            self._later(fault, lambda: self._shape('pfifo'))
        elif fault.act is Act.FULL:
            for name in strike.targets:
                filler = self.root / name / f'filler-{len(self._lifts)}'
                spoiledfiles.fill(filler, fault.amount)
                self._later(fault, filler.unlink)
        elif fault.act is Act.NBDKIT:
            assert self._way is not None
            self._way.make_ill(fault.filters)
            self._later(fault, self._mend_way)
        elif fault.act is Act.CEPH:
            self.ceph.spoil(fault.on[0])
            self._later(fault, self.ceph.mend)
        else:
            path = bus.fault_path(str(self.root)) if fault.act is Act.BUS \
                else storageside.glance_fault_path(str(self.root))
            path.write_text(fault.on[0])
            self._later(fault, path.unlink)

    def _delete_images(self) -> None:
        for path in (self.root / 'glance').glob('*.json'):
            path.rename(path.with_suffix('.deleted'))
        worker = self._workers.get(STORAGE)
        if worker is not None and not worker.has_ended:
            os.kill(worker.pid, signal.SIGUSR2)

    def _later(self, fault: Fault, lift: Callable[[], None]) -> None:
        self._lifts.append((time.monotonic() + fault.seconds, lift))

    def _lift(self, everything: bool = False) -> None:
        now = time.monotonic()
        for entry in self._lifts[:]:
            if everything or now >= entry[0]:
                self._lifts.remove(entry)
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                    entry[1]()

    def _kill(self, name: str) -> None:
        if name in (HOST, STORAGE):
            worker = self._workers.get(name)
            if worker is not None and not worker.has_ended:
                worker.kill()
            return
        pid = self._pid(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if name == EXPORTER and self._way is not None:
            # It would keep its clients' connections and answer with errors, which no network does.
            self._way.mend()

    def _pid(self, name: str) -> int | None:
        if name in (HOST, STORAGE):
            worker = self._workers.get(name)
            return None if worker is None or worker.has_ended else worker.pid
        if name == CLONES:
            ours = self.ceph.options(HOST)
            origin = rbd_origin(ours['base_rbd_ceph_conf'], ours['base_rbd_user']) if ours else '-'
            return next((pid for connector, pid in self._connectors().items()
                         if connector.startswith(origin)), None)
        if name == NODES_CLONES:
            return next(iter(self._connectors('r').values()), None)
        return _read_pid(self.root / _PIDS[name])

    def _connectors(self, run_dir: str = 'g') -> dict[str, int]:
        found = sorted((self.root / run_dir / 'connectors').glob('*.pid'))
        return {path.stem: pid for path in found
                if (pid := _read_pid(path)) is not None}

    def _link(self, state: str) -> None:
        subprocess.run(['ip', '-n', self.network._switch, 'link', 'set', 'p0', state], check=True)

    def _shape(self, how: str) -> None:
        # What the storage node sends.
        subprocess.run(['tc', '-n', self.network.storage, 'qdisc', 'replace', 'dev', 'eth0', 'root',
                        *how.split()], check=True)

    def _mend_way(self) -> None:
        if self._way is not None:
            self._way.mend()

    def move_node(self) -> None:
        """Have the storage node be at another address, and none at the older one.

        The storage service is started anew: it tells hosts by its configuration where bases are.
        """
        assert self._way is not None
        older = self._way
        older.end()
        port = next(port for port in way.PORTS if port != older.port)
        self._way = way.Way(self.network.storage, storageside.PORT, port)
        self._kill(STORAGE)

    # What is left.

    def strangers(self) -> list[str]:
        """Return the processes that run and are none of the stage's."""
        known = {worker.pid for worker in self._workers.values()} | self._exchanges.pids() \
            | self.ceph.pids()
        known |= {pid for pid in map(self._pid, _PIDS) if pid is not None}
        known |= {*self._connectors().values(), *self._connectors('r').values()}
        if self._way is not None and self._way.pid is not None:
            known.add(self._way.pid)
        found = []
        for name in (self.network.storage, *self.network.hosts):
            for pid in netns._run('ip', 'netns', 'pids', name).split():
                with contextlib.suppress(OSError):
                    state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
                    words = Path(f'/proc/{pid}/cmdline').read_bytes().decode().split('\0')
                    if int(pid) not in known and state not in 'ZX':
                        found.append(f'process {pid} {os.path.basename(words[0])}')
        return found


@contextlib.contextmanager
def file_systems(root: Path, sizes: Mapping[str, int] = FILE_SYSTEMS) -> Any:
    """Have small file systems of memory in a directory, that nobody else sees, for the block.

    :param sizes: by name, in MiB.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, recursive = 0x00020000, 1 << 18, 1 << 14

    def call(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), 'the file systems of a stage cannot be mounted')

    call(libc.unshare(new_mounts))
    call(libc.mount(b'none', b'/', None, ctypes.c_ulong(private | recursive), None))
    mounted = []
    try:
        for name, size in sizes.items():
            path = root / name
            path.mkdir()
            call(libc.mount(b'tmpfs', os.fsencode(path), b'tmpfs', ctypes.c_ulong(0),
                            f'size={size}m'.encode()))
            mounted.append(path)
        yield
    finally:
        for path in mounted:
            libc.umount2(os.fsencode(path), 2)
