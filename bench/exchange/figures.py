"""What a run of the exchange tells: time over the limit, copies, whether targets are met. Pure.

The limit is one transfer of the file over one link that is free, as it was measured just before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

CACHE_IMAGE = 'cache image'
FULL_BASE = 'full base'
# By file and hosts: the longest time over the limit, and the copies that leave the storage node.
TARGETS: Mapping[tuple[str, int], tuple[float | None, float | None]] = {
    (CACHE_IMAGE, 8): (1.4, None), (CACHE_IMAGE, 32): (1.6, 1.3), (FULL_BASE, 16): (None, 1.5)}


def line(what: str, hosts: int, way: str, link: int, size: int, seconds: Sequence[float],
         sent: int, alone: float, stalls: int = 0) -> dict[str, Any]:
    """Return one run of the report.

    :param what: is measured.
    :param link: bits a second.
    :param size: of the file, in bytes.
    :param seconds: until each host had all of it, of those that got it.
    :param sent: bytes that left the storage node, with headers.
    :param alone: seconds that one copy took with the link free.
    :param stalls: hosts that did not get all of it.
    """
    return {'what': what, 'hosts': hosts, 'way': way, 'link_mbit': link / 1e6, 'bytes': size,
            # None, where nobody got it.
            'seconds': round(max(seconds), 3) if seconds else None,
            'alone_seconds': round(alone, 3),
            'time_over_limit': round(max(seconds) / alone, 3) if seconds else None,
            'storage_copies': round(sent / size, 3), 'stalls': stalls, 'finished': len(seconds)}


def judged(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the targets, and whether they are met."""
    found = []
    for run in runs:
        if run['way'] != 'exchange' or (run['what'], run['hosts']) not in TARGETS:
            continue
        longest, copies = TARGETS[run['what'], run['hosts']]
        for name, bound in (('time_over_limit', longest), ('storage_copies', copies)):
            if bound is not None:
                found.append({'what': f'{run["what"]}, {run["hosts"]} hosts: {name}',
                              'target': bound, 'value': run[name],
                              'met': run[name] is not None and run[name] <= bound})
    return found
