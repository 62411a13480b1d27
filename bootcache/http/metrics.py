"""What both sides' metrics share: values that are read when Prometheus asks, seconds by outcome."""

import contextlib
import dataclasses
import enum
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, TypeVar

from oslo_log import log as logging
from prometheus_client import CollectorRegistry, Histogram, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bootcache.exception import Cancelled, ImageRefused
from bootcache.util.logthrottle import LogThrottle

LOG = logging.getLogger(__name__)

T = TypeVar('T')
# Who asks again within that gets the same answer: to sample takes the service's time.
_FRESH_SECONDS = 1.0

# Values by those of their labels; of a metric without labels the key is an empty tuple.
Values = Mapping[tuple[str, ...], float]


@dataclasses.dataclass(frozen=True)
class _Source:
    family: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    text: str
    labels: Sequence[str]
    read: Callable[[], Values]


class SampledMetrics:
    """Metrics whose values are kept elsewhere, and read whenever Prometheus asks.

    One that cannot be read is left out of the answer, and logged.
    """

    def __init__(self) -> None:
        self._sources: list[_Source] = []
        self._throttle = LogThrottle(LOG)
        self._read: dict[object, Any] = {}  # in the answer that is being made

    def once(self, read: Callable[[], T]) -> Callable[[], T]:
        """Return what several metrics' values come from, as it is read once an answer."""
        def value() -> T:
            found = self._read
            if read not in found:
                found[read] = read()
            result: T = found[read]
            return result

        return value

    def gauge(self, name: str, text: str, read: Callable[[], Values],
              labels: Sequence[str] = ()) -> None:
        """Add a gauge.

        :param text: what Prometheus shows as its help.
        :param read: returns its values now.
        """
        self._sources.append(_Source(GaugeMetricFamily, name, text, labels, read))

    def counter(self, name: str, text: str, read: Callable[[], Values],
                labels: Sequence[str] = ()) -> None:
        """Add a counter; its name has no ``_total``, which Prometheus's client adds."""
        self._sources.append(_Source(CounterMetricFamily, name, text, labels, read))

    def collect(self) -> Iterator[Metric]:
        """Read all of them, for Prometheus's client."""
        self._read = {}
        for source in self._sources:
            family = source.family(source.name, source.text, labels=list(source.labels))
            try:
                for labels, value in source.read().items():
                    family.add_metric(list(labels), value)
                self._throttle.recovered(source.name, '%s can be read again', source.name)
            except Exception as error:
                self._throttle.warning(source.name, '%s cannot be read, and is left out: %s',
                                       source.name, error)
                continue
            yield family


class _Fresh:
    """A registry that is read by one thread at a time, and once a second."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]):
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()  # held while it is read; nothing else takes it
        self._read_at = -math.inf
        self._metrics: list[Metric] = []

    def collect(self) -> list[Metric]:
        with self._lock:
            if self._clock() - self._read_at > _FRESH_SECONDS:
                self._metrics = list(self._registry.collect())
                self._read_at = self._clock()
            return self._metrics


def app(registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
        ) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """Return the WSGI application that answers Prometheus.

    :param clock: monotonic seconds.
    """
    answer = make_wsgi_app(_Fresh(registry, clock))
    # Of a query the client knows "name[]" alone, for which it would read the registry by itself.
    return lambda environ, start_response: answer({**environ, 'QUERY_STRING': ''}, start_response)


def version() -> Values:
    """Return 1 by the version that is installed."""
    try:
        return {(metadata.version('bootcache'),): 1.0}
    except metadata.PackageNotFoundError:
        return {('unknown',): 1.0}


class TimedOutcome(enum.StrEnum):
    """How something ended that takes a while."""

    DONE = 'done'
    CANCELLED = 'cancelled'
    REFUSED = 'refused'  # the image cannot be served
    FAILED = 'failed'


@contextlib.contextmanager
def timed(histogram: Histogram, *labels: str) -> Iterator[None]:
    """Observe the seconds that a block takes, by its outcome.

    :param histogram: its last label is ``outcome``.
    :param labels: values of the others.
    """
    began, outcome = time.monotonic(), TimedOutcome.FAILED
    try:
        yield
        outcome = TimedOutcome.DONE
    except Cancelled:
        outcome = TimedOutcome.CANCELLED
        raise
    except ImageRefused:
        outcome = TimedOutcome.REFUSED
        raise
    finally:
        histogram.labels(*labels, outcome.value).observe(time.monotonic() - began)
