"""The stage on which ways to a base fail: what it has beside that of lives, and what fails."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.faults import storageside, wayguest
from bench.faults.cephside import AWAY
from bench.faults.clock import Clock
from bench.faults.gate import Worker
from bench.faults.images import Image
from bench.faults.kinds import EXPORTER, GATEWAY, HOST, STORAGE
from bench.faults.plan import READING, Life, Row
from bench.faults.stage import Stage, _read_pid
from bench.faults.storageside import StorageSide
from bench.faults.waydatabase import Rows, WayDatabase
from bench.faults.wayguest import QemuSide
from bench.faults.wayhost import Units, WaysHost
from bench.faults.wayplan import CEPH, DATABASE, RENEWED, TLS, Case
from bench.replay import children, netns
from glance_bootcache.smallca import SmallCA

# In MiB: a base for each image.
FILE_SYSTEMS = {'storage': 320, 'host': 200, 'memory': 64}
# Processes: libvirtd with its QEMUs, and the host's units beside nova-compute.
QEMU, UNITS = 'qemu', 'units'
_NAME, _DNS_PORT = 'storage-1.example', 53
_SMALL_BYTES = 1300
# After which the host asks for a name again.
_KNOWN_SECONDS = 12.0
_SECOND_PORT = storageside.PORT + 1


class WaysStage(Stage):
    """A storage node that is known by a name, and a host with guests.

    :param way: by which bases are read.
    """

    def __init__(self, root: Path, network: netns.Network, image: Image, way: str):
        self.way = way
        self.row = Row(READING, way, Life.CEPH if way == CEPH else Life.FETCH, ())
        super().__init__(root, network, image, {'compression': 'none'}, self.row)
        self._home = root / 'ways'
        self._home.mkdir(exist_ok=True)
        self._ca = SmallCA(str(self._home / 'ca')) if way == TLS else None
        self._disk: subprocess.Popen[bytes] | None = None
        self._base = ''
        self._database = WayDatabase() if way == DATABASE else None
        # What the database held as the storage service was started.
        self._first: Rows = {}
        self._removed: list[str] = []

    def _options_of(self, name: str) -> dict[str, Any]:
        found = super()._options_of(name)
        found |= {'advertise_host': _NAME} if name == STORAGE else {'gateway_autostart': False}
        if self._database is not None and name == STORAGE:
            found['connection'] = self._database.url
        return {**found, 'tls_directory': self.issue(name)} if self._ca is not None else found

    def issue(self, name: str) -> str:
        """Issue a machine's certificate, anew if there is one, and return its directory."""
        assert self._ca is not None
        return self._ca.issue(name, [_NAME, netns.STORAGE_ADDRESS] if name == STORAGE else [])

    def _sides(self) -> dict[str, tuple[str, Callable[[], Any]]]:
        root, host = str(self.root), self.network.hosts[0]
        return {**super()._sides(), UNITS: (host, lambda: Units(root)),
                QEMU: (host, lambda: QemuSide(root)),
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
        for name in (UNITS, QEMU):
            self.call(name, 'left')
        super().start()
        if self._database is not None:
            self._first = self._database.copy()
        self.call(QEMU, 'know', str(self.image.raw))

    def close(self) -> None:
        """End all of it."""
        worker = self._workers.get(QEMU)
        if worker is not None and not worker.has_ended:
            with contextlib.suppress(children.ChildError):
                worker.call('stop', seconds=20)
        self.take_disk_away()
        super().close()
        if self._database is not None:
            self._database.close()
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
        if DATABASE in case.ways:
            return self._fail_database(name)
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
        if name == RENEWED:
            for machine in (STORAGE, HOST):
                self.issue(machine)
            return lambda: None
        return self._kill_one(name)

    def removed(self) -> list[str]:
        """Return the images' files that are gone since this was asked last, though none may be."""
        found, self._removed = self._removed, []
        return found

    def _fail_database(self, name: str) -> Callable[[], None]:
        """Have the database be away or hold something else; return what undoes that."""
        database, before = self._database, set(self._files())
        assert database is not None
        if name == 'two-services':
            # As one that was started with an empty volume in the place of its own.
            other = self._second()
            return lambda: self._end_second(other, before)
        if name.startswith('database-away') or name == 'node-rebooted':
            undo = database.go_away()
            if name == 'node-rebooted':
                self._reboot()
        elif name == 'database-corrupt':
            undo = database.spoil()
            self._kill(STORAGE)
        else:
            rows = database.copy()
            if name.endswith('restart'):
                self._kill(STORAGE)
            database.put({} if name == 'database-empty' else self._first)

            def undo() -> None:
                database.put(rows)
                database.accept(self.until)

        def mend() -> None:
            self._removed += sorted(before - set(self._files()))
            undo()

        return mend

    def _files(self) -> list[str]:
        return storageside.files(str(self.root / 'storage/state/images'))

    def _reboot(self) -> None:
        """Have all processes of the storage node end, and what is in memory be gone."""
        for process in (STORAGE, EXPORTER):
            self._kill(process)
        for name in ('r', 'memory'):
            for path in (self.root / name).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _second(self) -> Worker:
        """Start another service of the same name by the same database."""
        root = self.root / 'second'
        for name in ('storage/tmp', 'log', 'glance', 'g', 'r', 'memory'):
            (root / name).mkdir(parents=True)
        options = {**self._options_of(STORAGE), 'export_port': _SECOND_PORT}
        return Worker(self.network.storage, lambda: StorageSide(str(root), options), Clock())

    def _end_second(self, worker: Worker, before: set[str]) -> None:
        text = (self.root / 'second/log/storage.log').read_text()
        if not worker.has_ended and worker._process.is_alive():
            self._removed.append('nothing, and a second service runs by one database')
        elif 'another glance-bootcache works as' not in text:
            self._removed.append('nothing, and a second service was not told why it cannot run')
        pid = _read_pid(self.root / 'second/r/exporter.pid')
        worker.close()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root / 'second')
        self._removed += sorted(before - set(self._files()))

    def _kill_one(self, name: str) -> Callable[[], None]:
        """Kill a process of the host; what is returned waits until it runs again."""
        def runs_now() -> set[int]:
            if name == 'kill-connector':
                return set(self._connectors().values())
            if name == 'kill-gateway':
                return {pid} if (pid := self._pid(GATEWAY)) is not None else set()
            worker = self._workers.get(UNITS if name == 'kill-supervisor' else HOST)
            return set() if worker is None or worker.has_ended else {worker.pid}

        def wait() -> None:
            self.until(lambda: any(Path(f'/proc/{pid}').exists() for pid in runs_now() - before),
                       f'{name}: it runs again')
            # No server starts before it has begun to work.
            self.call(HOST, 'holds', '')

        before = runs_now()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        return wait
