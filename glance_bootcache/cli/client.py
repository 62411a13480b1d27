"""The storage service as the commands ask it: its errors tell an operator what to do."""

import datetime
from typing import Any

import oslo_messaging as messaging

from bootcache import exception, rpcapi
from bootcache.quoting import one_line

_BUS_LIBRARIES = ('amqp', 'kombu')
# AMQP's codes: access refused, and not allowed.
_REFUSALS = (403, 530)
# What an oslo.messaging server answers that was written before a method, or before its version.
_TOO_OLD = ('UnsupportedVersion', 'NoSuchMethod')


class Away(exception.BootcacheError):
    """The storage service does not answer."""


class Refused(exception.BootcacheError):
    """The storage service answers that it cannot do it, and why."""


class TooOld(exception.BootcacheError):
    """The storage service is of an earlier version than the command."""


class ServiceClient:
    """The storage service's client, with errors that tell an operator what to do.

    :param api: what it calls; it has the same methods.
    :param bus: the message bus, as people are told of it.
    """

    def __init__(self, api: rpcapi.StorageAPI, bus: str):
        self._api = api
        self._bus = bus

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)

        def call(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except messaging.MessagingTimeout as error:
                raise Away(
                    f'the storage service does not answer on the message bus {self._bus}; is'
                    ' glance-bootcache running there ("systemctl status glance-bootcache" on the'
                    ' storage node), and is this its transport_url?') from error
            except messaging.MessageDeliveryFailure as error:
                if _is_refusal(error.__cause__):
                    raise self._not_let_in(error.__cause__) from error
                raise Away(f'the storage service does not answer, as the message bus {self._bus}'
                           f' cannot be used: {one_line(error)}') from error
            except (messaging.UnsupportedVersion, messaging.NoSuchMethod) as error:
                raise _too_old() from error
            except messaging.RemoteError as error:
                if error.exc_type in _TOO_OLD:
                    raise _too_old() from error
                raise Refused(
                    f'the storage service refused: {one_line(error.value)}') from error
            except Exception as error:
                if type(error).__module__.partition('.')[0] not in _BUS_LIBRARIES:
                    raise
                # oslo.messaging passes on what a broker answers that does not let us in.
                raise self._not_let_in(error) from error
        return call

    def _not_let_in(self, error: BaseException | None) -> Away:
        return Away(f'the message bus refuses {self._bus}: {one_line(error)}; correct user,'
                    ' password and virtual host in transport_url of the configuration')


def _is_refusal(error: BaseException | None) -> bool:
    """Tell whether a broker has answered that it does not let us in, or not to the virtual host."""
    return type(error).__module__.partition('.')[0] in _BUS_LIBRARIES \
        and getattr(error, 'code', None) in _REFUSALS


def _too_old() -> TooOld:
    return TooOld('the storage service is older than this command; upgrade it')


def utc(when: float) -> str:
    """Return seconds since the epoch as ISO 8601."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat(timespec='seconds')
