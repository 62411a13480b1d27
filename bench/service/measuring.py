"""Runs of the services: boots, storms of boots, hosts' reports, and images that are registered."""

import dataclasses
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

from bench.service import figures, methods
from bench.service.figures import Run
from bench.service.methods import Boots, Empty, Reports, Work
from bench.service.player import Hosts, Played, Players, summed
from bench.service.stage import Stage, StageError
from bootcache.rpc.client import all_entries
from bootcache.rpc.messages import ListImages

PARTS = figures.PLAN_BOOT, figures.REGISTER, figures.STORM, figures.REPORTS
# Of calls that are made one after the other.
_AT_ONCE = 2 * methods.NEW_SENDERS_AT_ONCE // 3
# Each series of calls is so often repeated: the machine may have other work, and upkeep runs.
_REPEATS = 5
_STORM_IMAGES = 100
# Hosts that report while images are registered, and seconds between two reports of one.
_REPORTERS, _REPORT_PERIOD = 20, 2.0
_LOOK_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is measured.

    :ivar few: images at first.
    :ivar images: in the end.
    :ivar calls: of each of ten series; together with one of each image they are no more than new
        senders may send.
    :ivar callers: hosts that plan boots.
    :ivar storm: hosts that boot at once.
    :ivar hosts: that report.
    :ivar held: images that each of them holds.
    :ivar period: seconds between two reports of a host.
    :ivar steady_periods: of reports after the first one.
    :ivar register_seconds: in which images have to get their bases.
    """

    few: int
    images: int
    calls: int
    callers: int
    storm: int
    hosts: int
    held: int
    period: float
    steady_periods: int
    register_seconds: float


FULL = Size(few=10, images=2000, calls=300, callers=200, storm=1000, hosts=10_000, held=50,
            period=60.0, steady_periods=5, register_seconds=7200.0)
QUICK = dataclasses.replace(FULL, images=200, hosts=1000, steady_periods=1, register_seconds=1800.0)
# Of several storage nodes: as many reports a second.
QUICK_NODES = dataclasses.replace(QUICK, few=50, images=50, hosts=QUICK.hosts // 5,
                                  period=QUICK.period / 5)


class Measuring:
    """Measures on a stage whose services have been started.

    :param stage: with services that know no image yet.
    :param players: play the hosts.
    """

    def __init__(self, stage: Stage, players: Players, size: Size):
        self._stage, self._players, self._size = stage, players, size
        self._images: list[str] = []

    def runs(self, parts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the entries of the parts; images are registered in any case.

        :raises StageError: if images do not get their bases.
        """
        size = self._size
        self._register(size.few)
        if figures.PLAN_BOOT in parts:
            yield self._plan_boot()
        if size.images > size.few:
            registered = self._register(size.images - size.few)
            if figures.REGISTER in parts:
                yield registered
            if figures.PLAN_BOOT in parts:
                yield self._plan_boot()
        if figures.STORM in parts:
            storms = 1, min(_STORM_IMAGES, size.images)
            # Until new senders may send as much: the hosts before may have used that up.
            time.sleep(len(storms) * size.storm / (methods.NEW_SENDERS_RATE * self._stage.nodes))
            for images in storms:
                yield self._storm(images)
        if figures.REPORTS in parts:
            yield from self._reports()

    def _run(self, hosts: Hosts, works: Sequence[Work], at_once: int | None = None) -> Run:
        before = self._stage.usage()
        played = hosts.play(works, at_once)
        return Run(played, before, self._stage.usage())

    def _each(self, work: Work) -> list[Work]:
        return [work] * self._players.count

    def _boots(self, calls: int, images: Sequence[str], first: int = 0) -> list[Work]:
        """Return the players' shares of boots; each begins with another image.

        :param first: index of the image that comes first.
        """
        count = self._players.count
        return [Boots(calls // count, images, first + number * len(images) // count)
                for number in range(count)]

    def _line(self, what: str, run: Run, hosts: int, **more: Any) -> dict[str, Any]:
        return figures.line(what, run, database=self._stage.database.name, images=len(self._images),
                            hosts=hosts, cpus=os.cpu_count() or 1, **more)

    def _plan_boot(self) -> dict[str, Any]:
        size, boots, empty = self._size, list[Run](), list[Run]()
        with self._players.hosts('compute', size.callers) as hosts:
            # Each image was asked for before.
            hosts.play(self._boots(len(self._images) + 1, self._images), _AT_ONCE)
            for repeat in range(_REPEATS):
                empty.append(self._run(
                    hosts, self._each(Empty(size.calls // self._players.count)), _AT_ONCE))
                boots.append(self._run(hosts, self._boots(
                    size.calls, self._images, repeat * size.calls), _AT_ONCE))
        found = [run.cpu_ms_per_call for run in boots]
        return self._line(
            figures.PLAN_BOOT, figures.joined(boots), size.callers, at_once=_AT_ONCE,
            cpu_ms_per_call=round(statistics.median(found), 3),
            empty_call_cpu_ms=round(statistics.median(run.cpu_ms_per_call for run in empty), 3),
            empty_calls_per_second=round(figures.rate(figures.joined(empty)), 1),
            cpu_ms_per_call_spread=round(max(found) - min(found), 3))

    def _storm(self, images: int) -> dict[str, Any]:
        with self._players.hosts('storm', self._size.storm) as hosts:
            run = self._run(hosts, self._boots(self._size.storm, self._images[:images]))
        return self._line(figures.STORM, run, self._size.storm, asked_images=images)

    def _reports(self) -> Iterator[dict[str, Any]]:
        size = self._size
        with self._players.hosts('host', size.hosts) as hosts:
            turn = 0
            for phase, periods in (('first', 1), ('steady', size.steady_periods),
                                   ('after a restart', 1)):
                if phase == 'after a restart':
                    self._stage.restart()
                run = self._run(hosts, self._each(Reports(
                    self._images, size.held, time.time(), periods * size.period, size.period,
                    knows=phase != 'first', turn=turn)))
                turn += periods
                yield self._line(figures.REPORTS, run, size.hosts, phase=phase, held=size.held)

    def _register(self, count: int) -> dict[str, Any]:
        """Register images at once, and wait until all have bases; hosts report meanwhile."""
        size = self._size
        made = self._stage.make_images(count)
        self._images += made
        # RabbitMQ gives nodes what Glance tells in turn, and boots as well: in the same order each
        # boot may come to the node that works on its image.
        random.shuffle(self._images)
        reports = self._each(Reports(self._images, min(size.held, len(self._images)), time.time(),
                                     _REPORT_PERIOD, _REPORT_PERIOD))
        is_over = threading.Event()
        with self._players.hosts('reporter', _REPORTERS) as hosts, \
                futures.ThreadPoolExecutor(1) as pool:
            before = self._stage.usage()
            reporting = pool.submit(_report_until, is_over, hosts, reports)
            try:
                self._stage.announce(made)
                listing, empty = self._wait_for_bases(before.at + size.register_seconds)
            finally:
                is_over.set()
            seconds = time.monotonic() - before.at
            run = Run(reporting.result(), before, self._stage.usage())
        return self._line(
            figures.REGISTER, run, _REPORTERS, registered=count, seconds=round(seconds, 1),
            list_seconds_max=round(max(listing), 3), empty_call_seconds_max=round(max(empty), 3),
            memory_peak_bytes=self._stage.peak_bytes())

    def _wait_for_bases(self, deadline: float) -> tuple[list[float], list[float]]:
        """Look again and again; return the seconds of each list, and of each empty call."""
        operator, listing, empty = self._stage.operator, list[float](), list[float]()
        while True:
            empty.append(operator.call(methods.empty_call())[1])
            seconds = list[float]()

            def page(images: ListImages) -> list[dict[str, Any]]:
                answer, took = operator.call(methods.list_images(images))
                seconds.append(took)  # noqa: B023
                return answer

            count = methods.served(all_entries(page, ListImages()))
            listing.append(sum(seconds))
            if count == len(self._images):
                return listing, empty
            if time.monotonic() > deadline:
                raise StageError(f'{count} of {len(self._images)} images have a base; the'
                                 f' services say:\n{self._stage.log}')
            time.sleep(_LOOK_SECONDS)


def _report_until(is_over: threading.Event, hosts: Hosts, works: Sequence[Work]) -> Played:
    """Have hosts report, period by period."""
    plays = [hosts.play(works)]
    while not is_over.is_set():
        plays.append(hosts.play(works))
    return summed(plays, sum(one.seconds for one in plays))
