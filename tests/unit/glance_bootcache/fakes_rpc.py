"""Messages to the storage service, by its real validation and dispatcher, without a bus."""

import types

import oslo_messaging as messaging

from bootcache.rpc.fields import plain
from bootcache.rpc.messages import MESSAGES, SENDER, VERSION
from glance_bootcache.rpc.ratelimit import RateLimiter
from glance_bootcache.rpc.validation import ValidatingDispatcher


class Sender:
    """Calls the endpoints as a message does: ``sender.plan_boot(context, ...)``.

    :ivar endpoints: the real ones.
    :ivar secret: of the process that sends; None if it tells none.
    """

    def __init__(self, endpoints, rejected, metrics):
        self.endpoints = endpoints
        self.secret = None
        # Tests send more than a host does; seconds do not pass for it either.
        self._sent = 0
        self._dispatcher = ValidatingDispatcher(
            messaging.RPCDispatcher([endpoints], None), rejected,
            RateLimiter(lambda: float(self._sent)), metrics)

    def send(self, message, client_timeout=None):
        """Have a message answered, whatever is in it; raises what its sender is told."""
        self._sent += 1
        incoming = types.SimpleNamespace(
            message=message, ctxt={} if self.secret is None else {SENDER: self.secret},
            client_timeout=client_timeout)
        try:
            return self._dispatcher.dispatch(incoming)
        except messaging.ExpectedException as expected:
            error = expected.exc_info[1]
        raise error

    def say(self, method, /, **said):
        """Have a call answered."""
        return self.send({'method': method, 'args': plain(said), 'version': VERSION})

    def __getattr__(self, method):
        def call(context, *arguments, **named):
            return self.say(method, **plain(MESSAGES[method](*arguments, **named)))

        return call
