"""Where the storage service's RPC is on the message bus."""

from importlib import metadata
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import optionfault
from bootcache.exception import ConfigurationError
from bootcache.rpc.messages import VERSION

EXCHANGE = 'bootcache'
TOPIC = 'bootcache'
# The entry points of oslo.messaging's drivers.
_DRIVERS = 'oslo.messaging.drivers'


def target(**extra: Any) -> messaging.Target:
    """Return the RPC target; the exchange is ours, as Nova and Glance default to their own."""
    return messaging.Target(exchange=EXCHANGE, topic=TOPIC, version=VERSION, **extra)


def get_transport(conf: cfg.ConfigOpts) -> messaging.Transport:
    """Return the transport that ``[bootcache]transport_url`` names.

    :raises ConfigurationError: if it is no URL, or there is no transport of its kind.
    """
    url = conf[bootcache_conf.GROUP].transport_url
    option = f'[{bootcache_conf.GROUP if url else "DEFAULT"}]transport_url'
    like = 'give one as in rabbit://user:password@host:5672/'
    try:
        kind = str(messaging.TransportURL.parse(conf, url).transport)
        # stevedore would log a line of its own.
        if metadata.entry_points(group=_DRIVERS, name=kind.partition('+')[0]):
            return messaging.get_rpc_transport(conf, url=url)
    except messaging.DriverLoadFailure as error:
        kind = str(error.driver)
    except cfg.ConfigSourceValueError as error:
        raise ConfigurationError(optionfault.told(error, conf)) from None
    except (messaging.InvalidTransportURL, ValueError):
        # Their messages have the password.
        place = conf.get_location('transport_url', bootcache_conf.GROUP if url else None)
        raise ConfigurationError(f'{option} ({place.detail}) is no URL of a message bus; {like},'
                                 ' with special characters of the password as %XX') from None
    raise ConfigurationError(f'{option} begins with {kind}://, for which oslo.messaging has no'
                             f' driver here; {like}')
