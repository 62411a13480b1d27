"""What manyservers and understress share of their reports. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from bench.replay import figures, sums
from bench.replay.rows.yolo import (
    COLD,
    EXPANDED,
    MEMORY,
    NORMAL,
    OURS,
    WARM,
    YOLO,
    ZSTD,
    ZSTD_COLD,
    ZSTD_MEMORY,
    ZSTD_WARM,
)

Run = dict[str, Any]
_KEYS = 'medium', 'servers', 'distinct', 'stress', 'level'
# What is taken for noise where there is but one round to tell it.
_NOISE = 0.1


def place(one: Run) -> tuple[Any, ...]:
    """Return what tells points apart, whatever the peer."""
    return tuple(one[key] for key in _KEYS)


def rows(head: dict[str, Any], runs: Sequence[Run], note: str) -> list[dict[str, Any]]:
    """Return the report's rows; the ratio's reference is the normal boot at the first point."""
    first = place(next(one for one in runs if one['label'] == NORMAL))
    found = sums.rows(head, runs, head['row'], ('image', 'label', 'hosts', *_KEYS),
                      lambda one: one['label'] == NORMAL and place(one) == first, note)
    for row in found:
        those = [one for one in runs if one['label'] == row['peer'] and place(one) == place(row)]
        for name in ('waited', 'written', 'machine_busy'):
            row[name] = round(statistics.median(one[name] for one in those), 3)
        row['images'] = row['servers'] if row['distinct'] else 1
    return found


def slower(head: dict[str, Any], runs: Sequence[Run], ours: str,
           other: str) -> dict[str, Any] | None:
    """Return the target that one way is nowhere slower than another, beyond the noise."""
    worst: tuple[float, float, int, tuple[Any, ...]] | None = None
    for where in dict.fromkeys(place(one) for one in runs):
        found = sums.ratios(runs, lambda one, where=where: one['label'] == ours
                            and place(one) == where,
                            lambda one, where=where: one['label'] == other
                            and place(one) == where)
        if found:
            value, spread = sums.median_spread(found)
            noise = spread if len(found) > 1 else _NOISE
            if worst is None or value - noise > worst[0] - worst[1]:
                worst = value, noise, len(found), where
    if worst is None:
        return None
    value, noise, rounds, where = worst
    words = [str(part) for part in where[:2]] + ['servers, an image each' if where[2] else
                                                 'servers']
    words += [f'{where[3]} x{where[4]}'] if where[3] else []
    reason = f'{" ".join(words)}; noise {noise:g} over {rounds} rounds'
    bound = round(1 + max(noise, sums.LEAST_NOISE), 4)
    if value > bound:
        for label in (ours, other):
            reason += f'; {label}: ' + profile(head, [
                one for one in runs if one['label'] == label and place(one) == where])
        if ours in (COLD, ZSTD_COLD):
            reason += '; the other had the whole base on the host\'s disk before, bootcache nothing'
    return sums.target(head, f'{ours} over {other}, at worst', bound, value, reason)


def profile(head: dict[str, Any], runs: Sequence[Run]) -> str:
    """Return where the seconds of some runs of one point go."""
    def middle(name: str) -> float:
        return statistics.median(one[name] for one in runs)

    count = runs[0]['servers']
    cpu = sum(middle(f'{name}_cpu_seconds') for name in ('player', 'chain', 'host')) * count
    return (f'of {middle("seconds"):.2f} s: {head["setting"]["think_seconds"]:.2f} s think time of'
            f' the guest, {middle("disk_seconds"):.2f} s until its disk was made,'
            f' {middle("waited"):.2f} s waited for reads and {middle("written"):.2f} s for writes'
            ' and flushes, added up;'
            f' {cpu:.2f} s CPU of players and daemons of {count} servers on'
            f' {head["cpus"]} CPUs, which were {middle("machine_busy"):.0%} busy')


def targets(head: dict[str, Any], runs: Sequence[Run], worst: Run, where: str,
            factor: float) -> list[dict[str, Any]]:
    """Judge what manyservers and understress have in common.

    :param worst: the normal boot that takes longest: where YOLO gains most.
    :param where: words for that.
    :param factor: how much faster than that the paper is.
    """
    def at(label: str) -> list[Run]:
        return [one for one in runs if one['label'] == label and place(one) == place(worst)]

    found = []
    think = head['setting']['think_seconds']
    normal = statistics.median(one['seconds'] for one in at(NORMAL))
    for label in (MEMORY, WARM, ZSTD_MEMORY, ZSTD_WARM, EXPANDED, YOLO):
        ratios = sums.ratios(runs, lambda one, label=label: one['label'] == label
                             and place(one) == place(worst),
                             lambda one: one['label'] == NORMAL and place(one) == place(worst))
        if not ratios:
            continue
        value, spread = sums.median_spread(ratios)
        told = (f'{where}: {1 / value:.1f} times faster, spread of the ratio {spread}; '
                + profile(head, at(label)))
        found.append(sums.target(head, f'{label} over normal boot, where that takes longest',
                                 None if label == YOLO else round(1 / factor, 4), value, told))
    def middle(label: str, name: str) -> float:
        return statistics.median(one[name] for one in at(label))

    memory = MEMORY if at(MEMORY) else ZSTD_MEMORY
    reads, before = middle(memory, 'waited'), middle(NORMAL, 'waited')
    found.append(sums.target(
        head, f'seconds waited for reads, {memory} over {NORMAL}, there', None,
        round(reads / before, 4), f'{reads:.2f} s against {before:.2f} s a server: the part that'
        ' where the data comes from decides; writes and flushes go to the server\'s own disk'))
    found.append(sums.target(
        head, 'least ratio that the guest\'s think time allows there', None,
        round(think / normal, 4), f'{normal / think:.1f} times faster: {think:.2f} s of'
        f' {normal:.2f} s; bootcache in memory reaches'
        f' {think / statistics.median(one["seconds"] for one in at(memory)):.0%} of it'))
    found.append(sums.target(
        head, 'bytes of the base read by warm boots', 0,
        sum(one['traffic'].get('base', {}).get('bytes', 0) for one in runs
            if one['label'] in (MEMORY, WARM, ZSTD_MEMORY, ZSTD_WARM, EXPANDED))))
    found.append(sums.target(
        head, 'contents that boots of one image have read', 1,
        len({digest for one in runs for digest in one['digests'] if digest})))
    refused = [reason for one in runs for reason in one['refused']]
    found.append(sums.target(head, 'servers that bootcache sent the stock way', 0, len(refused),
                             refused[0] if refused else ''))
    others = [label for label in dict.fromkeys(one['label'] for one in runs)
              if label not in (*OURS, *ZSTD)]
    for ours in (*OURS, *ZSTD):
        for other in others:
            # What is loaded before is compared with what is loaded before.
            if (ours not in (COLD, ZSTD_COLD) or other != YOLO) \
                    and (one := slower(head, runs, ours, other)):
                found.append(one)
    return found + sums.compressed(head, runs, place, _words)


def _words(one: Run) -> str:
    """Return words for where something was measured."""
    words = [str(one['medium']), f'{one["servers"]} servers' + (
        ', an image each' if one['distinct'] else '')]
    return ', '.join(words + ([f'{one["stress"]} x{one["level"]}'] if one['stress'] else []))


def lines(axes: Any, head: dict[str, Any], rows: Sequence[dict[str, Any]], across: str) -> None:
    """Draw boot times over the guest's think time, with the line that none gets below."""
    think = head['setting']['think_seconds']
    for peer in figures.order(row['peer'] for row in rows):
        points = [(row[across], row['seconds'] / think,
                   row['spread'] / row['ratio'] * row['seconds'] / think)
                  for row in rows if row['peer'] == peer]
        figures.line(axes, peer, points)
    axes.axhline(1, color='black', linewidth=0.8, linestyle=':')


def intro(head: dict[str, Any]) -> str:
    """Return under which conditions it was measured."""
    setting = head['setting']
    slower_by = setting['dilation']
    return (f'Think times x {setting["scale"]:g}, as guests under KVM have them: a guest whose disk'
            f' does not let it wait boots in {setting["think_seconds"]:.2f} s. The hard disk takes'
            f' {8 * slower_by:g} ms for an access and reads {100 / slower_by:g} MB/s in one go,'
            f' and is modelled (slowdisk.py); what it really did is in the journal. The network'
            f' has {setting["rate"] / 1e6:.0f} Mbit/s. '
            + (f'It stands for a world that is {slower_by:g} times faster. ' if slower_by > 1
               else '')
            + 'All disks use the page cache, which is cold; YOLO\'s boot images and bootcache\'s'
            ' warm ones are there before. Ratios are over the first line.')


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns' names and the lines of the page's table."""
    stressed = any(row.get('stress') for row in rows)
    names = ['peer', 'disk', 'servers', 'images', *(['stress'] if stressed else []), 'ratio',
             'spread', 'seconds', 'base, MB', 'cache images, MB']
    return names, [
        [row['peer'], row['medium'], row['servers'], row['images'],
         *([f'{row["stress"]} x{row["level"]}' if row.get('stress') else 'none']
           if stressed else []),
         row['ratio'], row['spread'], row['seconds'], f'{row["base_bytes"] / 1e6:.1f}',
         f'{row["cache_bytes"] / 1e6:.1f}'] for row in rows]
