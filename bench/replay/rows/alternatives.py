"""Today's alternatives: what can be installed and does the same job, on the same replayed boots."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, peers, peers_today, sums
from bench.replay.cluster import cluster
from bench.replay.peers_today import ANOTHER
from bench.replay.setting import (
    GIGABIT,
    Journal,
    Point,
    Setting,
    extents_of,
    measure,
    recorded,
)

NAME = 'alternatives'
TITLE = 'Today\'s alternatives'
WARM, COLD, FIRST = 'bootcache warm', 'bootcache cold', 'bootcache first'
REFERENCE = 'local raw'
# Think times of guests under KVM, who boot in a second or two: those that were recorded ran under
# TCG. Where several hosts share this machine's CPUs the world is slowed down.
QUICK = Setting(False, GIGABIT, 0.1, 2, ('small',), (1,))
FULL = Setting(True, GIGABIT // 2, 0.3, 3, ('small',), (1, 8))
# Of each: what the first server of a host meets, and what the next one does. None: it is the same.
_WAYS: dict[str, tuple[str, str | None]] = {
    'local raw': ('local raw', None), 'on demand': ('on demand', None),
    **{name: (f'{name} cold', f'{name} warm') for name in (
        'nbdkit cow', 'nbdkit cache', 'qemu-img convert', 'qemu-img convert to qcow2')},
    'QEMU copy-on-read': ('QEMU copy-on-read cold', f'QEMU copy-on-read {ANOTHER}'),
    'bootcache, nobody has\nbooted the image yet': (FIRST, None), 'bootcache': (COLD, WARM)}


def ways(full: bool) -> list[peers.Peer]:
    """Return what is compared, in its order in a round."""
    return [peers.LocalRaw(), peers.Ours(), peers.OnDemand(), peers_today.NbdkitCow(),
            peers_today.NbdkitCache(), peers.OursFirst(), peers_today.CopyOnRead(),
            peers_today.ConvertRaw(), *([peers_today.ConvertQcow2()] if full else [])]


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    images = [recorded(name) for name in setting.images]
    journal = Journal(directory, NAME, {
        **setting.to_json([traces[1] for _path, traces in images]),
        'not_measured': {'dm-clone': peers_today.dm_clone()}})
    with cluster(max(setting.hosts), setting.rate, dilation=setting.dilation) as made:
        points = []
        for path, (profile, played) in images:
            image = made.add_image(path, 'qcow2', played.header.virtual_bytes,
                                   extents_of(profile), compression=setting.compression[0])
            points += [Point(way, image, played, hosts) for hosts in setting.hosts
                       for way in ways(setting.full)]
        measure(made, points, setting, journal)


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: boot times over that of one host with a full local base. Pure."""
    found = sums.rows(head, runs, NAME, ('image', 'label', 'hosts'),
                      lambda one: one['label'] == REFERENCE and one['hosts'] == 1,
                      'all hosts at the same time; mean of the hosts\' boot times')
    for row in found:
        row['host_cpu_seconds'] = round(statistics.median(
            one['host_cpu_seconds'] for one in runs if (one['image'], one['label'], one['hosts'])
            == (row['image'], row['peer'], row['hosts'])), 4)
    return [*found, *(
        {'row': NAME, 'peer': name, 'ratio': None, 'note': f'not measured: {reason}',
         'run': head['run']} for name, reason in head['setting']['not_measured'].items())]


def _labels(which: int) -> Iterator[str]:
    """Give the others' labels of the first server of a host (0), or of the next one (1)."""
    for name, labels in _WAYS.items():
        label = labels[which] or labels[0]
        if name != REFERENCE and label not in (WARM, COLD, FIRST):
            yield label


def sent(one: dict[str, Any]) -> float:
    """Return the bytes that the storage node sent to a host, of whatever kind."""
    return float(sum(kind['bytes'] for kind in one['traffic'].values())
                 + one['copied_bytes']) / one['hosts']


def _base(one: dict[str, Any]) -> int:
    return int(one['traffic'].get('base', {}).get('bytes', 0))


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    digests = {(one['image'], digest) for one in runs for digest in one['digests'] if digest}
    colds = set(_labels(0))
    least = min((_base(one) / one['hosts'], one['label']) for one in runs if one['label'] in colds)
    found = [
        sums.target(head, 'contents that boots of one image have read', 1,
                    len(digests) / len({one['image'] for one in runs})),
        sums.target(head, 'bytes of the base read by warm boots', 0,
                    sum(_base(one) for one in runs if one['label'] == WARM)),
        sums.target(head, 'MB of the base read by a cold boot', round(least[0] / 1e6, 2),
                    round(max(_base(one) / one['hosts'] for one in runs
                              if one['label'] == COLD) / 1e6, 2),
                    f'a host, at worst; the least of the others: {least[1]}'),
        sums.target(head, 'MB from the storage node for a cold boot', None,
                    round(max(sent(one) for one in runs if one['label'] == COLD) / 1e6, 2),
                    'a host, at worst; the cache image included, which has what other boots read'
                    ' as well. Others: ' + ', '.join(
                        f'{label} {max(values) / 1e6:.1f}' for label in _labels(0)
                        if (values := [sent(one) for one in runs if one['label'] == label])))]
    for which, ours in ((1, WARM), (0, COLD), (0, FIRST)):
        found += [sums.never_slower(head, runs, ours, other) for other in _labels(which)
                  if any(one['label'] == other for one in runs)]
    return found


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured. Pure."""
    setting = head['setting']
    missing = '; '.join(f'{name}: {reason}' for name, reason in setting['not_measured'].items())
    return (f'Links of {setting["rate"] / 1e6:.0f} Mbit/s, think times x {setting["scale"]:g}: it'
            f' stands for {setting["stands_for"]}, and all times are {setting["dilation"]:g} times'
            ' longer. Cold is the first server of the image on a host, warm the next one; nothing'
            ' but the image is on the storage node for the others, and its cache image for'
            f' bootcache ({setting.get("compression", ["none"])[0]} compression; a warm host has'
            ' expanded a compressed one), but for "bootcache first". What each does and does not do'
            f' is in the first table of this page. Not measured: {missing}.')


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    several = len({row.get('image') for row in rows if row['ratio'] is not None}) > 1
    names = ['peer', 'hosts', *(['image'] if several else []), 'ratio', 'spread', 'seconds',
             'until the disk was made, s', 'base, MB', 'cache images, MB', 'kept on a host, MB',
             'CPU s of QEMU\'s part, host\'s part']
    lines: list[list[Any]] = []
    for row in rows:
        if row['ratio'] is None:
            lines.append([row['peer'], row['note'], *([''] * (len(names) - 2))])
            continue
        lines.append([row['peer'], row['hosts'], *([row['image']] if several else []),
                      row['ratio'], row['spread'], row['seconds'], row['disk_seconds'],
                      *(f'{row[name] / 1e6:.1f}' for name in ('base_bytes', 'cache_bytes',
                                                               'host_bytes')),
                      f'{row["chain_cpu_seconds"]:.2f}, {row["host_cpu_seconds"]:.2f}'])
    return names, lines


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time and bytes of each way, for the first server of a host and for the next."""
    made = []
    measured = [row for row in rows if row['ratio'] is not None]
    for image in sorted({row['image'] for row in measured}):
        for hosts in sorted({row['hosts'] for row in measured}):
            mine = {row['peer']: row for row in measured
                    if (row['image'], row['hosts']) == (image, hosts)}
            where = f'{image}, {hosts} hosts at once' if hosts > 1 else f'{image}, one host'
            for kind, title, across in (
                    ('time', 'Boot time', 'boot time / that of a full local base'),
                    ('bytes', 'What a boot moves to its host', 'MB from the storage node, a host')):
                name = f'alternatives-{image}-{hosts}-{kind}.svg'
                _bars(mine, kind, f'{title} with today\'s alternatives ({where})', across,
                      directory / name)
                made.append((name, 'Lower is better. '
                             + ('Lines: spread over the rounds.' if kind == 'time' else
                                'Bytes of the base and of cache images, counted at the storage'
                                ' node.')))
    return made


def _bars(rows: dict[str, dict[str, Any]], kind: str, title: str, across: str,
          path: Path) -> None:
    figure, axes = figures.canvas(title, across, '')
    figure.set_size_inches(8.5, 4.6)
    names = list(reversed(_WAYS))
    tall = 0.4
    most = 0.0
    for place, name in enumerate(names):
        colour = '#0b6e4f' if name.startswith('bootcache') else '#777777' \
            if name == REFERENCE else '#3b5b92'
        present = [(which, rows[label]) for which, label in enumerate(_WAYS[name])
                   if label in rows]
        for which, row in present:
            alone = len(present) == 1
            first = not which and (not alone or row['peer'] == FIRST)
            value = row['ratio'] if kind == 'time' else (row['base_bytes'] + row['cache_bytes']
                                                         + row['copied_bytes']) / 1e6 / row['hosts']
            where = place if alone else place + (0.5 - which) * tall
            axes.barh(where, value, tall, color=colour, alpha=0.45 if first else 1,
                      xerr=row['spread'] / 2 if kind == 'time' else None,
                      error_kw={'capsize': 2, 'elinewidth': 0.8})
            shift = row['spread'] / 2 if kind == 'time' else 0
            axes.annotate(f'{value:.2f}' if kind == 'time' else f'{value:.1f}',
                          (value + shift, where), xytext=(4, 0), textcoords='offset points',
                          va='center', fontsize=7)
            most = max(most, value + shift)
    axes.set_xlim(0, most * 1.1)
    axes.set_yticks(range(len(names)), [figures.name_of(name) for name in names])
    axes.grid(False, axis='y')
    if kind == 'time':
        axes.axvline(1, color='black', linewidth=0.8, linestyle=':')
    _legend(figure)
    figures.save(figure, path)


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch
    figure.legend(handles=[
        Patch(color='#777777', alpha=0.45, label='pale: first server of the image on a host'),
        Patch(color='#777777', label='full: the next server there, or any of them')],
        fontsize=7, loc='outside lower right', ncols=2)
