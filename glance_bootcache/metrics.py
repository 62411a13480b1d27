"""What the storage service counts for Prometheus while it works; nothing by image or host."""

import enum
from contextlib import AbstractContextManager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from bootcache.http.metrics import SampledMetrics, timed
from bootcache.rpc.messages import BootAction

_STEP_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
_CALL_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30)


class ImageStep(enum.StrEnum):
    """A step of the work on an image."""

    GET_BASE = 'get_base'
    INSPECT = 'inspect'
    RECORD = 'record'
    BUILD = 'build'


class CallOutcome(enum.StrEnum):
    """How a message was answered."""

    ANSWERED = 'answered'
    REFUSED = 'refused'    # what an operator asks for cannot be done
    REJECTED = 'rejected'  # the message is not as it has to be, or of another version
    TOO_MANY = 'too_many'  # its sender sends too many
    FAILED = 'failed'


class ServiceMetrics:
    """The storage service's metrics.

    :ivar registry: all of them, for Prometheus's client.
    :ivar sampled: those that are read when Prometheus asks.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sampled = SampledMetrics()
        self.registry.register(self.sampled)
        self._step_seconds = Histogram(
            'bootcache_image_step_seconds', 'Seconds of a step of the work on an image.',
            ['step', 'outcome'], buckets=_STEP_BUCKETS, registry=self.registry)
        self._call_seconds = Histogram(
            'bootcache_rpc_seconds', 'Seconds until an RPC message was answered.',
            ['method', 'outcome'], buckets=_CALL_BUCKETS, registry=self.registry)
        self._plans = Counter(
            'bootcache_boots_planned', 'Servers\' boots that hosts have asked about, by the way'
            ' that they were told and its reason.', ['way', 'reason'], registry=self.registry)
        self._hits = Counter(
            'bootcache_cache_image_hits', 'Planned boots of images that have a cache image, by the'
            ' tier that it was in.', ['tier'], registry=self.registry)

    def step(self, step: ImageStep) -> AbstractContextManager[None]:
        """Observe how long a step of the work on an image takes, and how it ends."""
        return timed(self._step_seconds, step.value)

    def count_call(self, method: str, outcome: CallOutcome, seconds: float) -> None:
        """Count a message.

        :param method: of bootcache.rpc.messages; empty for an unknown one.
        """
        self._call_seconds.labels(method or 'unknown', outcome.value).observe(seconds)

    def count_plan(self, answer: dict[str, Any]) -> None:
        """Count a boot that was planned.

        :param answer: of ``plan_boot``.
        """
        self._plans.labels(str(answer['action']), str(answer.get('cause', ''))).inc()
        if answer['action'] == BootAction.CACHE:
            self._hits.labels(f'storage_{answer["medium"]}').inc()
