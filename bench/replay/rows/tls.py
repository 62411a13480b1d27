"""What TLS between compute host and exporter costs: throughput, CPU time, and a cold boot.

The tap would take TLS off in between: both ways have an exporter of their own past it.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import sums
from bench.replay.cluster import Cluster, cluster
from bench.replay.host import HostChild, Image, daemon_cpu
from bench.replay.peers import Ours
from bench.replay.rows import reading
from bench.replay.rows.reading import OURS, Reading
from bench.replay.setting import GIGABIT, Journal, Setting, extents_of, recorded

NAME = 'tls'
TITLE = 'The block path by TLS, and without'
QUICK = Setting(False, GIGABIT, 0.25, 5, ('debian',))
FULL = Setting(True, GIGABIT, 0.25, 9, ('debian',))
PLAIN, TLS = 'plain', 'TLS'
READ, BOOT = 'reads', 'cold boot'
# What a server reads.
_BYTES = {False: 256 << 20, True: 1 << 30}
_GO_SECONDS = 0.3
_CPU = 'exporter_cpu_seconds', 'gateway_cpu_seconds'


class _Cold(Ours):
    """A host that fetches the cache image."""

    phases = 'cold',


def use(host: HostChild, number: int, certificates: str) -> None:
    """Have the product speak TLS on a host, or not, until it is reset.

    :param number: the host's; not used here.
    :param certificates: their directory; empty for none.
    """
    host.options = {'tls_directory': certificates} if certificates else {}


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    length = _BYTES[setting.full]
    path, traces = recorded(setting.images[0])
    journal = Journal(directory, NAME, {**setting.to_json(traces), 'length': length})
    scratch = Path(tempfile.mkdtemp(prefix='bcr-noise-', dir='/tmp'))
    try:
        digest = reading.make_image(scratch / 'image', length)
        # Without a limit: what is measured are the CPUs.
        with cluster(1, 0) as made:
            image = made.add_image(scratch / 'image', 'raw', length, raw_copy=False)
            for repeat, way in _rounds(setting.repeats):
                line = _read(made, _by(made, image, way), way, length, digest)
                journal.keep({**line, 'repeat': repeat, 'image': 'noise'}, _told(line, length))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    with cluster(1, setting.rate, dilation=setting.dilation) as made:
        image = made.add_image(path, 'qcow2', traces[0].header.virtual_bytes,
                               extents_of(traces[0]), compression=setting.compression[0],
                               raw_copy=False)
        for repeat, way in _rounds(setting.repeats):
            by = _by(made, image, way)
            before = _exporter_cpu(made, way)
            boot, = made.run(_Cold(), [by], [traces[-1]], 1, scale=setting.scale,
                             overhead=journal.overhead, verify=repeat == 0)
            line = {**boot.to_json(), 'label': way, 'what': BOOT, 'exporter_cpu_seconds': round(
                _exporter_cpu(made, way) - before, 4)}
            line['gateway_cpu_seconds'] = line['host_cpu_seconds']
            journal.keep({**line, 'repeat': repeat, 'image': setting.images[0]},
                         _told(line, 0))


def _exporter_cpu(made: Cluster, way: str) -> float:
    return daemon_cpu(made.node.call('direct_pid', way == TLS))


def _rounds(repeats: int) -> list[tuple[int, str]]:
    """Return the ways of all rounds; every other one backwards. Pure."""
    return [(repeat, way) for repeat in range(repeats)
            for way in ((PLAIN, TLS) if repeat % 2 == 0 else (TLS, PLAIN))]


def _by(made: Cluster, image: Image, way: str) -> Image:
    """Return an image as hosts are told of it that read it by TLS, or without; have them do so."""
    answer, certificates = made.node.call('serve_directly', image.image_id, way == TLS)
    made.everywhere(1, use, certificates)
    return Image(image.image_id, {**image.answer, **answer}, image.file_format)


def _read(made: Cluster, image: Image, way: str, length: int, digest: int) -> dict[str, Any]:
    """Read all of an image by the gateway once; the journal's line.

    :raises ReadError: if something else was read.
    """
    point = Reading(OURS, 1, 1, False, length)
    try:
        made.everywhere(1, reading.prepare, [image], point)
        before = _exporter_cpu(made, way)
        found, = made.everywhere(1, reading.read, [image], point, True,
                                 time.monotonic() + _GO_SECONDS)
        exporter = _exporter_cpu(made, way) - before
    finally:
        made.reset(1)
    if found['digests'] != [digest]:
        raise reading.ReadError(f'{way}: a server read something else than the image')
    return {'label': way, 'what': READ, 'hosts': 1, 'seconds': round(found['seconds'][0], 4),
            'exporter_cpu_seconds': round(exporter, 4),
            'gateway_cpu_seconds': round(found['gateway_cpu_seconds'], 4)}


def _told(line: dict[str, Any], length: int) -> str:
    speed = f' {length / line["seconds"] / 1e6:.1f} MB/s' if length else ''
    return (f'{line["what"]:10} {line["label"]:6} {line["seconds"]:7.2f} s{speed}, CPU of exporter'
            f' {line["exporter_cpu_seconds"]:.2f} s, of the host\'s gateway'
            f' {line["gateway_cpu_seconds"]:.2f} s')


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: seconds over those without TLS in the round. Pure."""
    found = []
    for what in (READ, BOOT):
        below = {one['repeat']: one for one in runs if (one['what'], one['label']) == (what, PLAIN)}
        for way in (PLAIN, TLS):
            those = [one for one in runs if (one['what'], one['label']) == (what, way)
                     and one['repeat'] in below]
            if not those:
                continue
            ratio, spread = sums.median_spread(
                [one['seconds'] / below[one['repeat']]['seconds'] for one in those])
            measured = {}
            for name in ('seconds', *_CPU):
                measured[name], measured[f'{name}_spread'] = sums.median_spread(
                    [one[name] for one in those])
            found.append({
                'row': NAME, 'peer': way, 'what': what, 'hosts': 1, 'images': 1, 'ratio': ratio,
                'spread': spread, **measured,
                'bytes_per_second': round(head['setting']['length'] / measured['seconds'])
                if what == READ else None,
                'note': 'ratio: seconds over those without TLS in the same round',
                'run': head['run']})
    return found


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tell what TLS costs; what it may cost is for who runs a cloud to say. Pure."""
    found = []
    for what, text in ((READ, 'time to read by the gateway'), (BOOT, 'time of a cold boot')):
        found += [sums.target(head, f'{text}, TLS over plain', None, row['ratio'],
                              f'spread {row["spread"]}')
                  for row in rows(head, runs) if (row['what'], row['peer']) == (what, TLS)]
    return found


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured. Pure."""
    setting = head['setting']
    return (f'Reads: one server reads {setting["length"] / 1e6:.0f} MB of noise from its disk, in'
            ' requests of 1 MiB, two under way, through gateway and exporter over a link without a'
            ' limit, so that the CPUs are what is measured; nobody has booted the image before, and'
            ' the gateway keeps what it reads. Cold boot: the host fetches the cache image over a'
            f' link of {setting["rate"] / 1e6:.0f} Mbit/s, think times x {setting["scale"]:g}.'
            ' Client certificates are verified, connections are made anew each time. A host has'
            ' one gateway, and it and the exporter have one thread each. In brackets: the spread'
            f' over the rounds. The machine\'s load before was {head["load_before"]:g}.')


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    return (['what', 'way', 'seconds', 'ratio', 'spread', 'MB/s', 'CPU s of exporter',
             'CPU s of gateway'],
            [[row['what'], row['peer'],
              f'{row["seconds"]:.2f} ({row["seconds_spread"]:.2f})', row['ratio'], row['spread'],
              f'{row["bytes_per_second"] / 1e6:.1f}' if row['bytes_per_second'] else '',
              *(f'{row[name]:.2f} ({row[f"{name}_spread"]:.2f})' for name in _CPU)]
             for row in rows])


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """No figure: four lines say it."""
    return []
