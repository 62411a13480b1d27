"""What manyservers and understress share: servers on a host with a disk, booted YOLO's ways."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import peers_yolo, servers, slowdisk, stress, trace
from bench.replay.cluster import Cluster, cluster, remove_stale
from bench.replay.host import Image
from bench.replay.peers import Peer
from bench.replay.setting import Journal, Setting, extents_of, recorded
from bench.replay.slowdisk import SlowDisk
from bench.replay.stress import Group
from bench.replay.trace import Trace
from bootcache import cacheimage
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression

SLOW, FAST = 'hard disk', 'fast disk'
NORMAL, ONE_THEN_OTHERS = 'normal boot', 'one then others'
YOLO = 'YOLO'
MEMORY, WARM, COLD = 'bootcache in memory warm', 'bootcache warm', 'bootcache cold'
OURS = MEMORY, WARM, COLD
ZSTD_MEMORY, ZSTD_WARM, EXPANDED, ZSTD_COLD = (
    'bootcache zstd in memory warm', 'bootcache zstd warm', 'bootcache zstd expanded',
    'bootcache zstd cold')
ZSTD = ZSTD_MEMORY, ZSTD_WARM, EXPANDED, ZSTD_COLD
DISK_STRESS, MEMORY_STRESS = 'fio', 'stress-ng'
_GO_SECONDS = 0.3
_MEMORY = Path('/dev/shm')


@dataclasses.dataclass(frozen=True)
class Point:
    """One thing to measure.

    :ivar label: the way of booting.
    :ivar medium: SLOW or FAST, of the host.
    :ivar servers: how many.
    :ivar distinct: whether each has an image of its own.
    :ivar stress: what else the host does: nothing, DISK_STRESS or MEMORY_STRESS.
    :ivar level: requests that are always under way on its disk, or MiB of memory that are left.
    """

    label: str
    medium: str
    servers: int
    distinct: bool
    stress: str = ''
    level: int = 0


class Stage:
    """A host with a disk, its images, and what peers need.

    :ivar disk: its slow disk, None if it is fast.
    """

    def __init__(self, made: Cluster, disk: SlowDisk | None, place: Path, scratch: Path,
                 recording: tuple[Path, list[Trace]], count: int, group: Group | None,
                 compression: Sequence[Compression]):
        self.made = made
        self.group = group
        self.disk = disk
        self.place = place
        self.scratch = scratch
        file, (profile, self.trace) = recording
        extents = extents_of(profile)
        size = self.trace.header.virtual_bytes
        self.images: dict[Compression, list[Image]] = {}
        self.boot_images: dict[str, str] = {}
        for kind in dict.fromkeys((Compression.NONE, *compression)):
            self.images[kind] = []
            for number in range(count):
                image = made.add_image(file, 'qcow2', size, extents, compression=kind)
                self.images[kind].append(dataclasses.replace(
                    image, answer={**image.answer, 'local_base': str(place / f'base{number}')}))
        for number, image in enumerate(self.images[Compression.NONE]):
            path = scratch / f'boot{number}'
            cacheimage.build(Base(str(file), 'qcow2', size), extents, str(path),
                             quota=1 << 30, cluster_bytes=65536, backing_uri=None)
            self.boot_images[image.image_id] = str(path)

    def peer(self, label: str) -> Peer:
        """Return the peer of a label."""
        return {NORMAL: peers_yolo.Normal, ONE_THEN_OTHERS: peers_yolo.OneThenOthers,
                YOLO: lambda: peers_yolo.Yolo(self.boot_images),
                MEMORY: peers_yolo.OursInMemory, WARM: peers_yolo.OursWarm,
                COLD: peers_yolo.OursCold, ZSTD_MEMORY: peers_yolo.OursInMemoryCompressed,
                ZSTD_WARM: peers_yolo.OursWarmCompressed, EXPANDED: peers_yolo.OursExpanded,
                ZSTD_COLD: peers_yolo.OursColdCompressed}[label]()

    def _fast(self) -> contextlib.AbstractContextManager[None]:
        return self.disk.unlimited() if self.disk is not None else contextlib.nullcontext()

    def _stressed(self, point: Point) -> contextlib.AbstractContextManager[None]:
        if point.stress == DISK_STRESS:
            return stress.busy_disk(self.place / 'stress', point.level)
        if point.stress == MEMORY_STRESS:
            assert self.group is not None
            return self.group.squeezed(point.level << 20)
        return contextlib.nullcontext()

    def measure(self, point: Point, setting: Setting, overhead: float,
                verify: bool) -> dict[str, Any]:
        """Boot once; the journal's line."""
        made, peer = self.made, self.peer(point.label)
        mine = self.images[peer.compression]
        images = [mine[number if point.distinct else 0] for number in range(point.servers)]
        options = {}
        if point.label in (MEMORY, ZSTD_MEMORY):
            options = {'compute_memory_directory': str(self.scratch / 'tier'),
                       'compute_memory_quota': '2GiB'}
            (self.scratch / 'tier').mkdir(exist_ok=True)
        try:
            with self._fast():
                made.everywhere(1, servers.prepare, peer, images, peer.phases[0], options)
                if self.disk is not None:
                    self.disk.drop_cache()
            with self._stressed(point):
                made.traffic(1)
                go = time.monotonic() + _GO_SECONDS
                found = made.everywhere(
                    1, servers.boot, [self.trace] * point.servers,
                    point.label == ONE_THEN_OTHERS, setting.scale, overhead, verify, go,
                    patience=1800)[0]
                traffic = made.traffic(1)
        finally:
            with self._fast(), contextlib.ExitStack() as stack:
                stack.callback(made.reset, 1)
                made.everywhere(1, servers.finish)
            shutil.rmtree(self.scratch / 'tier', ignore_errors=True)
        return _line(point, found, traffic)


def ours(compression: Sequence[Compression]) -> tuple[str, ...]:
    """Return the labels of bootcache's ways with cache images that are stored so. Pure."""
    return tuple(label for kind, labels in ((Compression.NONE, OURS), (Compression.ZSTD, ZSTD))
                 for label in labels if kind in compression)


def _line(point: Point, found: dict[str, Any], traffic: dict[str, Any]) -> dict[str, Any]:
    count = point.servers

    def mean(name: str) -> float:
        return round(sum(found[name]) / count, 4)

    return {**dataclasses.asdict(point), 'hosts': 1, 'seconds': round(max(found['each']), 4),
            'mean': mean('each'), 'each': [round(one, 3) for one in found['each']],
            'waited': mean('waited'), 'written': mean('written'),
            'disk_seconds': mean('disks'),
            **{name: round(found[name] / count, 4) for name in
               ('player_cpu_seconds', 'chain_cpu_seconds', 'host_cpu_seconds')},
            'refused': found['refused'], 'machine_busy': round(found['machine_busy'], 3),
            'digests': sorted(set(found['digests'])), 'host_bytes': 0, 'copied_bytes': 0,
            'traffic': {kind: dataclasses.asdict(one) for kind, one in traffic.items()}}


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Make a directory in memory; cluster.py removes it if this is killed."""
    remove_stale(_MEMORY)
    path = _MEMORY / f'bcr-{os.getpid()}-node'
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def stage(medium: str, count: int, setting: Setting,
          recording: tuple[Path, list[Trace]], stressed: bool = False) -> Iterator[Stage]:
    """Make a host with some images on its disk.

    :param medium: of the disk.
    :param count: of the images: copies, each with its own place.
    :param stressed: whether it can be put under stress.
    """
    size = recording[1][1].header.virtual_bytes

    def fill(path: Path) -> None:
        for number in range(count):
            subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', str(recording[0]),
                            str(path / f'base{number}')], check=True)
        if stressed:
            stress.make_file(path / 'stress')

    with contextlib.ExitStack() as stack:
        # A disk that is nearly empty has nothing that lies apart.
        disk = stack.enter_context(slowdisk.slow_disk(
            2 * count * size + (8 << 30), fill, slowdisk.ACCESS_SECONDS * setting.dilation,
            int(slowdisk.RATE / setting.dilation))) \
            if medium == SLOW else None
        scratch = stack.enter_context(_scratch())
        if disk is None:
            fill(scratch)
        group = stack.enter_context(stress.group()) if stressed else None
        made = stack.enter_context(cluster(1, setting.rate, dilation=setting.dilation,
                                           media=disk.path if disk else _MEMORY))
        if group is not None:
            group.add(made.everywhere(1, servers.process))
        yield Stage(made, disk, disk.path if disk else scratch, scratch, recording, count, group,
                    setting.compression)


def run(name: str, setting: Setting, directory: Path, points: Sequence[Point], count: int,
        stressed: bool = False) -> None:
    """Measure all points, and leave the journal in the report's directory.

    :param count: how many images there are.
    :param stressed: whether there is stress in them.
    """
    recording = recorded(setting.images[0])
    played = recording[1][1]
    ideal = trace.ideal_seconds(played.boot, played.header.tail, setting.scale,
                                [0.0] * len(played.boot))
    journal = Journal(directory, name, {**setting.to_json([played]),
                                        'think_seconds': round(ideal, 4)})
    for medium in (SLOW, FAST):
        chosen = [point for point in points if point.medium == medium]
        if not chosen:
            continue
        with stage(medium, count, setting, recording, stressed) as made:
            rates = dataclasses.asdict(made.disk.rates()) if made.disk is not None else {}
            for repeat in range(setting.repeats):
                for point in chosen if repeat % 2 == 0 else reversed(chosen):
                    line = made.measure(point, setting, journal.overhead, repeat == 0)
                    journal.keep({**line, 'repeat': repeat, 'disk': rates,
                                  'image': setting.images[0]},
                                 f'{point.label:25} {point.servers:2} servers {point.medium}'
                                 f' {"distinct" if point.distinct else "same":8}'
                                 f' {point.stress} {point.level or ""} {line["seconds"]:7.2f} s,'
                                 f' mean {line["mean"]:.2f} s, disks {line["disk_seconds"]:.2f} s,'
                                 f' machine busy {line["machine_busy"]:.0%}')
