"""A server that began while its cache image came: what it reads, before it is moved and after.

``python -m bench.landing`` has a host boot a server by its cold path, which reads through the
gateway; what the boot read is then read again from the same disk, as it is, and after it stands on
the cache image's file (nova_bootcache/settling/landing.py). A disk on a full local base is beside
it. The recorded boot's requests are played with a tenth of the guest's think times, and the
time of its reads is added up. Prints ratios of medians over the full local base, and the spread.
"""

import argparse
import os
import statistics
from typing import Any

from bench.replay import check, peers
from bench.replay.cluster import Run, cluster
from bench.replay.host import HostChild, Image
from bench.replay.setting import GIGABIT, extents_of, recorded
from bench.replay.trace import READ, Trace
from bootcache import qemuimg
from bootcache.cachelayout import Compression

BEFORE, AFTER = 'through the gateway', 'moved onto the file'
_AGAIN = 'again'
# What such a server has open below its disk: the empty cache image that has given up its place.
_EMPTY = 'empty'
_LITTLE = 1 << 20


class BeganCold(peers.Ours):
    """bootcache: the same server's disk while its cache image comes, and twice after that."""

    name = 'bootcache'
    phases = 'cold', BEFORE, AFTER
    expanded = ()

    def disk(self, host: HostChild, image: Image, phase: str) -> peers.Nodes:
        """Make it at first; then open what was made."""
        if phase != 'cold':
            return peers.chain_nodes(host.directory / peers._OVERLAY, self.direct)
        nodes = super().disk(host, image, phase)
        os.link(host.compute.cache.path(image.image_id), host.directory / _EMPTY)
        return nodes

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Have what came be there, and the server's disk stand where it is to stand."""
        super().prepare(host, image, phase)
        below = {BEFORE: str(host.directory / _EMPTY),
                 AFTER: host.compute.cache.path(image.image_id)}.get(phase)
        if below is not None:
            if (os.path.getsize(below) > _LITTLE) != (phase == AFTER):
                raise RuntimeError(f'{phase}: {below} is not what it is to be')
            qemuimg.set_backing_pointer(str(host.directory / peers._OVERLAY), below, 'qcow2')

    def finish(self, host: HostChild, phase: str) -> None:
        """Leave the disk where it is; a host that is reset loses it."""


class CompressedBeganCold(BeganCold):
    """The same with a compressed cache image."""

    name = 'bootcache zstd'
    phases = 'cold', BEFORE, AFTER
    compression = Compression.ZSTD


class LocalTwice(peers.LocalRaw):
    """The yardstick: a server's disk on a full local base, read anew."""

    phases = '', _AGAIN

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Put the base there once."""
        if phase != _AGAIN:
            super().prepare(host, image, phase)

    def disk(self, host: HostChild, image: Image, phase: str) -> peers.Nodes:
        """Make it, or open it again."""
        if phase != _AGAIN:
            return super().disk(host, image, phase)
        return peers.chain_nodes(host.directory / peers._OVERLAY, self.direct)

    def finish(self, host: HostChild, phase: str) -> None:
        """Leave the disk where it is."""


def reading(run: Run, played: Trace) -> float:
    """Return for how many seconds the reads of a run's one boot were under way, added up."""
    boot = run.boots[0]
    return sum(done - begun for one, begun, done in zip(
        played.boot, boot.issued, boot.completed, strict=True) if one.op == READ)


def measure(name: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, by what was read."""
    path, (profile, played) = recorded(name)
    overhead = round(check.calibrate(), 6)
    found: dict[str, list[float]] = {}
    with cluster(1, GIGABIT) as made:
        images = {kind: made.add_image(path, 'qcow2', played.header.virtual_bytes,
                                       extents_of(profile), compression=kind)
                  for kind in Compression}
        for _round in range(rounds):
            for way in (LocalTwice(), BeganCold(), CompressedBeganCold()):
                for run in made.run(way, [images[way.compression]], [played], 1, scale=0.1,
                                    overhead=overhead):
                    found.setdefault(run.label, []).append(reading(run, played))
    return found


def table(found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return ratios over a local base that is read again: medians, and how far rounds lie. Pure."""
    reference = statistics.median(found[LocalTwice().label(_AGAIN)])
    return [{'what': label, 'ratio': round(statistics.median(seconds) / reference, 2),
             'spread': round((max(seconds) - min(seconds)) / reference, 2)}
            for label, seconds in found.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', 1)[0])
    parser.add_argument('--image', default='debian', help='as tools/images/make.sh calls it')
    parser.add_argument('--rounds', type=int, default=9)
    options = parser.parse_args()
    for row in table(measure(options.image, options.rounds)):
        print(f'{row["what"]:36} {row["ratio"]:6.2f}   spread {row["spread"]:.2f}')


if __name__ == '__main__':
    main()
