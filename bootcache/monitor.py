"""The monitor of a storage daemon: QMP for one client at a time, within limits of time.

A second client waits in silence, and a daemon that hangs on a storage node answers to nobody: so
every wait has a limit, and who comes after one that was in vain is told at once.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tenacity
from qemu.qmp import ConnectError, ExecuteError, QMPClient, QMPError

from bootcache import exception, locks
from bootcache.locks import OrderedLock
from bootcache.util import threads
from bootcache.util.backoff import CircuitBreaker


class _Outcome:
    """What became of a coroutine in the loop's thread; filled there, waited for elsewhere."""

    def __init__(self, native: Any):
        self.done = native.Event()
        self.task: asyncio.Task[Any] | None = None

    def start(self, loop: asyncio.AbstractEventLoop, coroutine: Any) -> None:
        self.task = loop.create_task(coroutine)
        self.task.add_done_callback(lambda _task: self.done.set())


class LoopThread:
    """One asyncio loop in a native thread, for all daemons of this process.

    Under eventlet everything that is shared with that thread is native too, and whoever waits does
    so by short green sleeps: a green lock that a native thread releases wakes nobody.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the making of the loop
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Any, timeout: float) -> Any:
        """Run a coroutine, and return what it returns.

        :param timeout: seconds.
        :raises TimeoutError: if it takes longer; it is cancelled.
        """
        native, is_green = _threads()
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._start(native)
        assert self._loop is not None
        outcome = _Outcome(native)
        self._loop.call_soon_threadsafe(outcome.start, self._loop, coroutine)
        if not is_green:
            outcome.done.wait(timeout)
        deadline = time.monotonic() + timeout
        while is_green and not outcome.done.is_set() and time.monotonic() < deadline:
            time.sleep(0.001)
        if not outcome.done.is_set():
            self._loop.call_soon_threadsafe(lambda: outcome.task and outcome.task.cancel())
            raise TimeoutError
        assert outcome.task is not None
        return outcome.task.result()

    def _start(self, native: Any) -> None:
        self._loop = asyncio.new_event_loop()
        native.Thread(target=self._loop.run_forever, name='bootcache-qmp', daemon=True).start()
        self._pid = os.getpid()


def _threads() -> tuple[Any, bool]:
    """Return the module of native threads, and whether eventlet has put green ones in its place."""
    if threads.is_green():
        return sys.modules['eventlet.patcher'].original('threading'), True
    return threading, False


LOOP = LoopThread()


_ATTEMPTS = 10


def _is_garbled(error: BaseException) -> bool:
    """Return whether an event of a job came before the greeting; the next client gets that first.
    """
    return isinstance(error, ConnectError) and not isinstance(error.exc, (OSError, EOFError))


class Session:
    """One connection to a daemon's monitor; ``execute`` sends a command and returns its answer."""

    def __init__(self, monitor: 'Monitor', client: QMPClient):
        self._monitor = monitor
        self._client = client

    def execute(self, command: str, /, **arguments: Any) -> Any:
        """Send a QMP command.

        :param arguments: as QMP names them, with underscores for hyphens at the top level.
        :raises StorageDaemonError: if it is refused or not answered in time.
        """
        if command.startswith('block'):
            self._monitor.before_change()
        named = {key.rstrip('_').replace('_', '-'): value for key, value in arguments.items()}
        try:
            answer = LOOP.run(self._client.execute(command, named or None),
                                      self._monitor.command_seconds)
            self._monitor.heard()
            return answer
        except ExecuteError as error:
            self._monitor.heard()
            raise exception.StorageDaemonError(
                f'{self._monitor.name}: {command} was refused: {error}') from error
        except TimeoutError as error:
            raise self._monitor.busy(f'{command} was not answered within'
                                    f' {self._monitor.command_seconds:g} s') from error
        except (QMPError, OSError, EOFError) as error:
            raise exception.StorageDaemonError(
                f'{self._monitor.name}: {command} was not answered: {error!r}') from error


class Monitor:
    """One daemon's monitor, as this process reaches it.

    :ivar name: of the daemon, for messages.
    :ivar path: of the monitor's socket.
    :ivar command_seconds: for which to wait for a command's answer.
    :ivar before_change: called before a command that changes block nodes or exports: what it raises
        keeps that from being sent.

    :param name: of the daemon, for messages.
    :param path: of the monitor's socket.
    :param patience: seconds for which to wait for the monitor, and for another thread that has it.
    :param command_seconds: for which to wait for a command's answer.
    :param breaker: spares others the wait for a daemon that did not answer just now; None for one
        that is not asked for hundreds of things in turn.
    :param cure: what to do where nobody listens; empty where who asks starts the daemon by itself.
    :param queue_seconds: for which to wait for other threads beyond ``patience``, as long as the
        daemon answers them.
    """

    def __init__(self, name: str, path: str, patience: float, command_seconds: float,
                 breaker: CircuitBreaker | None = None, cure: str = '', queue_seconds: float = 0):
        self._cure = cure
        self._queue_seconds = queue_seconds
        # When it answered anybody for the last time, monotonic seconds.
        self._heard_at = -patience
        self.name = name
        self.path = path
        self.command_seconds = command_seconds
        self.before_change: Callable[[], None] = lambda: None
        self._patience = patience
        self._breaker = breaker or CircuitBreaker(sys.maxsize, 0)
        # Guards the monitor within this process: it serves one client.
        self._lock = OrderedLock(locks.MONITOR, f'the monitor of {name}')
        self._session: Session | None = None

    def answers(self) -> bool:
        """Tell whether it answers."""
        if not os.path.exists(self.path):
            return False
        try:
            with self.session() as session:
                session.execute('query-version')
            return True
        except exception.StorageDaemonError:
            return False

    def busy(self, what: str) -> exception.StorageDaemonBusy:
        """Note that the daemon did not answer in its time; return the error that says so."""
        self._breaker.failed()
        return exception.StorageDaemonBusy(f'{self.name}: {what}')

    def heard(self) -> None:
        """Note that the daemon does not hang."""
        self._heard_at = time.monotonic()
        self._breaker.answered()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the monitor for this thread, which may have it already.

        :raises StorageDaemonBusy: if another one has it for longer than this one waits.
        """
        began = time.monotonic()
        while not self._lock.acquire(self._patience):
            # Whoever has it finds out whether the daemon hangs. One that answers has a queue.
            now = time.monotonic()
            if now - began >= self._queue_seconds or now - self._heard_at >= self._patience:
                raise exception.StorageDaemonBusy(
                    f'{self.name}: {self.path} is in use, and was not free within'
                    f' {now - began:.0f} s')
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Connect to the monitor for a group of commands; no other thread gets in between.

        Within a session of the same thread it is that one.

        :raises StorageDaemonBusy: if it does not answer in its time, or did not just now.
        :raises StorageDaemonError: if there is no daemon.
        """
        # Not behind those who wait for it: what has just not answered is told at once.
        self._check_breaker(not self._breaker.seconds_left())
        with self.alone():
            if self._session is not None:
                # It serves one client.
                yield self._session
                return
            self._check_breaker(self._breaker.may_ask())
            client = self._connect()
            self._session = Session(self, client)
            try:
                yield self._session
            finally:
                self._session = None
                # A peer that died makes this raise, which tells nothing new.
                with contextlib.suppress(QMPError, TimeoutError, OSError, EOFError):
                    LOOP.run(client.disconnect(), self._patience)

    def _check_breaker(self, may_ask: bool) -> None:
        if not may_ask:
            raise exception.StorageDaemonBusy(
                f'{self.name}: it did not answer just now; it is asked again in a moment')

    def _connect(self) -> QMPClient:
        try:
            return tenacity.Retrying(
                retry=tenacity.retry_if_exception(_is_garbled),
                stop=tenacity.stop_after_attempt(_ATTEMPTS), reraise=True)(self._try_to_connect)
        except TimeoutError as error:
            raise self.busy(f'no answer on {self.path} within {self._patience:g} s') from error
        # The library asserts that a peer does not end right after its greeting.
        except (QMPError, OSError, EOFError, AssertionError) as error:
            # Nobody hangs there: there is nobody, or somebody else.
            self.heard()
            raise exception.StorageDaemonError(
                f'{self.name}: no answer on {self.path}: {self._told(error)}') from error

    def _try_to_connect(self) -> QMPClient:
        client = QMPClient(self.name)
        # It logs what it raises, in the loop's native thread: under eventlet that could wait for a
        # green lock of logging's for ever.
        client.logger.disabled = True
        LOOP.run(client.connect(self.path), self._patience)
        return client

    def _told(self, error: Exception) -> str:
        """Return what became of a try to connect."""
        cause = error.exc if isinstance(error, ConnectError) else error
        if isinstance(cause, (FileNotFoundError, ConnectionRefusedError)):
            return f'nobody listens there{self._cure and "; "}{self._cure}'
        return repr(error)
