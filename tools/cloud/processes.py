"""Daemons that outlive the program that started them: start, find again, wait for, stop.

A daemon is known by its pid file, which holds its pid and its start time, so that a recycled pid
is never taken for the daemon. Each runs in a session of its own, and carries two environment
variables that say whose it is, so that also what a crashed daemon left behind can be found.
"""

import contextlib
import os
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.cloud.layout import CLOUD_TAG, SERVICE_TAG

TAIL_LINES = 25
POLL = 0.1
# TCP_LISTEN in the kernel's tables.
LISTEN = "0A"


class ServiceError(RuntimeError):
    """A service could not be started, or died."""


@dataclass(frozen=True)
class ProcessInfo:
    """What /proc/PID/stat says about a process."""

    pid: int
    name: str
    state: str
    session: int
    start: int

    threads: int

    @property
    def alive(self) -> bool:
        """Whether it runs; a zombie does not, once its other threads have ended.

        The state is the first thread's. Until the last has ended the process holds its ports.
        """
        return self.state not in "ZX" or self.threads > 1


def process_info(pid: int) -> ProcessInfo | None:
    """Read /proc/PID/stat; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return ProcessInfo(pid, name, fields[0], int(fields[3]), int(fields[19]), int(fields[17]))


def all_processes() -> Iterator[ProcessInfo]:
    """Every living process."""
    for entry in os.listdir("/proc"):
        info = process_info(int(entry)) if entry.isdigit() else None
        if info and info.alive:
            yield info


def process_tags(pid: int) -> tuple[str, str] | None:
    """The cloud and the service a process was started for, or None."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    environ = dict(item.partition(b"=")[::2] for item in raw.split(b"\0"))
    if CLOUD_TAG.encode() not in environ:
        return None
    return environ[CLOUD_TAG.encode()].decode(), environ.get(SERVICE_TAG.encode(), b"").decode()


def kill_all(
    processes: Iterable[ProcessInfo], grace: float = 3.0, terminate: bool = True
) -> None:
    """End processes: SIGTERM (unless `terminate` is false), and after `grace` seconds SIGKILL."""
    remaining = list(processes)
    steps = [(signal.SIGTERM, grace), (signal.SIGKILL, 5.0)]
    for signum, patience in steps if terminate else steps[1:]:
        for process in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signum)
        deadline = time.monotonic() + patience
        while remaining and time.monotonic() < deadline:
            remaining = [process for process in remaining if _same_process_runs(process)]
            if remaining:
                time.sleep(POLL)


def _same_process_runs(process: ProcessInfo) -> bool:
    _reap(process.pid)
    now = process_info(process.pid)
    return now is not None and now.alive and now.start == process.start


def _reap(pid: int) -> None:
    """Remove the zombie of a daemon that this very program started."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def port_open(port: int) -> bool:
    """Whether something listens on this port of the loopback address."""
    with socket.socket() as connection:
        connection.settimeout(2)
        return connection.connect_ex(("127.0.0.1", port)) == 0


def port_owner(port: int) -> str:
    """The process that listens on a port, for messages to people."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in all_processes():
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                if os.readlink(descriptor) in inodes:
                    return f"process {process.pid} ({process.name})"
    return "an unknown process"


def http_answers(port: int) -> bool:
    """Whether an HTTP server on this port gives any answer below 500."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/", timeout=10):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def socket_answers(path: Path) -> bool:
    """Whether something accepts connections on this unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


class Daemons:
    """The daemons of one cloud: pid files in `run`, output in `log`."""

    def __init__(self, tag: str, run: Path, log: Path) -> None:
        self.tag = tag
        self.run = run
        self.log = log

    def log_file(self, name: str) -> Path:
        """Where the daemon's output goes."""
        return self.log / f"{name}.log"

    def tail(self, name: str, lines: int = TAIL_LINES) -> str:
        """The end of the daemon's log."""
        try:
            text = self.log_file(name).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def recorded(self) -> list[str]:
        """Names of all daemons that have a pid file, the last started first."""
        files = sorted(self.run.glob("*.pid"), key=lambda file: file.stat().st_mtime, reverse=True)
        return [file.stem for file in files]

    def pid(self, name: str) -> int | None:
        """The daemon's pid if it is alive."""
        pid, start = self._read_pid_file(name)
        info = process_info(pid) if pid else None
        return pid if info and info.alive and info.start == start else None

    def start(self, name: str, argv: list[str], env: Mapping[str, str], cwd: Path) -> bool:
        """Start a daemon; False if it runs already."""
        if self.pid(name):
            return False
        self._end_session(name)
        environ = {**env, CLOUD_TAG: self.tag, SERVICE_TAG: name}
        program = shutil.which(argv[0], path=environ.get("PATH"))
        if program is None:
            raise ServiceError(f"{name}: there is no program {argv[0]}")
        # env(1) changes the directory, which posix_spawn() cannot do, and becomes the daemon.
        command = ["/usr/bin/env", f"--chdir={cwd}", program, *argv[1:]]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            command[0], command, environ, setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log_file(name)), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsigmask=[],
            setsigdef=[signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM],
        )  # fmt: skip
        info = process_info(pid)
        pid_file = self.run / f"{name}.pid"
        new = pid_file.with_suffix(".new")
        new.write_text(f"{pid} {info.start if info else 0}\n")
        new.replace(pid_file)
        return True

    def stop(self, name: str, timeout: float = 20.0) -> bool:
        """Stop a daemon with its children; False if it did not run.

        Processes that it put into sessions of their own are left alone, as they were meant to
        outlive it; leftovers() finds them.
        """
        pid = self.pid(name)
        info = process_info(pid) if pid else None
        if info:
            kill_all([info], grace=timeout)
        self._end_session(name)
        (self.run / f"{name}.pid").unlink(missing_ok=True)
        return info is not None

    def wait(
        self, name: str, ready: Callable[[], bool], what: str = "", timeout: float = 120.0
    ) -> None:
        """Wait until ready() or raise ServiceError, at once when the daemon dies."""
        deadline = time.monotonic() + timeout
        while not ready():
            pid = self.pid(name)
            if pid is None:
                _reap(self._read_pid_file(name)[0])
                raise ServiceError(f"{name} died; the end of {self._log_extract(name)}")
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{name} (pid {pid}) is not ready after {timeout:.0f} s"
                    f"{': ' + what if what else ''}; the end of {self._log_extract(name)}"
                )
            time.sleep(POLL)

    def leftovers(self, name: str | None = None) -> list[ProcessInfo]:
        """Living processes started for this cloud (and for this service, when given)."""
        found = []
        for process in all_processes():
            tags = process_tags(process.pid) if process.pid != os.getpid() else None
            if tags and tags[0] == self.tag and name in (None, tags[1]):
                found.append(process)
        return found

    def _end_session(self, name: str) -> None:
        """Kill what remains in the session of a daemon that is gone."""
        pid, _ = self._read_pid_file(name)
        if pid:
            kill_all(process for process in self.leftovers(name) if process.session == pid)

    def _log_extract(self, name: str) -> str:
        return f"{self.log_file(name)}:\n{self.tail(name)}"

    def _read_pid_file(self, name: str) -> tuple[int, int]:
        try:
            pid, start = (self.run / f"{name}.pid").read_text().split()
            return int(pid), int(start)
        except (OSError, ValueError):
            return 0, 0
