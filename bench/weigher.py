"""What the weigher costs nova-scheduler for each host of a request.

Nova's own host states and request, as its scheduler makes them, with what real drivers would
publish; the weigher is run over all hosts, its multiplier included, as Nova's handler does. The
first request after a host has published reads the entry; later ones find it read. Medians of
repeated requests, each for another image. Run by ``tools/bench.sh weigher``.
"""

import argparse
import json
import random
import resource
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nova import objects
from nova.scheduler import host_manager, weights

from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Holding, Level
from nova_bootcache.scheduler.weights import BootCacheWeigher

SEED = 1
LEVELS = (Level.DISK, Level.DISK, Level.DISK, Level.MEMORY, Level.BASE)


def host_states(hosts: int, held: int, known: Sequence[str],
                metadata: dict[str, str]) -> list[host_manager.HostState]:
    """Return hosts that hold ``held`` of the ``known`` images, at mixed levels.

    :param metadata: of the aggregate that all of them are in.
    """
    source = random.Random(SEED)
    aggregate = objects.Aggregate(name='all', metadata=metadata)
    keys = [warmth.image_key(image) for image in known]
    states = []
    for number in range(hosts):
        state = host_manager.HostState(f'host-{number}', f'host-{number}', 'cell')
        holdings = [Holding(key, source.choice(LEVELS), source.random())
                    for key in source.sample(keys, held)]
        state.stats = {warmth.STATS_KEY: warmth.encode(holdings)}
        state.aggregates = [aggregate]
        states.append(state)
    return states


def request(image: str | None) -> Any:
    """Return a request for a server of an image."""
    return objects.RequestSpec(image=None if image is None else objects.ImageMeta(id=image),
                               scheduler_hints=None)


def fresh(states: Sequence[host_manager.HostState]) -> list[host_manager.HostState]:
    """Return host states of the next request: Nova makes new ones, and reads their stats anew."""
    found = []
    for state in states:
        again = host_manager.HostState(state.host, state.nodename, 'cell')
        again.stats = {name: text.encode().decode() for name, text in state.stats.items()}
        again.aggregates = state.aggregates
        found.append(again)
    return found


def microseconds(weigher: BootCacheWeigher, states: Sequence[host_manager.HostState],
                 spec: Any) -> float:
    """Weigh all hosts for one request; microseconds for each."""
    weighed = [weights.WeighedHost(state, 0.0) for state in fresh(states)]
    began = time.perf_counter()
    found = weigher.weigh_objects(weighed, spec)
    for one, weight in zip(weighed, found, strict=True):
        one.weight += weigher.weight_multiplier(one.obj) * weight
    return (time.perf_counter() - began) / len(states) * 1e6


def repeated(measure: Callable[[str], float], images: Sequence[str]) -> dict[str, float]:
    """Return median and spread of one request for each image."""
    found = [measure(image) for image in images]
    return {'microseconds_per_host': round(statistics.median(found), 2),
            'spread': round(max(found) - min(found), 2)}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--images', type=int, default=1000, help='that each host holds')
    parser.add_argument('--requests', type=int, default=5)
    parser.add_argument('--report', type=Path, default=Path('bench-report/weigher.json'))
    options = parser.parse_args()
    objects.register_all()
    source = random.Random(SEED)
    known = [str(uuid.UUID(int=source.getrandbits(128)))
             for _image in range(3 * options.images)]
    asked = known[:options.requests]
    states = host_states(options.hosts, options.images, known, {})
    # One scheduler for all of it, as the entries that were read stay with the process.
    weigher = BootCacheWeigher()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = microseconds(weigher, states, request(asked[0]))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    usual = repeated(lambda image: microseconds(weigher, states, request(image)), asked)
    strangers = [str(uuid.UUID(int=source.getrandbits(128))) for _image in asked]
    aggregate = objects.Aggregate(name='all', metadata={'bootcache_weight_multiplier': '2.0'})
    override = [state for state in fresh(states)]
    for state in override:
        state.aggregates = [aggregate]
    document = {
        'hosts': options.hosts, 'images_per_host': options.images, 'requests': options.requests,
        'entry_bytes_max': max(len(state.stats[warmth.STATS_KEY]) for state in states),
        **usual,
        'after_all_hosts_published_anew': round(first, 2),
        'image_that_no_host_has': repeated(
            lambda image: microseconds(weigher, states, request(image)), strangers),
        'multiplier_of_an_aggregate': repeated(
            lambda image: microseconds(weigher, override, request(image)), asked),
        'request_without_an_image': repeated(
            lambda image: microseconds(weigher, states, request(None)), asked),
        'memory_bytes_per_host': round(memory * 1024 / options.hosts)}
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(document, indent=1) + '\n')
    print(json.dumps(document, indent=1))
    return 0


if __name__ == '__main__':
    sys.exit(main())
