"""The runs that arrivals of a real cloud drive, and what is told of each."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy

from bench.cluster import arrivals, runs
from bench.cluster.arrivals import Trace
from bench.cluster.hosts import Cluster
from bench.cluster.policies import POLICIES
from bench.cluster.storage import Node
from bench.cluster.sweeps import Run
from bench.cluster.workload import Load
from bench.cluster.world import Boot, World

# The sweeps: over the number of storage nodes, without the loss of one and with it, over delays.
NODES, LOSS, DELAYS = 'real, nodes', 'real, loss', 'real, settle_delay'
# Exponents of popularity: what another public trace has for its first images, and Zipf's own.
SKEW, OTHER_SKEW = 0.86, 1.0
# Seconds after the largest batch: no host has all of its cache image, and the first ones have.
LOST_AFTER = (0.5, 2.0)
# Servers that end sooner after their move onto a base had little of it.
BRIEF = 600.0
# Of the runs over delays: until servers have run for the longest delay.
_WARM_UP = 0.35
# Boots that wait for longer are counted.
LONG = 10.0


@dataclasses.dataclass(frozen=True)
class ArrivalScale:
    """How large the runs are.

    :ivar times: how many times the file's servers come; the second one is for few of the runs.
    :ivar window: seconds before and after the largest batch.
    :ivar long_window: likewise, for the runs over delays.
    :ivar nodes: how many storage nodes.
    :ivar few_nodes: of the runs that are made for fewer numbers.
    :ivar delays: ``[bootcache]settle_delay``, seconds.
    :ivar delay_hosts: of the runs over delays, and ``delay_nodes``, their storage nodes.
    """

    hosts: int
    images: int
    times: tuple[float, float]
    window: tuple[int, int]
    long_window: tuple[int, int]
    nodes: tuple[int, ...]
    few_nodes: tuple[int, ...]
    delays: tuple[float, ...]
    delay_hosts: int
    delay_nodes: int


QUICK = ArrivalScale(100, 100, (10, 20), (1800, 900), (3600, 300), (1, 2, 3), (3,), (60, 900), 100,
                     1)
FULL = ArrivalScale(10_000, 1000, (1, 4), (1200, 600), (7200, 300), (1, 3, 10), (3,),
                    (60, 300, 900, 1800, 3600), 2500, 2)
# Of Placement, fewer than Nova's default, and of an exchanged file: runs take minutes so.
_CANDIDATES, _PARTS = 200, 32
# Whether hosts exchange, and whether servers settle. Bases of hosts that exchange come from each
# other as well, which is not modelled.
WAYS = {'copied': (False, False), 'copied, and settled': (False, True), 'exchanged': (True, False)}


def plan(trace: Trace, path: Path, scale: ArrivalScale) -> Iterator[Run]:
    """Yield all runs.

    :param path: of the trace, for errors.
    :raises ArrivalsError: if the trace is too short for them.
    """
    def run(sweep: str, value: float, way: str, count: int, skew: float = SKEW, *, times: float,
            window: tuple[int, int], warm_up: float = runs.WARM_UP, hosts: int = scale.hosts,
            **more: Any) -> Run:
        arriving = arrivals.window(trace, path, *window, hosts, times)
        load = Load(sum(len(batch.lives) for batch in arriving.batches), scale.images, skew, 0.0,
                    0.0, 0.0, 1, arriving)
        exchange, settle = WAYS[way]
        return Run(sweep, value, Cluster(
            hosts, load, node=Node(count=count), homes=True, exchange=exchange,
            settle=settle, candidates=_CANDIDATES,
            exchange_parts=_PARTS, **more), policy, warm_up, figures)

    policy = next(policy for policy in POLICIES if policy.name == 'cache, weigher')
    usual, more_times = scale.times
    for way in WAYS:
        for count in scale.nodes:
            yield run(NODES, count, way, count, times=usual, window=scale.window)
        for count in scale.few_nodes:
            if way != 'copied':
                yield run(NODES, count, way, count, OTHER_SKEW, times=usual, window=scale.window)
                yield run(NODES, count, way, count, times=more_times, window=scale.window)
            if way != 'copied, and settled':
                for after in LOST_AFTER:
                    yield run(LOSS, count, way, count, times=usual, window=scale.window,
                              lost_after=after)
    for delay in scale.delays:
        yield run(DELAYS, delay, 'copied, and settled', scale.delay_nodes, times=usual,
                  window=scale.long_window, warm_up=_WARM_UP, hosts=scale.delay_hosts,
                  settle_delay=delay)


def figures(world: World, counted: Sequence[Boot]) -> dict[str, Any]:
    """Return what is told of a run whose images have homes; times in seconds.

    ``storm_*`` are of the largest batch, ``others_*`` of all other boots that are counted, of which
    ``others_long`` waited for more than ten seconds. ``link_use`` is the share of what all nodes'
    links could send in the counted part, ``link_use_busiest`` of the busiest node's, and
    ``link_use_minute`` of the busiest minute of any node. ``unsettled`` are running servers that
    need a node, in the mean, ``unsettled_before`` those just before the largest batch,
    ``unsettled_node`` the most that needed one node at a time,
    ``depended`` those that needed the node that was lost, and ``moved`` its images.
    ``settled_copies`` are bases that were copied; ``settled_briefly`` the share of them on which
    servers ran for less than ten minutes, and no other server came to; ``settled_again`` of those
    to which others came.
    """
    storm = [boot.delay for boot in world.boots if boot.storm == world.largest >= 0]
    others = [boot.delay for boot in counted if boot.storm != world.largest or boot.storm < 0]
    since = counted[0].at if counted else 0.0
    samples = [sample for sample in world.samples if sample.at >= since]
    passed = numpy.array([sample.passed for sample in samples])
    # The whole of what the links could pass between two samples, and in all.
    able = world.cluster.node.link * numpy.diff([sample.at for sample in samples])
    use = numpy.diff(passed, axis=0).sum(axis=0) / max(able.sum(), 1e-9)
    minutes = numpy.diff(passed, axis=0) / able[:, None]
    copies = [copied for copied in world.settling.copied if copied.is_over]
    brief = float(sum(copied.used < BRIEF and not copied.later for copied in copies)) \
        / max(1, len(copies))
    arriving = world.cluster.load.arrivals
    storm_at = next((boot.at for boot in world.boots if boot.storm == world.largest >= 0), since)
    before = [sample for sample in world.samples if sample.at < storm_at]
    return {
        'nodes': world.cluster.node.count, 'settle_delay': world.cluster.settle_delay,
        'lost_after': world.cluster.lost_after or 0.0,
        'arrivals_times': arriving.times if arriving is not None else 0.0,
        'storm_servers': len(storm), **_delays('storm', storm), **_delays('others', others),
        'others_long': int(sum(delay > LONG for delay in others)), 'others': len(others),
        'link_use': round(float(use.mean()), 4), 'link_use_busiest': round(float(use.max()), 4),
        'link_use_minute': round(float(minutes.max(initial=0.0)), 4),
        'unsettled': round(float(numpy.mean([sum(sample.unsettled) for sample in samples])), 1),
        'unsettled_before': sum(before[-1].unsettled) if before else 0,
        'unsettled_node': max(max(sample.unsettled) for sample in samples),
        'depended': world.depended, 'moved': len(world.storage.moved),
        'settled_copies': len(copies), 'settled_briefly': round(brief, 4),
        'settled_again': round(sum(copied.later > 0 for copied in copies)
                               / max(1, len(copies)), 4)}


def _delays(name: str, delays: Sequence[float]) -> dict[str, float]:
    found = numpy.array(delays if len(delays) else [0.0])
    return {f'{name}_delay_median_s': round(float(numpy.median(found)), 3),
            f'{name}_delay_p99_s': round(float(numpy.quantile(found, 0.99)), 3),
            f'{name}_delay_most_s': round(float(found.max()), 3)}
