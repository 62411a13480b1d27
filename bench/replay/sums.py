"""The report's arithmetic: ratios within a round, medians and spread over rounds. Pure."""

import statistics
from collections.abc import Callable, Hashable, Sequence
from typing import Any

Run = dict[str, Any]
# Two ways whose ratio is nearer to 1 are as fast as each other.
LEAST_NOISE = 0.02
Chosen = Callable[[Run], bool]


def median_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the largest value less the smallest."""
    return round(statistics.median(values), 4), round(max(values) - min(values), 4)


def ratios(runs: Sequence[Run], chosen: Chosen, reference: Chosen) -> list[float]:
    """Return the boot times of chosen runs over the reference's of the same round and image."""
    below: dict[tuple[int, str], list[float]] = {}
    for one in runs:
        if reference(one):
            below.setdefault((one['repeat'], one['image']), []).append(one['seconds'])
    return [one['seconds'] / statistics.median(below[one['repeat'], one['image']])
            for one in runs if chosen(one) and (one['repeat'], one['image']) in below]


def rows(head: dict[str, Any], runs: Sequence[Run], row: str, keys: Sequence[str],
         reference: Chosen, note: str) -> list[dict[str, Any]]:
    """Return a row for each point that was measured.

    :param keys: names of the runs' entries that tell points apart.
    :param reference: the run of a round whose time the others are divided by.
    """
    points: dict[tuple[Any, ...], list[Run]] = {}
    for one in runs:
        points.setdefault(tuple(one.get(key) for key in keys), []).append(one)
    found = []
    for key, those in points.items():
        ratio, spread = median_spread(ratios(runs, lambda one, those=those: any(
            one is that for that in those), reference))

        def middle(read: Callable[[Run], float], those: list[Run] = those) -> float:
            return round(statistics.median(read(one) for one in those), 4)

        known = dict(zip(keys, key, strict=True))
        found.append({
            'row': row, 'peer': known['label'], 'hosts': known['hosts'],
            'images': known.get('images') or 1,
            'ratio': ratio, 'spread': spread,
            'base_bytes': middle(lambda one: one['traffic'].get('base', {}).get('bytes', 0)),
            'base_requests': middle(lambda one: one['traffic'].get('base', {}).get('requests', 0)),
            'cache_bytes': middle(lambda one: one['traffic'].get('cache', {}).get('bytes', 0)),
            'copied_bytes': middle(lambda one: one['copied_bytes']),
            'host_bytes': middle(lambda one: one['host_bytes']),
            'seconds': middle(lambda one: one['seconds']),
            'disk_seconds': middle(lambda one: one['disk_seconds']),
            'player_cpu_seconds': middle(lambda one: one['player_cpu_seconds']),
            'chain_cpu_seconds': middle(lambda one: one['chain_cpu_seconds']),
            **{name: value for name, value in known.items()
               if name not in ('label', 'hosts', 'images') and value is not None},
            'note': note, 'run': head['run']})
    return found


def target(head: dict[str, Any], name: str, wanted: float | None, value: float,
           reason: str = '') -> dict[str, Any]:
    """Return a target: a value that must not be above the wanted one; None: it is only told."""
    return {'row': head['row'], 'name': name, 'target': wanted, 'value': value,
            'met': wanted is None or value <= wanted, 'reason': reason, 'run': head['run']}


def ratio_target(head: dict[str, Any], name: str, wanted: float | None, runs: Sequence[Run],
                 chosen: Chosen, reference: Chosen) -> dict[str, Any]:
    """Return a target for a ratio's median, its spread told in the reason."""
    found = ratios(runs, chosen, reference)
    if not found:
        return target(head, name, wanted, float('inf'), 'it was not measured')
    value, spread = median_spread(found)
    return target(head, name, wanted, value, f'spread {spread} over {len(found)} rounds')


def never_slower(head: dict[str, Any], runs: Sequence[Run], ours: str,
                 other: str) -> dict[str, Any]:
    """Return the target that one way is nowhere slower than another, beyond the noise.

    The noise is the spread of the ratio at the point where it is worst, and 2 % at least: that is
    what a warm boot may be slower than a local one, and a few rounds tell of a smaller one by
    chance. Where it is missed the reason tells where both ways' time goes.
    """
    worst, noise, where, rounds = 0.0, 0.0, 0, 0
    for hosts in sorted({one['hosts'] for one in runs if one['label'] == other}):
        found = ratios(runs, lambda one, hosts=hosts: one['label'] == ours
                       and one['hosts'] == hosts,
                       lambda one, hosts=hosts: one['label'] == other and one['hosts'] == hosts)
        if found and (value := median_spread(found))[0] > worst:
            (worst, noise), where, rounds = value, hosts, len(found)
    reason = f'at {where} hosts, spread {noise} over {rounds} rounds'
    bound = round(1 + max(noise, LEAST_NOISE), 4)
    if worst > bound:
        reason += profiles(runs, (ours, other), where)
    return target(head, f'{ours} over {other}, at worst', bound, worst, reason)


def profile(runs: Sequence[Run]) -> str:
    """Return where the seconds of some runs of one point go, as medians."""
    def middle(name: str) -> float:
        return statistics.median(one[name] for one in runs)

    return (f'{middle("seconds"):.2f} s, of them {middle("disk_seconds"):.2f} s until the disk was'
            f' made; CPU of a server\'s chain {middle("chain_cpu_seconds"):.2f} s, of gateway and'
            f' helpers {middle("host_cpu_seconds"):.2f} s')


def profiles(runs: Sequence[Run], labels: Sequence[str], hosts: int) -> str:
    """Return the same of some ways on as many hosts, to follow a reason. Pure."""
    return ''.join(
        f'; {label}: {profile(those)}' for label in labels
        if (those := [one for one in runs if (one['label'], one['hosts']) == (label, hosts)]))


def uncompressed(label: str) -> str:
    """Return the way that differs from one with compressed cache images in nothing else. Pure."""
    return label.replace(' zstd', '').replace(' expanded', ' warm')


def compressed(head: dict[str, Any], runs: Sequence[Run], place: Callable[[Run], Hashable],
               name: Callable[[Run], str], alone: float = 0.1) -> list[dict[str, Any]]:
    """Return what compressed cache images make of each way's time, and of the bytes. Pure.

    Told, but of what is expanded: where it costs most, and in the reason all other places.

    :param place: what tells a way's points apart.
    :param name: of such a point.
    :param alone: what is taken for noise where there is but one round to tell it.
    """
    found = []
    labels = dict.fromkeys(one['label'] for one in runs)
    for label in (one for one in labels if ' zstd' in one and uncompressed(one) in labels):
        there: list[tuple[float, float, str]] = []
        rounds = 0
        bytes_there: list[float] = []
        for point in dict.fromkeys(place(one) for one in runs if one['label'] == label):
            ours, plain = ([one for one in runs if one['label'] == way and place(one) == point]
                           for way in (label, uncompressed(label)))
            values = ratios(runs, lambda one, ours=ours: any(one is that for that in ours),
                            lambda one, plain=plain: any(one is that for that in plain))
            if values:
                there.append((*median_spread(values), name(ours[0])))
                rounds = len(values)
            bytes_there += [many / few for many, few in zip(
                map(_fetched, ours), map(_fetched, plain), strict=False) if few]
        if there:
            worst = max(there)
            noise = max(worst[1] if rounds > 1 else alone, LEAST_NOISE)
            bound = round(1 + noise, 4) if 'expanded' in label else None
            found.append(target(head, f'{label} over {uncompressed(label)}, at worst', bound,
                                worst[0], '; '.join(f'{where}: {value} (spread {spread})'
                                                    for value, spread, where in there)))
        if bytes_there:
            found.append(target(head, f'bytes of cache images that were fetched, {label} over'
                                f' {uncompressed(label)}, at worst', None,
                                round(max(bytes_there), 4), 'by what is in the image'))
    return found


def _fetched(one: Run) -> int:
    return int(one['traffic'].get('cache', {}).get('bytes', 0))
