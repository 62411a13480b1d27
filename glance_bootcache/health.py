"""``/healthcheck``: whether message bus, database and exporter answer; plugins of oslo.middleware.
"""

import concurrent.futures
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import ClassVar

import oslo_messaging as messaging
from oslo_middleware.healthcheck import Healthcheck, pluginbase

from bootcache.exception import ConfigurationError
from bootcache.quoting import one_line
from bootcache.rpc.messages import NO_IMAGE, SENDER, GetImage
from bootcache.util import threads

BUS, DATABASE, EXPORTER = 'bus', 'database', 'exporter'
_CHECKS = 'checks'
# For each of them. A load balancer, or Prometheus, waits for ten as a rule.
_SECONDS = 3.0
_ANSWER_SECONDS = 3
# Who asks within that after an answer gets the same one: the middleware asks for each by itself.
_FRESH_SECONDS = 1.0


class HealthChecks:
    """Finds out whether what the service needs answers, each in a thread and a time of its own.

    :param checks: by name; a check that returns has found nothing wrong.
    :param seconds: after which a check that has not returned counts as failed.
    :param clock: monotonic seconds.
    """

    def __init__(self, checks: Mapping[str, Callable[[], None]], seconds: float = _SECONDS,
                 clock: Callable[[], float] = time.monotonic):
        self._checks = checks
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below, for dictionary steps
        # With when each was begun, in monotonic seconds: one that hangs is begun only once.
        self._begun: dict[str, tuple[float, concurrent.futures.Future[None]]] = {}
        self._ended: dict[str, float] = {}

    def failures(self) -> dict[str, str]:
        """Return why each of them does not answer, empty if it does."""
        begun = {name: self._begin(name) for name in self._checks}
        return {name: self._failure(*begun[name]) for name in begun}

    def failure(self, name: str) -> str:
        """Return why one of them does not answer, empty if it does; the others are begun, too."""
        return self.failures()[name]

    def _begin(self, name: str) -> tuple[float, concurrent.futures.Future[None]]:
        with self._lock:
            now = self._clock()
            began, outcome = self._begun.get(name, (now, None))
            if outcome is None or (outcome.done() and now - self._ended[name] > _FRESH_SECONDS):
                began, outcome = self._begun[name] = now, threads.daemon_thread(
                    lambda: self._check(name), f'bootcache-check-{name}')
            return began, outcome

    def _check(self, name: str) -> None:
        try:
            self._checks[name]()
        finally:
            self._ended[name] = self._clock()

    def _failure(self, began: float, outcome: concurrent.futures.Future[None]) -> str:
        try:
            outcome.result(max(0.0, began + self._seconds - self._clock()))
        except TimeoutError:
            if not outcome.done():
                return f'no answer for {self._clock() - began:.0f} s'
            return one_line(outcome.exception()) or 'no answer in time'
        except Exception as error:
            return one_line(error) or type(error).__name__
        return ''

    def app(self) -> Healthcheck:
        """Return the WSGI application: 200 if all of them answer, else 503; the body has why.

        :raises ConfigurationError: if the plugins are not installed.
        """
        backends = [f'bootcache_{name}' for name in self._checks]
        # The middleware would leave those out that it does not find, and say that all is well.
        if missing := set(backends) - metadata.entry_points(group=Healthcheck.NAMESPACE).names:
            raise ConfigurationError(
                f'this installation of bootcache has no entry points {", ".join(sorted(missing))}'
                ' for /healthcheck; install it again, or set [bootcache]metrics_port to 0')
        # Without these two the middleware would take the options of the process.
        return Healthcheck(None, {
            'oslo_config_project': 'bootcache-healthcheck', 'oslo_config_file': os.devnull,
            'backends': backends, _CHECKS: self})


def bus_check(bus: messaging.Transport, where: messaging.Target, **context: str
              ) -> Callable[[], None]:
    """Return what asks this service something by the bus, as others do.

    :param bus: as of :func:`bootcache.rpc.transport.get_transport`.
    :param where: this service's place there.
    :param context: more of the message's, beside its sender.
    """
    client = messaging.get_rpc_client(bus, where)
    told = {SENDER: secrets.token_hex(16), **context}

    def ask() -> None:
        client.prepare(timeout=_ANSWER_SECONDS, retry=0).call(
            told, GetImage.method, image_id=NO_IMAGE)

    return ask


class _Backend(pluginbase.HealthcheckBaseExtension):  # type: ignore[misc]
    name: ClassVar[str]

    def healthcheck(self, server_port: int) -> pluginbase.HealthcheckResult:
        """Return whether it answers."""
        checks: HealthChecks = self.conf[_CHECKS]
        failure = checks.failure(self.name)
        return pluginbase.HealthcheckResult(
            not failure, f'{self.name}: {failure or "it answers"}')


class BusBackend(_Backend):
    """The message bus, and this service at it."""

    name = BUS


class DatabaseBackend(_Backend):
    """The storage service's database."""

    name = DATABASE


class ExporterBackend(_Backend):
    """The exporters that bases are read from."""

    name = EXPORTER
