"""What else a host does while a server boots: fio on its disk, stress-ng in its memory.

The host's processes are in a memory control group of their own, and so is what squeezes them: the
rest of the machine keeps its memory. The group's name begins with ``bcr`` and the id of the process
that made it; what a killed one left behind is removed by the next.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.replay import netns

_MEMORY = Path('/sys/fs/cgroup/memory')
_NAME = re.compile(r'bcr-(\d+)-host')
_MIB = 1 << 20
# What stress-ng holds; how much it is does not matter, as the limit is set by what is left.
_HELD = 256 * _MIB
STRESS_BYTES = 512 * _MIB


class StressError(Exception):
    """A host cannot be put under stress."""


class Group:
    """A memory control group; see :func:`group`."""

    def __init__(self, path: Path):
        self.path = path

    def add(self, pids: list[int]) -> None:
        """Move processes into it. What they have is counted where it was."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (self.path / 'cgroup.procs').write_text(str(pid))

    def used(self) -> int:
        """Return the bytes that are in use, page cache included."""
        return int((self.path / 'memory.usage_in_bytes').read_text())

    def held(self) -> int:
        """Return the bytes that stress-ng has. The group's own statistics come seconds late."""
        found = 0
        for pid in self._stressing():
            with contextlib.suppress(OSError):
                pages = int(Path(f'/proc/{pid}/statm').read_text().split()[1])
                found += pages * os.sysconf('SC_PAGE_SIZE')
        return found

    def _stressing(self) -> list[int]:
        found = []
        for pid in (self.path / 'cgroup.procs').read_text().split():
            with contextlib.suppress(OSError):
                if Path(f'/proc/{pid}/comm').read_text().startswith('stress-ng'):
                    found.append(int(pid))
        return found

    @contextlib.contextmanager
    def squeezed(self, left: int) -> Iterator[None]:
        """Have stress-ng hold memory until only some is left for the page cache and what is new.

        :param left: bytes.
        :raises StressError: if stress-ng does not get its memory, or loses it meanwhile.
        """
        def enter() -> None:
            netns.die_with_parent()
            (self.path / 'cgroup.procs').write_text(str(os.getpid()))

        process = subprocess.Popen(
            ['stress-ng', '--quiet', '--oomable', '--vm', '1', '--vm-bytes', str(_HELD),
             '--vm-hang', '0', '--vm-keep', '--vm-method', 'write64', '--temp-path', '/tmp'],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=enter, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while self.held() < _HELD:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise StressError('stress-ng does not get its memory')
                time.sleep(0.05)
            with contextlib.suppress(OSError):
                (self.path / 'memory.force_empty').write_text('0')
            self._limit(self.used() + left)
            yield
            if self.held() < _HELD:
                raise StressError(f'{left >> 20} MiB were too few: the kernel killed stress-ng')
        finally:
            self._limit(-1)
            for pid in self._stressing():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _kill(process)

    def _limit(self, limit: int) -> None:
        (self.path / 'memory.limit_in_bytes').write_text(str(limit))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own session, with its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _remove(path: Path) -> None:
    for pid in (path / 'cgroup.procs').read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while True:
        try:
            path.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def group() -> Iterator[Group]:
    """Make a memory control group, and remove it with what is still in it.

    :raises StressError: if the machine has no such groups, or does not let us make one.
    """
    try:
        for path in _MEMORY.glob('bcr-*-host'):
            match = _NAME.fullmatch(path.name)
            if match is not None and not Path('/proc', match.group(1)).exists():
                _remove(path)
        path = _MEMORY / f'bcr-{os.getpid()}-host'
        path.mkdir()
    except OSError as error:
        raise StressError(f'no memory control group of version 1: {error}') from error
    try:
        yield Group(path)
    finally:
        _remove(path)


def make_file(path: Path) -> None:
    """Write the file that fio works on."""
    noise = os.urandom(_MIB)
    with open(path, 'wb') as stream:
        for _ in range(STRESS_BYTES // _MIB):
            stream.write(noise)


@contextlib.contextmanager
def busy_disk(path: Path, jobs: int) -> Iterator[None]:
    """Have fio read and write at random places of a file, past the page cache.

    :param jobs: how many requests of 64 KiB are always under way, half of them writes.
    :raises StressError: if it ends by itself.
    """
    process = subprocess.Popen(
        ['fio', '--name=stress', f'--filename={path}', '--rw=randrw', '--bs=64k', '--direct=1',
         '--ioengine=psync', f'--numjobs={jobs}', '--time_based', '--runtime=3600', '--thread',
         f'--size={STRESS_BYTES}', '--randrepeat=1', '--minimal'],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=netns.die_with_parent, start_new_session=True, cwd='/tmp')
    try:
        # The write cache of a drive that has just become busy is empty.
        time.sleep(1.0)
        yield
        if process.poll() is not None:
            raise StressError(f'fio ended by itself, with status {process.returncode}')
    finally:
        _kill(process)
