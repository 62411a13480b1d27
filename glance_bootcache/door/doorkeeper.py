"""The doorkeeper of the storage service's RPC: every message comes by it.

oslo.messaging logs what an endpoint raises with all of its text, each time, and passes on whatever
arguments came. Here they are read before, and what is refused is counted in one place and told to
the sender.
"""

from typing import Any

import oslo_messaging as messaging
from oslo_messaging.rpc import server as rpc_server

from bootcache import rpcapi
from bootcache.exception import InvalidWorkingSet, MessageRefused, RequestRefused
from bootcache.quoting import quoted
from glance_bootcache.door import arguments
from glance_bootcache.door.rates import EXTENTS_OF_ONE, Rates
from glance_bootcache.door.refusals import Refusals

# What stands in the place of a message that was not read: see longmessages.py.
TOO_LONG = 'message of too many bytes'
TOO_MANY_LONG = 'one of too many long messages'
# Messages that are read before a thread has time for them, unless the operator says otherwise:
# oslo.messaging has no bound.
MOST_AHEAD = 16
_RABBIT = 'oslo_messaging_rabbit'
_INSTEAD = {TOO_LONG: 'it has too many bytes', TOO_MANY_LONG: 'too many that are as long came'}


class Doorkeeper:
    """Lets messages through to the endpoints: a dispatcher around oslo.messaging's own.

    :param dispatcher: of the endpoints.
    :param refusals: counts what is refused.
    :param rates: how much each sender may send.
    """

    def __init__(self, dispatcher: messaging.RPCDispatcher, refusals: Refusals, rates: Rates):
        self._dispatcher = dispatcher
        self._refusals = refusals
        self._rates = rates

    def dispatch(self, incoming: Any) -> Any:
        """Have a message answered.

        :raises ExpectedException: if it is refused; the sender is told why.
        """
        message = incoming.message
        method, said = message.get('method'), message.get('args')
        known = method if isinstance(method, str) and method in arguments.METHODS else ''
        host = _host(said)
        try:
            # The endpoints know by it who speaks, whatever host it names.
            incoming.ctxt[rpcapi.SENDER] = sender = _sender(incoming, host)
            with self._rates.taking(sender, _cost(said)):
                if known:
                    message['args'] = _read(known, said)
                return self._pass(message, known, incoming)
        except (RequestRefused, messaging.NoSuchMethod, messaging.UnsupportedVersion):
            # An operator's wish, or one of another version.
            raise messaging.ExpectedException from None
        except (MessageRefused, InvalidWorkingSet) as error:
            self._refusals.note(known, error if isinstance(error, MessageRefused)
                                else MessageRefused('extents', str(error)), host)
            raise messaging.ExpectedException from None

    def _pass(self, message: Any, known: str, incoming: Any) -> Any:
        if message.get('method') in (TOO_LONG, TOO_MANY_LONG):
            raise MessageRefused('message', _INSTEAD[message['method']])
        if message.get('namespace') is not None:
            raise MessageRefused('namespace', f'{quoted(message["namespace"])} is not known')
        arguments.version('version', message.get('version', '1.0'))
        if incoming.client_timeout is not None:
            # None of the clients has it; oslo.messaging would begin a thread for it.
            raise MessageRefused('timeout', f'{quoted(incoming.client_timeout)} is not known')
        if not known:
            self._refusals.note('', MessageRefused(
                'method', f'{quoted(message.get("method"))} is not known'))
            # So that a client of another version knows what it has to do with.
            raise messaging.NoSuchMethod(quoted(message.get('method')))
        return self._dispatcher.dispatch(incoming)


def _read(method: str, said: Any) -> dict[str, Any]:
    return arguments.METHODS[method].read(
        arguments.mapping('arguments', {} if said is None else said, 100))


def _host(said: Any) -> str:
    try:
        return arguments.host_name('host', said['host'])
    except (MessageRefused, KeyError, TypeError, IndexError):
        return ''


def _sender(incoming: Any, host: str) -> str:
    """Return who a message is of: a process, by the secret that it made, or the host that it names.

    The queue for answers is no secret: oslo.messaging's queue manager names it by host and process.
    """
    try:
        return f'process {arguments.token(rpcapi.SENDER, incoming.ctxt[rpcapi.SENDER])}'
    except (MessageRefused, KeyError):
        return f'host {host}'


def _cost(said: Any) -> float:
    """Return how many messages one is as much work as."""
    extents = said.get('extents') if isinstance(said, dict) else None
    return 1.0 + (len(extents) / EXTENTS_OF_ONE if isinstance(extents, list) else 0.0)


def get_server(transport: messaging.Transport, name: str, endpoints: object,
               refusals: Refusals) -> Any:
    """Return the storage service's RPC server, not started yet.

    :param name: of this server on the message bus.
    :param endpoints: have a method for each of ``arguments.METHODS``.
    """
    if _RABBIT in transport.conf:
        # What the threads have not come to waits there, and not in this process.
        transport.conf.set_default('rabbit_qos_prefetch_count', MOST_AHEAD, _RABBIT)

    def behind_the_door(transport: Any, target: Any, dispatcher: Any, executor: Any) -> Any:
        return rpc_server.RPCServer(transport, target, Doorkeeper(dispatcher, refusals, Rates()),
                                    executor)

    return messaging.get_rpc_server(transport, rpcapi.target(server=name), [endpoints],
                                    executor='threading', server_cls=behind_the_door)
