"""What runs with snapshots tell: bytes over those that changed, ours over stock's, targets. Pure.

The limit of bytes is what the servers have written. Times are compared within one run only.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

STOCK, OURS = 'stock', 'bootcache'
RAW, QCOW2, RBD = 'file, raw', 'file, qcow2', 'rbd'
# By store: the most bytes over those that changed, moved and stored. A qcow2 is told only: what is
# written into a cluster of it that its base does not have takes all of that cluster.
_NETWORK: Mapping[str, float] = {RAW: 1.1, QCOW2: 1.1, RBD: 1.6}
_STORED: Mapping[str, float | None] = {RAW: 1.5, QCOW2: None, RBD: 1.3}
# Ours over stock's.
_BYTES, _SECONDS = 0.05, 0.25


def line(store: str, servers: int, way: str, *, seconds: float, after: float,
         sent: Mapping[str, int], stored: int, changed: int, base: int,
         load: float) -> dict[str, Any]:
    """Return one run of the report.

    :param seconds: until the last snapshot was all that Glance needs.
    :param after: of what is done later, in upkeep.
    :param sent: bytes, with headers, that ``hosts``, the ``storage`` node and ``osds`` sent.
    :param stored: bytes that the store took for all snapshots.
    :param changed: bytes that the servers have written.
    :param base: bytes that the store has for their base.
    :param load: of this machine, when the run ended.
    """
    return {'store': store, 'servers': servers, 'way': way,
            'seconds_to_active': round(seconds, 2), 'seconds_after': round(after, 2),
            'network_bytes': sum(sent.values()),
            **{f'{who}_sent_bytes': count for who, count in sent.items()}, 'stored_bytes': stored,
            'stored_with_base_bytes': stored + base, 'changed_bytes': changed,
            'load': round(load, 1)}


def medians(runs: Sequence[Mapping[str, Any]],
            names: Sequence[str] = ('store', 'servers', 'way')) -> list[dict[str, Any]]:
    """Return one line for all repeats of a run, with medians.

    :param names: of the entries that repeats of one run have in common.
    """
    found = []
    for key in dict.fromkeys(tuple(run[name] for name in names) for run in runs):
        same = [run for run in runs if tuple(run[name] for name in names) == key]
        middle: dict[str, Any] = {
            name: statistics.median(run[name] for run in same) for name in same[0]
            if isinstance(same[0][name], int | float)}
        found.append({**same[0], **middle, 'runs': len(same)})
    return found


def ratios(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each way's medians over the limit, and over stock's of the same servers and store."""
    lines = medians(runs)
    stock = {(one['store'], one['servers']): one for one in lines if one['way'] == STOCK}
    found = []
    for one in lines:
        told = {'store': one['store'], 'servers': one['servers'], 'way': one['way'],
                'network_over_changed': one['network_bytes'] / one['changed_bytes'],
                'hosts_sent_over_changed': one['hosts_sent_bytes'] / one['changed_bytes'],
                'stored_over_changed': one['stored_bytes'] / one['changed_bytes']}
        if (beside := stock.get((one['store'], one['servers']))) is not None:
            told |= {f'{name}_over_stock': one[key] / beside[key] for name, key in (
                ('network', 'network_bytes'), ('stored', 'stored_bytes'),
                ('stored_with_base', 'stored_with_base_bytes'),
                ('seconds', 'seconds_to_active'))}
        found.append(rounded(told))
    return found


def rounded(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return entries of a report, their ratios with three digits."""
    return {key: round(value, 3) if isinstance(value, float) else value
            for key, value in told.items()}


def target(what: str, bound: float | None, value: float) -> dict[str, Any]:
    """Return a target, and whether it is met; one without a bound is told only."""
    return {'what': what, 'target': bound, 'value': value,
            'met': None if bound is None else value <= bound}


def judged(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the targets of our way, and whether they are met; a target of None is told only."""
    found = []
    for one in ratios(runs):
        if one['way'] != OURS:
            continue
        bounds = {'network_over_changed': _NETWORK[one['store']],
                  'stored_over_changed': _STORED[one['store']],
                  'network_over_stock': _BYTES, 'stored_over_stock': _BYTES,
                  'seconds_over_stock': _SECONDS}
        for name, bound in bounds.items():
            if name in one:
                found.append(target(f'{one["store"]}, {one["servers"]} servers: {name}', bound,
                                    one[name]))
    return found


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the medians as lines of text."""
    found = [f'{"store":12} {"servers":>7} {"way":20} {"active, s":>9} {"after, s":>8}'
             f' {"changed":>8} {"network":>8} {"hosts":>8} {"storage":>8} {"OSD":>8} {"stored":>8}'
             f' {"with base":>9} MB']
    for one in medians(runs):
        columns = ' '.join(f'{one[name] / 1e6:{width}.1f}' for name, width in (
            ('changed_bytes', 8), ('network_bytes', 8), ('hosts_sent_bytes', 8),
            ('storage_sent_bytes', 8), ('osds_sent_bytes', 8), ('stored_bytes', 8),
            ('stored_with_base_bytes', 9)))
        found.append(f'{one["store"]:12} {one["servers"]:7} {one["way"]:20}'
                     f' {one["seconds_to_active"]:9.2f} {one["seconds_after"]:8.2f} {columns}')
    return found
