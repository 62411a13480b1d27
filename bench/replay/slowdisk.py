"""A hard disk that is not there: a file system whose block device answers as slowly as one.

A loop device with ext4 over nbdfuse over a stock nbdkit, whose plugin (slowdisk_plugin.py) has each
request wait for the model of a drive's head (diskmodel.py). The loop device reads by O_DIRECT, so
the only page cache is the file system's own, as with a real disk. A limit of requests a second, as
control groups have it, would not do: it takes a sequential reader for a random one.
"""

import contextlib
import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.replay import netns

TOP = Path(__file__).resolve().parents[2]
# A disk of 10,000 turns a minute, as in YOLO's testbed: 120 random reads a second.
ACCESS_SECONDS, RATE = 0.008, 100_000_000
_NAME = re.compile(r'bcr-(\d+)-slow')
_READ = 4096


class SlowDiskError(Exception):
    """The disk cannot be made."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a disk was measured to do.

    :ivar random: reads of 4 KiB a second, one at a time.
    :ivar sequential: bytes a second.
    """

    random: float
    sequential: float


class SlowDisk:
    """A disk that is mounted; see :func:`slow_disk`.

    :ivar path: where its file system is.
    :ivar device: its block device.
    """

    def __init__(self, directory: Path, device: str):
        self.directory = directory
        self.path = directory / 'fs'
        self.device = device

    @contextlib.contextmanager
    def unlimited(self) -> Iterator[None]:
        """Have it be fast, to put something there."""
        fast = self.directory / 'fast'
        fast.touch()
        try:
            yield
        finally:
            _run('sync', '--file-system', str(self.path))
            fast.unlink()

    def drop_cache(self) -> None:
        """Have nothing of its files in the page cache. Others' files stay."""
        for path in self.path.rglob('*'):
            if path.is_file() and not path.is_symlink():
                drop(path)

    def rates(self, seconds: float = 1.0) -> Rates:
        """Measure it, each way for a time, with a file that is made and removed."""
        path = self.path / 'rates'
        with self.unlimited(), open(path, 'wb') as stream:
            for _ in range(256):
                stream.write(os.urandom(1 << 20))
        try:
            return Rates(_rate(path, _READ, True, seconds),
                         _rate(path, 1 << 20, False, seconds) * (1 << 20))
        finally:
            path.unlink()


def drop(path: Path) -> None:
    """Write a file back, and take it out of the page cache."""
    with open(path, 'rb') as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _rate(path: Path, length: int, anywhere: bool, seconds: float) -> float:
    """Return how many reads a second a file gives, by the page cache but out of the disk."""
    drop(path)
    places = range(0, path.stat().st_size, length)
    order = random.Random(1).sample(places, len(places)) if anywhere else places
    count = 0
    with open(path, 'rb', buffering=0) as stream:
        if anywhere:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        began = time.monotonic()
        for place in order:
            os.pread(stream.fileno(), length, place)
            count += 1
            if time.monotonic() - began > seconds:
                break
    return count / (time.monotonic() - began)


def _run(*command: str) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SlowDiskError(f'{" ".join(command)} failed: {done.stderr.strip()}')
    return done.stdout.strip()


def _wait(what: str, ready: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        if time.monotonic() > deadline or any(one.poll() is not None for one in processes):
            raise SlowDiskError(f'{what} did not come up')
        time.sleep(0.02)


def _mounts(directory: Path) -> list[str]:
    """Return what is mounted below a directory, the latest first."""
    lines = Path('/proc/self/mounts').read_text().splitlines()
    return [line.split()[1] for line in reversed(lines)
            if line.split()[1].startswith(f'{directory}/')]


def _devices(directory: Path) -> list[str]:
    lines = [line.split() for line in Path('/proc/self/mounts').read_text().splitlines()]
    return [source for source, path, *_ in lines
            if path.startswith(f'{directory}/') and source.startswith('/dev/loop')]


def remove(directory: Path) -> None:
    """Unmount and remove what a disk's directory has; whoever served it may be gone."""
    devices = set(_devices(directory))
    for path in _mounts(directory):
        if path.endswith('/fs'):
            _unmount(path)
    listed = _run('losetup', '--list', '--noheadings', '--output', 'NAME,BACK-FILE')
    for line in listed.splitlines():
        device, _, file = line.strip().partition(' ')
        # One whose file is gone already is known by what was mounted of it.
        if file.strip().startswith(f'{directory}/') or device in devices:
            with contextlib.suppress(SlowDiskError):
                _run('losetup', '--detach', device)
    for path in _mounts(directory):
        _unmount(path)
    shutil.rmtree(directory, ignore_errors=True)


def _unmount(path: str) -> None:
    # Whoever still has it open is being ended: one that was killed may take a moment.
    for _ in range(100):
        if subprocess.run(['umount', path], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.05)
    _run('umount', '--lazy', path)


def remove_stale(place: Path) -> None:
    """Remove the disks of processes that were killed."""
    for path in place.glob('bcr-*-slow'):
        match = _NAME.fullmatch(path.name)
        if match is not None and not Path('/proc', match.group(1)).exists():
            remove(path)


@contextlib.contextmanager
def slow_disk(size: int, fill: Callable[[Path], None] = lambda path: None,
              access: float = ACCESS_SECONDS, rate: float = RATE,
              place: Path = Path('/tmp')) -> Iterator[SlowDisk]:
    """Make a disk, and remove it whatever happens. One a process.

    :param size: of the disk, bytes; only what is written to it takes space.
    :param fill: called with the file system's path while it is fast; cold afterwards.
    :param access: seconds of seek and half a turn.
    :param rate: bytes a second of one who reads on and on.
    :param place: where its file is.
    """
    if os.geteuid():
        raise SlowDiskError('a disk is made by root; run this as root')
    remove_stale(place)
    directory = place / f'bcr-{os.getpid()}-slow'
    served: list[subprocess.Popen[bytes]] = []
    try:
        for path in (directory, directory / 'fs', directory / 'fuse'):
            path.mkdir()
        file = directory / 'file'
        with open(file, 'wb') as stream:
            stream.truncate(size)
        _run('mkfs.ext4', '-q', '-m', '0', '-E', 'lazy_itable_init=0,lazy_journal_init=0',
             str(file))
        _run('mount', '-o', 'loop', str(file), str(directory / 'fs'))
        fill(directory / 'fs')
        _unmount(str(directory / 'fs'))
        yield SlowDisk(directory, _serve(directory, access, rate, served))
    finally:
        try:
            if _mounts(directory):
                # What is still to be written need not take its time.
                (directory / 'fast').touch()
            remove(directory)
        finally:
            for process in reversed(served):
                process.send_signal(signal.SIGKILL)
                process.wait()


def _serve(directory: Path, access: float, rate: float,
           served: list[subprocess.Popen[bytes]]) -> str:
    """Start what stands between file and file system, and mount that; the block device."""
    socket, seen = directory / 'nbd', directory / 'fuse' / 'disk'
    with open(directory / 'messages', 'wb') as messages:
        served.append(subprocess.Popen(
            ['nbdkit', '--foreground', '--unix', str(socket), 'python',
             str(Path(__file__).with_name('slowdisk_plugin.py'))],
            env={**os.environ, 'PYTHONPATH': str(TOP), 'BCR_FILE': str(directory / 'file'),
                 'BCR_ACCESS': str(access), 'BCR_RATE': str(rate),
                 'BCR_FAST': str(directory / 'fast')},
            stdin=subprocess.DEVNULL, stderr=messages, preexec_fn=netns.die_with_parent,
            start_new_session=True))
        _wait('nbdkit', socket.exists, *served)
        seen.touch()
        served.append(subprocess.Popen(
            ['nbdfuse', str(seen), '--unix', str(socket)], stdin=subprocess.DEVNULL,
            stderr=messages, preexec_fn=netns.die_with_parent, start_new_session=True))
        _wait('nbdfuse', lambda: seen.stat().st_size > 0, *served)
    device = _run('losetup', '--find', '--show', '--direct-io=on', str(seen))
    _run('mount', '-o', 'noatime', device, str(directory / 'fs'))
    return device
