"""The message bus between two processes of a stage: a unix socket in place of RabbitMQ.

The messages are the product's own, and so is the client with its limits and its patience; only what
carries them is not. A file tells what is wrong with the bus; who calls looks there.
"""

import contextlib
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.rpc import client
from bootcache.rpc.fields import plain
from bootcache.rpc.messages import Message
from bootcache.util.backoff import CircuitBreaker

AWAY, FROZEN = 'away', 'frozen'
_KEY = b'stage'


def fault_path(directory: str) -> Path:
    """Return the file that tells what is wrong; without it nothing is."""
    return Path(directory, 'bus-fault')


class StageClient(client.StorageClient):
    """A compute host's client.

    :param directory: of the stage.
    """

    def __init__(self, conf: cfg.ConfigOpts, directory: str):
        self._timeout = conf[bootcache_conf.GROUP].rpc_timeout
        self._breaker = CircuitBreaker(client._SILENT_CALLS, client._SILENCE_SECONDS)
        self._directory = directory

    def _deliver(self, message: Message[Any], limit: float) -> Any:
        return self._ask(limit, message.method, plain(message))

    def _ask(self, seconds: float, method: str, arguments: dict[str, Any]) -> Any:
        fault = fault_path(self._directory)
        wrong = fault.read_text() if fault.exists() else ''
        if wrong == AWAY:
            raise messaging.MessageDeliveryFailure('the bus is away')
        if wrong == FROZEN:
            time.sleep(seconds)
            raise messaging.MessagingTimeout('the bus is frozen')
        try:
            with Client(f'{self._directory}/bus', authkey=_KEY) as connection:
                connection.send((method, arguments))
                if not connection.poll(seconds):
                    raise messaging.MessagingTimeout(f'{method}: no answer')
                worked, value = connection.recv()
        except (OSError, EOFError) as error:
            # RabbitMQ keeps a message for whoever serves; nobody does.
            raise messaging.MessagingTimeout(f'{method}: nobody serves: {error}') from error
        if not worked and value[0] == 'OSError':
            # Python's own errors arrive as they were raised.
            raise OSError(value[1])
        if not worked:
            raise messaging.RemoteError(*value)
        return value


class Server:
    """The storage service's end.

    :param directory: of the stage.
    :param dispatcher: calls the product's endpoints.
    """

    def __init__(self, directory: str, dispatcher: Any):
        with contextlib.suppress(FileNotFoundError):
            Path(directory, 'bus').unlink()
        self._listener = Listener(f'{directory}/bus', backlog=16, authkey=_KEY)
        self._dispatcher = dispatcher
        self._is_closed = False

    def start(self) -> None:
        """Serve from now on."""
        threading.Thread(target=self._serve, daemon=True).start()

    def stop(self) -> None:
        """Serve no more."""
        self._is_closed = True
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except Exception:
                if self._is_closed:
                    return
                # Of a client that was killed as it connected: others are served.
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            method, arguments = connection.recv()
            try:
                answer = True, self._dispatcher.call(method, arguments)
            except Exception as error:
                answer = False, (type(error).__name__, str(error))
            connection.send(answer)
