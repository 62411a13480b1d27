"""What all rows share: the setting of a run, its images, and how runs are repeated and kept."""

import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import check, record, trace
from bench.replay.cluster import Cluster, Run
from bench.replay.host import Image
from bench.replay.node import PRODUCTS_OWN
from bench.replay.peers import Peer
from bench.replay.trace import Trace
from bootcache.cachelayout import Compression

TOP = Path(__file__).resolve().parents[2]
GIGABIT = 1_000_000_000
# Of rows that show what it changes.
BOTH = tuple(Compression)


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a row is measured.

    :ivar full: whether all of the papers' points are measured, or those of a few minutes.
    :ivar rate: of each link, bits a second.
    :ivar scale: factor of the recorded think times.
    :ivar repeats: how often each point is measured.
    :ivar images: names of tools/images/make.sh or catalogue.sh that are booted.
    :ivar hosts: how many hosts boot at the same time.
    :ivar copies: of these, where the whole image is copied to each host as well: that takes hours
        with many, and grows with the hosts and nothing else.
    :ivar compression: how cache images are stored; each of them is measured, beside each other, in
        rows that compare them. The others take the first one.
    """

    full: bool
    rate: int
    scale: float
    repeats: int
    images: tuple[str, ...]
    hosts: tuple[int, ...] = (1,)
    copies: tuple[int, ...] = ()
    compression: tuple[Compression, ...] = (PRODUCTS_OWN,)

    @property
    def dilation(self) -> float:
        """How many times slower than with links of 1 Gbit/s everything is."""
        return GIGABIT / self.rate

    def to_json(self, traces: Sequence[Trace]) -> dict[str, Any]:
        """Return it for a report, with what it stands for."""
        return {**dataclasses.asdict(self), 'dilation': self.dilation,
                'stands_for': 'links of 1 Gbit/s and guests that boot from a disk without delay in '
                + ', '.join(
                    f'{one["think_seconds"] * self.scale / self.dilation:.2f} s ({one["image"]})'
                    for one in map(trace.summary, traces)),
                'traces': [trace.summary(one) for one in traces]}


# What tools/images/make.sh makes; the other names are those of its catalogue.
_OWN_IMAGES = ('small', 'debian')


def image_file(name: str) -> Path:
    """Return a guest image, made where it is not there yet.

    :raises subprocess.CalledProcessError: if there is no image of that name, or it cannot be made.
    """
    tool = 'make.sh' if name in _OWN_IMAGES else 'catalogue.sh'
    made = subprocess.run([str(TOP / 'tools' / 'images' / tool), name], check=True, text=True,
                          stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return Path(made.stdout.strip())


def catalogue(cached: bool = False) -> list[str]:
    """Return the names of the catalogue's images.

    :param cached: those that need no making.
    """
    said = subprocess.run([str(TOP / 'tools' / 'images' / 'catalogue.sh'),
                           '--cached' if cached else '--list'], check=True, text=True,
                          stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return said.stdout.split()


_MEMORY = {'small': 256}


def recorded(name: str, count: int = 2) -> tuple[Path, list[Trace]]:
    """Return an image with its traces: that of cache images' boot, and one to be replayed.

    :param count: 1: the former alone.
    """
    path = image_file(name)
    return path, record.traces_of(path, name, count, _MEMORY.get(name, 512))


def extents_of(one: Trace) -> list[Any]:
    """Return what a profile boot's recorder would report of a trace."""
    return trace.read_extents(one.requests, 4096, one.header.virtual_bytes)


def load() -> float:
    """Return the machine's load average of the last minute."""
    return round(os.getloadavg()[0], 2)


class Journal:
    """The runs of one row, one JSON line each, written as they end.

    :param directory: of the report.
    :param row: its name.
    """

    def __init__(self, directory: Path, row: str, setting: dict[str, Any]):
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f'{row}.jsonl'
        self.began = time.monotonic()
        self.overhead = round(check.calibrate(), 6)
        commit = subprocess.run(['git', '-C', str(TOP), 'describe', '--always', '--dirty'],
                                text=True, capture_output=True, check=False).stdout.strip()
        moment = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
        self.head = {'run': f'{row} {moment} {commit}', 'row': row, 'setting': setting,
                     'cpus': os.cpu_count(), 'kernel': platform.release(), 'load_before': load(),
                     'player_overhead': self.overhead}
        self.path.write_text(json.dumps(self.head) + '\n')

    def add(self, run: Run, **more: Any) -> None:
        """Keep a run.

        :param more: what tells it apart: ``repeat``, ``image`` and the like.
        """
        wire = ', '.join(f'{kind} {one.bytes / 1e6:.1f} MB' for kind, one in run.traffic.items())
        self.keep({**run.to_json(), **more}, f'{run.label:16} {len(run.boots):3} hosts'
                  f' {run.seconds:8.2f} s  {wire} {more}')

    def keep(self, line: dict[str, Any], told: str) -> None:
        """Keep a measurement that is no boot.

        :param told: of it to whoever waits.
        """
        with open(self.path, 'a') as stream:
            stream.write(json.dumps({**line, 'load': load()}) + '\n')
        print(f'{time.monotonic() - self.began:6.0f} s  {told}', file=sys.stderr, flush=True)


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a journal back: its head and its runs."""
    head, *runs = (json.loads(line) for line in path.read_text().splitlines())
    return head, runs


@dataclasses.dataclass(frozen=True)
class Point:
    """One thing to measure: a peer with its image, on some hosts."""

    peer: Peer
    image: Image
    trace: Trace
    hosts: int
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


def interleaved(points: Sequence[Point], repeats: int) -> Iterator[tuple[int, Point]]:
    """Give each point once in every round, every other round backwards."""
    for repeat in range(repeats):
        for point in points if repeat % 2 == 0 else reversed(points):
            yield repeat, point


def measure(made: Cluster, points: Sequence[Point], setting: Setting, journal: Journal) -> None:
    """Measure all points, and keep what comes of them."""
    for repeat, point in interleaved(points, setting.repeats):
        # What is read is compared in the first round only: it costs the player a fifth of its time.
        for run in made.run(point.peer, [point.image], [point.trace], point.hosts,
                            scale=setting.scale, overhead=journal.overhead,
                            verify=repeat == 0):
            journal.add(run, repeat=repeat, image=point.trace.header.image, **point.more)
