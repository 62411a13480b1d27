"""SC13 figures 3, 12 and 14: many hosts, 1 to many images, a storage node with a slow disk.

The storage node's bases and cache images are on the disk of slowdisk.py, from where the product's
exporter reads them; its page cache is dropped before each phase. Its memory tier is a tmpfs.
"""

import contextlib
import dataclasses
import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, netns, peers, peers_storage, slowdisk, sums
from bench.replay.cluster import Cluster, Run, cluster
from bench.replay.host import Image
from bench.replay.setting import BOTH, GIGABIT, Journal, Setting, extents_of, recorded
from bench.replay.slowdisk import SlowDisk
from bench.replay.trace import Trace
from bootcache.cachelayout import Compression

NAME = 'many-images'
TITLE = 'Many images, a slow disk in the storage node (SC13, figures 3, 12 and 14)'
WARM, COLD, FIRST = 'bootcache warm', 'bootcache cold', 'bootcache first'
MEMORY = 'bootcache in storage memory cold'
ZSTD_WARM, ZSTD_COLD, ZSTD_MEMORY, EXPANDED = (
    'bootcache zstd warm', 'bootcache zstd cold', 'bootcache zstd in storage memory cold',
    'bootcache zstd expanded')
SC13_MEMORY = 'SC13 in storage memory warm'
REFERENCE = 'local raw'
DISK_TIER, MEMORY_TIER = 'disk', 'memory'
# All hosts share this machine's CPUs: a cold boot costs them more than half a second whatever its
# think times. More hosts than these would measure the CPUs, or take hours in a slower world; with
# ``--hosts 64`` and more CPUs there are 64 images.
QUICK = Setting(False, GIGABIT, 0.1, 1, ('small',), (4,), compression=BOTH)
FULL = Setting(True, GIGABIT // 2, 1.2, 1, ('small',), (16,), compression=BOTH)
_IMAGES = {False: (1, 4), True: (1, 4, 16, 64)}
_MEMORY = Path('/dev/shm')
_SECTOR = 512


@dataclasses.dataclass(frozen=True)
class Point:
    """One thing to measure.

    :ivar peer: the way of booting.
    :ivar images: how many; the hosts take them in turn.
    :ivar tier: where the storage node has its cache images.
    """

    peer: peers.Peer
    images: int
    tier: str


def counts(full: bool, hosts: int) -> list[int]:
    """Return the numbers of images; no more than there are hosts. Pure."""
    return sorted({min(count, hosts) for count in _IMAGES[full]})


def points(full: bool, numbers: Sequence[int],
           compression: Sequence[Compression] = BOTH) -> Iterator[Point]:
    """Give what is measured in a round. Pure."""
    def measured(*ways: peers.Peer) -> list[peers.Peer]:
        return [way for way in ways if way.compression in compression]

    # Three times a round: how much these differ is the noise of this machine.
    yield Point(peers.LocalRaw(), 1, DISK_TIER)
    for count in numbers:
        first = [peers.OursFirst()] if full else []
        for peer in (peers.OnDemand(), peers.Sc13(),
                     *measured(peers.Ours(), peers.OursCompressed()), *first):
            yield Point(peer, count, DISK_TIER)
    yield Point(peers.LocalRaw(), 1, DISK_TIER)
    for count in numbers:
        if full or count == max(numbers):
            yield Point(peers_storage.Sc13StorageMemory(), count, MEMORY_TIER)
        for peer in measured(peers_storage.OursStorageMemory(),
                             peers_storage.OursStorageMemoryCompressed()):
            yield Point(peer, count, MEMORY_TIER)
    yield Point(peers.LocalRaw(), 1, MEMORY_TIER)


class Stage:
    """Hosts, and a storage node with a slow disk and a memory tier.

    :param tier: directory in memory.
    """

    def __init__(self, made: Cluster, disk: SlowDisk, tier: Path, traces: list[Trace], count: int,
                 compression: Sequence[Compression]):
        self.made, self.disk, self.tier = made, disk, tier
        profile, self.trace = traces
        self._current = DISK_TIER
        size = self.trace.header.virtual_bytes
        # The other ways read the uncompressed ones.
        self.images: dict[Compression, list[Image]] = {}
        with disk.unlimited():
            for kind in dict.fromkeys((Compression.NONE, *compression)):
                self.images[kind] = [made.add_image(
                    disk.path / f'base{number}', 'qcow2', size, extents_of(profile),
                    place=disk.path, raw_copy=number == 0, compression=kind)
                    for number in range(count)]

    def _go_to(self, tier: str) -> None:
        if tier != self._current:
            with self.disk.unlimited():
                self.made.node.call('serve_from', [
                    one.image_id for images in self.images.values() for one in images],
                                    str(self.tier if tier == MEMORY_TIER else self.disk.path))
            self._current = tier

    def measure(self, point: Point, repeat: int, setting: Setting, journal: Journal) -> None:
        """Boot all hosts, in each of the peer's phases, and keep what comes of it."""
        self._go_to(point.tier)
        self.disk.drop_cache()
        before = _served(self.disk)

        def seen(run: Run) -> None:
            nonlocal before
            after = _served(self.disk)
            journal.add(run, repeat=repeat, image=setting.images[0], images=point.images,
                        tier=point.tier, disk_requests=after[0] - before[0],
                        disk_bytes=after[1] - before[1])
            self.disk.drop_cache()
            before = _served(self.disk)

        images = self.images[point.peer.compression][:point.images]
        self.made.run(point.peer, images, [self.trace], setting.hosts[0],
                      scale=setting.scale, overhead=journal.overhead, verify=repeat == 0,
                      seen=seen)


def _served(disk: SlowDisk) -> tuple[int, int]:
    """Return what the disk has read so far: requests, bytes."""
    fields = Path('/sys/class/block', Path(disk.device).name, 'stat').read_text().split()
    return int(fields[0]), int(fields[2]) * _SECTOR


@contextlib.contextmanager
def stage(setting: Setting, count: int, recording: tuple[Path, list[Trace]]) -> Iterator[Stage]:
    """Make hosts and a storage node, and remove them whatever happens."""
    path = recording[0]

    def fill(place: Path) -> None:
        for number in range(count):
            shutil.copyfile(path, place / f'base{number}')

    # What a killed run left behind may still have its disk open.
    netns.remove_stale()
    # A disk that is nearly empty has nothing that lies apart.
    size = 2 * count * recording[1][1].header.virtual_bytes + (8 << 30)
    with slowdisk.slow_disk(size, fill, slowdisk.ACCESS_SECONDS * setting.dilation,
                            int(slowdisk.RATE / setting.dilation)) as disk, \
            cluster(max(setting.hosts), setting.rate, storage=_MEMORY,
                    dilation=setting.dilation) as made:
        tier = made.storage / 'tier'
        tier.mkdir()
        yield Stage(made, disk, tier, recording[1], count, setting.compression)


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    recording = recorded(setting.images[0])
    numbers = counts(setting.full, setting.hosts[0])
    with stage(setting, max(numbers), recording) as made:
        journal = Journal(directory, NAME, {
            **setting.to_json([recording[1][1]]), 'numbers': numbers,
            'disk': dataclasses.asdict(made.disk.rates())})
        every = list(points(setting.full, numbers, setting.compression))
        for repeat in range(setting.repeats):
            for point in every if repeat % 2 == 0 else reversed(every):
                made.measure(point, repeat, setting, journal)


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: boot times over those of as many hosts with a local base. Pure."""
    found = sums.rows(head, runs, NAME, ('image', 'label', 'hosts', 'images'),
                      lambda one: one['label'] == REFERENCE,
                      'all hosts at the same time, images in turn; mean of the hosts\' boot times')
    for row in found:
        those = [one for one in runs if (one['label'], one['images']) == (row['peer'],
                                                                          row['images'])]
        for name in ('disk_requests', 'disk_bytes', 'slowest', 'host_cpu_seconds'):
            row[name] = statistics.median(one[name] for one in those)
        row['cpu_share'] = round(statistics.median(_cpu_share(head, one) for one in those), 3)
    return found


def _cpu_share(head: dict[str, Any], one: dict[str, Any]) -> float:
    """Return how much of this machine's CPUs the hosts used until the slowest had booted."""
    spent = sum(one[f'{who}_cpu_seconds'] for who in ('player', 'chain', 'host'))
    return float(spent * one['hosts'] / (one['slowest'] * head['cpus']))


def _ratio(runs: Sequence[dict[str, Any]], label: str, images: int, other: str,
           images_of_other: int) -> tuple[float, float, int] | None:
    """Return one way's time over another's, the noise of that, and the number of rounds.

    Of one round the noise is how much the boots from a full local base differed in it.
    """
    found = sums.ratios(
        runs, lambda one: (one['label'], one['images']) == (label, images),
        lambda one: (one['label'], one['images']) == (other, images_of_other))
    if not found:
        return None
    value, spread = sums.median_spread(found)
    return value, spread if len(found) > 1 else _noise(runs), len(found)


def _noise(runs: Sequence[dict[str, Any]]) -> float:
    same = [one['seconds'] for one in runs if one['label'] == REFERENCE]
    return round((max(same) - min(same)) / statistics.median(same), 4)


def _profiles(runs: Sequence[dict[str, Any]], *points: tuple[str, int]) -> str:
    """Tell where the time of ways went, each with its number of images."""
    return ''.join(
        f'; {label}, {images} images: ' + sums.profile(
            [one for one in runs if (one['label'], one['images']) == (label, images)])
        for label, images in points)


def _never_slower(head: dict[str, Any], runs: Sequence[dict[str, Any]], ours: str,
                  other: str) -> dict[str, Any]:
    """Return the target that one way is nowhere slower than another, beyond the noise. Pure."""
    found = [(*one, count) for count in head['setting']['numbers']
             if (one := _ratio(runs, ours, count, other, count)) is not None]
    value, noise, rounds, count = max(found, key=lambda one: one[0] - one[1])
    bound = round(1 + max(noise, sums.LEAST_NOISE), 4)
    reason = f'{count} images, noise {noise} over {rounds} rounds'
    if value > bound:
        reason += _profiles(runs, (ours, count), (other, count))
    return sums.target(head, f'{ours} over {other}, at worst', bound, value, reason)


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    most, least = max(head['setting']['numbers']), min(head['setting']['numbers'])
    digests = {digest for one in runs for digest in one['digests'] if digest}
    spared = sum(one['disk_bytes'] for one in runs if one['label'] in (
        WARM, MEMORY, ZSTD_WARM, EXPANDED, ZSTD_MEMORY))
    found = [
        sums.target(head, 'contents that boots of one image have read', 1, len(digests)),
        sums.target(head, 'bytes of the base read by warm boots', 0,
                    sum(one['traffic'].get('base', {}).get('bytes', 0) for one in runs
                        if one['label'] in (WARM, ZSTD_WARM, EXPANDED))),
        sums.target(head, 'MB read from the storage node\'s disk by warm boots, and by cold ones'
                    ' from its memory', 0, round(spared / 1e6, 1),
                    f'{spared} bytes; the file system may read a block of its own')]
    for label, wanted in ((WARM, 1.02), (EXPANDED, 1.02), (MEMORY, 1.02), (ZSTD_MEMORY, 1.02),
                          (COLD, None), (ZSTD_COLD, None), ('on demand', None),
                          ('SC13 warm', None), ('SC13 cold', None), (SC13_MEMORY, None)):
        one = _ratio(runs, label, most, label, least)
        if one is not None:
            value, noise, rounds = one
            bound = None if wanted is None else round(max(wanted, 1 + noise), 4)
            reason = f'noise {noise} over {rounds} rounds'
            if bound is not None and value > bound:
                reason += _profiles(runs, (label, most), (label, least))
            found.append(sums.target(head, f'{label}, {most} images over {least}', bound, value,
                                     reason))
    for warm in (WARM, EXPANDED):
        local = _ratio(runs, warm, most, REFERENCE, 1)
        if local is None:
            continue
        bound = round(max(1.02, 1 + local[1]), 4)
        reason = f'noise {local[1]} over {local[2]} rounds'
        if local[0] > bound:
            reason += _profiles(runs, (warm, most), (warm, least), (REFERENCE, 1))
        found.append(sums.target(
            head, f'{"warm" if warm == WARM else warm} over full local raw, {most} images', bound,
            local[0], reason))
    for ours, others in ((WARM, ('on demand', 'SC13 warm', SC13_MEMORY)),
                         (EXPANDED, ('on demand', 'SC13 warm', SC13_MEMORY)),
                         (COLD, ('on demand', 'SC13 cold')),
                         (ZSTD_COLD, ('on demand', 'SC13 cold')),
                         (FIRST, ('on demand', 'SC13 cold')),
                         (MEMORY, ('on demand', 'SC13 cold', SC13_MEMORY, COLD)),
                         (ZSTD_MEMORY, ('on demand', 'SC13 cold', SC13_MEMORY, ZSTD_COLD))):
        found += [_never_slower(head, runs, ours, other) for other in others
                  if any(one['label'] == ours for one in runs)]
    return found + sums.compressed(head, runs, lambda one: (one['image'], one['images']),
                                   lambda one: f'{one["images"]} images', _noise(runs))


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured. Pure."""
    setting, disk = head['setting'], head['setting']['disk']
    slower = setting['dilation']
    return (f'{setting["hosts"][0]} hosts start a server each at the same time, of 1 to'
            f' {max(setting["numbers"])} images, which they take in turn (the paper has 64 hosts;'
            f' {head["cpus"]} CPUs that all hosts share here do no more). Links of'
            f' {setting["rate"] / 1e6:.0f} Mbit/s, think times x {setting["scale"]:g}: it stands'
            f' for {setting["stands_for"]}'
            + (f', and all times are {slower:g} times longer' if slower > 1 else '')
            + '. The images are distinct files on the storage node\'s disk: a block device with'
            f' the timing of a hard disk ({8 * slower:g} ms for an access, {100 / slower:g} MB/s),'
            f' measured in this run to do {disk["random"]:.0f} random reads of 4 KiB a second, and'
            f' {disk["sequential"] / 1e6:.0f} MB/s in sequence. Its page cache is dropped before'
            ' each phase. Ratios are over the boot time of as many hosts that have the full base'
            ' on them, which is measured three times a round: where there is but one round, the'
            ' spread of these is taken for the noise.')


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    return (['way', 'images', 'ratio', 'spread', 'seconds', 'slowest host', 'base, MB',
             'cache images, MB', 'read from the storage node\'s disk, MB', 'in requests',
             'of this machine\'s CPUs'],
            [[row['peer'], row['images'], row['ratio'], row['spread'], row['seconds'],
              row['slowest'], *(f'{row[name] / 1e6:.1f}' for name in (
                  'base_bytes', 'cache_bytes', 'disk_bytes')), round(row['disk_requests']),
              f'{row["cpu_share"]:.0%}'] for row in rows])


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time over the number of images, and what the disk read; names and captions."""
    hosts = head['setting']['hosts'][0]
    made = []
    reading = {row['peer'] for row in rows if row['disk_bytes']}
    for kind, title, up in (
            ('time', f'Boot time when {hosts} hosts start servers of 1 to many images',
             'boot time / that of a full local base'),
            ('disk', f'What the storage node\'s disk reads while {hosts} hosts boot',
             'MB read from the disk')):
        figure, axes = figures.canvas(title, 'images that the servers share', up)
        axes.set_xscale('log', base=2)
        if kind == 'time':
            figures.logarithmic(axes)
            axes.axhline(1, color='black', linewidth=0.8, linestyle=':')
        mine = [row for row in rows if row['peer'] != REFERENCE
                and (kind == 'time' or row['peer'] in reading)]
        # What lies upon what is read on demand is dashed, so that both are seen.
        for peer in reversed(figures.order(row['peer'] for row in mine)):
            figures.line(axes, peer, [
                (row['images'], *((row['ratio'], row['spread']) if kind == 'time' else
                                  (row['disk_bytes'] / 1e6, 0)))
                for row in mine if row['peer'] == peer])
        numbers = head['setting']['numbers']
        axes.set_xticks(numbers, [str(number) for number in numbers])
        figure.legend(fontsize=7, loc='outside right upper', reverse=True)
        figures.save(figure, directory / f'many-images-{kind}.svg')
        made.append((f'many-images-{kind}.svg', 'Lower is better. ' + (
            'Bars: spread over the rounds; 1: all hosts have the full base.' if kind == 'time'
            else 'Counted at the disk, all hosts together; its page cache was empty. The other ways'
            ' read nothing from it.')))
    return made
