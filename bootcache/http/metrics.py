"""What both sides' metrics share: values that are read when Prometheus asks, seconds by outcome."""

import contextlib
import dataclasses
import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata

from oslo_log import log as logging
from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bootcache.exception import Cancelled, ImageRefused
from bootcache.util.logthrottle import LogThrottle

LOG = logging.getLogger(__name__)

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
