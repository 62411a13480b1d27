"""Records the trace of a real guest's boot.

The guest's disk is an NBD export of a stock nbdkit on this machine: the log filter notes begin and
end of each request with its time, what the guest writes goes to the cow filter and vanishes. The
requests are those that QEMU's virtio-blk hands to the block layer, neighbours that it merged
included, and so what the topmost node of a chain is asked for.
"""

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from bench.replay import trace
from bench.replay.trace import Event, Header, Trace
from bootcache import ending
from bootcache.bootend import BootMarker
from glance_bootcache import bootconf
from glance_bootcache.profileboot import acceleration, direct
from glance_bootcache.storage import inspection

_LINE = re.compile(r'(\S+ \S+) connection=\d+ (\.\.\.)?(Read|Write|Zero|Trim|Flush) id=(\d+)(.*)')
_RANGE = re.compile(r'offset=0x([0-9a-f]+) count=0x([0-9a-f]+)')
_FAILED = re.compile(r'return=-1')
_OPS = {'Read': trace.READ, 'Write': trace.WRITE, 'Zero': trace.ZERO, 'Trim': trace.TRIM,
        'Flush': trace.FLUSH}
_UTC = datetime.UTC


def home() -> Path:
    """Return the directory of what is large or made: ``$BOOTCACHE_HOME``."""
    return Path(os.environ.get('BOOTCACHE_HOME') or Path.home() / '.cache' / 'bootcache')


def file_hash(path: Path) -> str:
    """Return a file's sha256 in hexadecimal digits."""
    with open(path, 'rb') as stream:
        return hashlib.file_digest(stream, 'sha256').hexdigest()


def trace_path(image_hash: str, number: int) -> Path:
    """Return where the trace of an image's boot is kept.

    :param number: 0 for the boot that cache images are built from, 1 and more for others.
    """
    return home() / 'traces' / f'{image_hash[:32]}-{number}.jsonl.gz'


def _seconds(text: str) -> float:
    return datetime.datetime.strptime(text, '%Y-%m-%d %H:%M:%S.%f').replace(
        tzinfo=_UTC).timestamp()


def parse_log(log: str) -> list[Event]:
    """Read an nbdkit log (times in UTC) into events in the order of their issue. Pure.

    A request that never ended is left out, as its guest had ended.

    :raises TraceError: if a request failed.
    """
    begun: dict[str, int] = {}
    found: list[Event] = []
    ended: list[float] = []
    for line in log.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        moment, dots, verb, number, rest = match.groups()
        if dots:
            if _FAILED.search(rest):
                raise trace.TraceError(f'a request of the recording failed: {line}')
            ended[begun.pop(number)] = _seconds(moment)
            continue
        span = _RANGE.search(rest)
        offset, length = (int(text, 16) for text in span.groups()) if span else (0, 0)
        begun[number] = len(found)
        found.append(Event(_OPS[verb], offset, length, _seconds(moment), 0.0))
        ended.append(0.0)
    return [dataclasses.replace(event, completed=end) for event, end in
            zip(found, ended, strict=True) if end]


@contextlib.contextmanager
def recorded_disk(raw: Path, directory: Path) -> Iterator[tuple[Path, Path]]:
    """Serve a raw image by nbdkit with a log; gives the socket's and the log's path.

    :param directory: short, as unix socket paths end at 107 bytes.
    """
    socket, log, ready = (directory / name for name in ('disk', 'log', 'pid'))
    for path in (socket, log, ready):
        path.unlink(missing_ok=True)
    process = subprocess.Popen(
        ['nbdkit', '--foreground', '--unix', str(socket), '--pidfile', str(ready), '--filter=log',
         '--filter=cow', 'file', str(raw), f'logfile={log}'],
        env={**os.environ, 'TZ': 'UTC', 'TMPDIR': str(directory)}, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        # The socket is there before anyone listens on it; this file is written after that.
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise trace.TraceError('nbdkit did not come up')
            time.sleep(0.01)
        yield socket, log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


class _Console:
    """What a guest says on its first serial line, and when its boot's marker came."""

    def __init__(self, stream: IO[bytes], marker: str):
        self._stream = stream
        self._marker = BootMarker(marker, 'the guest')
        self._text = ''
        self.marked: float | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := os.read(self._stream.fileno(), 4096):
            self._text = (self._text + data.decode(errors='replace'))[-65536:]
            if self.marked is None and self._marker.seen(lambda: self._text):
                self.marked = time.time()

    def tail(self) -> str:
        """The end of it, for messages."""
        return self._text[-400:]


def boot(socket: Path, log: Path, *, accelerator: str, memory: int, config_drive: str | None,
         marker: str, limits: ending.BootLimits) -> tuple[float, float]:
    """Boot a guest until it has been quiet after its marker; start and marker on the wall clock.

    :param accelerator: kvm or tcg.
    :param memory: MiB.
    :raises TraceError: if the boot did not come to its marker.
    """
    seed = [] if config_drive is None else [
        '-drive', f'file={config_drive},format=raw,if=virtio,readonly=on']
    command = [
        'qemu-system-x86_64', '-accel', accelerator, '-m', str(memory), '-nodefaults', '-display',
        'none', '-no-reboot', '-blockdev',
        f'driver=nbd,node-name=wire,server.type=unix,server.path={socket}', '-blockdev',
        'driver=raw,node-name=disk,file=wire', '-device', 'virtio-blk-pci,drive=disk,bootindex=0',
        *seed, '-serial', 'stdio', '-device', 'virtio-rng-pci']
    started = time.time()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        console = _Console(process.stdout, marker)
        size, grown = 0, started
        while True:
            time.sleep(0.2)
            now = time.time()
            if log.stat().st_size != size:
                size, grown = log.stat().st_size, now
            over = ending.ended_by(ending.BootProgress(
                now - started, size, now - grown,
                None if console.marked is None else now - console.marked), limits)
            if process.poll() is not None or (over and console.marked is None):
                raise trace.TraceError(f'the guest did not come to its marker ({over}); its'
                                       f' console ends with: {console.tail()}')
            if over:
                assert console.marked is not None
                return started, console.marked
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def record(image: Path, name: str, count: int, memory: int = 512,
           tell: Callable[[str], None] = print) -> list[Trace]:
    """Record boots of a qcow2 image one after the other.

    :param count: how many.
    :param memory: of the guest, in MiB.
    :param tell: called with a line for each boot.
    :raises TraceError: if a boot did not come to its end.
    """
    virtual_bytes = inspection.inspect(str(image), 'qcow2').virtual_bytes
    image_hash = file_hash(image)
    accelerator = 'kvm' if acceleration.kvm_works() else 'tcg'
    version = subprocess.run(['qemu-system-x86_64', '--version'], check=True, text=True,
                             capture_output=True).stdout.split()[3]
    machine = {'accelerator': accelerator, 'memory_mib': memory, 'vcpus': 1, 'qemu': version}
    limits = ending.BootLimits(quota=1 << 40, linger=30, silence=120, timeout=600)
    directory = Path(tempfile.mkdtemp(prefix='bcr-rec-', dir='/tmp'))
    traces = []
    try:
        raw = directory / 'raw'
        subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', str(image), str(raw)],
                       check=True)
        for number in range(count):
            work = directory / str(number)
            work.mkdir()
            drive = direct._config_drive(str(work), str(uuid.uuid4()))
            with recorded_disk(raw, work) as (socket, log):
                started, marked = boot(socket, log, accelerator=accelerator, memory=memory,
                                       config_drive=drive, marker=bootconf.DEFAULT_MARKER,
                                       limits=limits)
                events = parse_log(log.read_text())
            traces.append(make_trace(events, started, marked, Header(
                name, image_hash, virtual_bytes, 0, 0.0, 0.0, machine)))
            tell(f'{name}, boot {number}: {traces[-1].header.boot_seconds:.2f} s,'
                 f' {traces[-1].header.boot_requests} requests, {len(events)} in all')
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return traces


def make_trace(events: list[Event], started: float, marked: float, header: Header) -> Trace:
    """Make a trace of a log's events. Pure.

    :param started: when the machine was started, on the events' clock.
    :param marked: when the marker was seen, on the same clock.
    :param header: whose entries of the boot are filled in.
    """
    boot_events = [event for event in events if event.issued <= marked]
    # One that was in flight at the marker is no part of the way there.
    last = max((event.completed for event in boot_events if event.completed <= marked),
               default=started)
    made = Trace(dataclasses.replace(
        header, boot_requests=len(boot_events), boot_seconds=round(marked - started, 6),
        tail=round(max(0.0, marked - last), 6)), trace.from_events(events, started))
    made.check()
    return made


def traces_of(image: Path, name: str, count: int = 2, memory: int = 512) -> list[Trace]:
    """Return an image's traces: kept ones, else recorded now and kept."""
    image_hash = file_hash(image)
    paths = [trace_path(image_hash, number) for number in range(count)]
    with contextlib.suppress(trace.TraceError):
        return [Trace.load(path) for path in paths]
    traces = record(image, name, count, memory)
    for one, path in zip(traces, paths, strict=True):
        one.save(path)
    return traces


def main() -> int:
    """Record and keep the traces of one image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('image', type=Path)
    parser.add_argument('--name', default='image')
    parser.add_argument('--boots', type=int, default=2)
    parser.add_argument('--memory', type=int, default=512, help='MiB')
    options = parser.parse_args()
    for number, one in enumerate(record(options.image, options.name, options.boots,
                                        options.memory)):
        one.save(trace_path(one.header.image_hash, number))
        print(trace.summary(one))
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
