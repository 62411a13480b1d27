"""Messages to the storage service, by its real doorkeeper and dispatcher, without a bus."""

import inspect
import types

import oslo_messaging as messaging

from bootcache import rpcapi
from glance_bootcache.door.doorkeeper import Doorkeeper, Rates


class Sender:
    """Calls the endpoints as a message does: ``sender.plan_boot(context, ...)``.

    :ivar endpoints: the real ones.
    :ivar secret: of the process that sends; None if it tells none.
    """

    def __init__(self, endpoints, refusals):
        self.endpoints = endpoints
        self.secret = None
        # Tests send more than a host does; seconds do not pass for it either.
        self._sent = 0
        self._doorkeeper = Doorkeeper(messaging.RPCDispatcher([endpoints], None), refusals,
                                      Rates(lambda: float(self._sent)))

    def send(self, message, client_timeout=None):
        """Have a message answered, whatever is in it; raises what its sender is told."""
        self._sent += 1
        incoming = types.SimpleNamespace(
            message=message, ctxt={} if self.secret is None else {rpcapi.SENDER: self.secret},
            client_timeout=client_timeout)
        try:
            return self._doorkeeper.dispatch(incoming)
        except messaging.ExpectedException as expected:
            error = expected.exc_info[1]
        raise error

    def say(self, method, /, **said):
        """Have a call answered."""
        return self.send({'method': method, 'args': said, 'version': rpcapi.VERSION})

    def __getattr__(self, method):
        def call(context, *arguments, **named):
            bound = inspect.signature(getattr(self.endpoints, method)).bind(
                context, *arguments, **named)
            return self.say(method, **dict(list(bound.arguments.items())[1:]))

        return call
