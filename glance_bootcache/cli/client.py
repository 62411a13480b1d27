"""The storage service as the commands ask it: its errors tell an operator what to do."""

import datetime
import os
from collections.abc import Sequence
from importlib import metadata

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts

from bootcache import bus, exception, optionfault, tls
from bootcache import conf as bootcache_conf
from bootcache.exception import ConfigurationError
from bootcache.quoting import one_line
from bootcache.rpc import messages, transport
from bootcache.rpc.client import StorageClient
from bootcache.rpc.messages import Answer, Message

# AMQP's codes: access refused, and not allowed.
_REFUSALS = (403, 530)
# What an oslo.messaging server answers that was written before a method, or before its version.
_TOO_OLD = ('UnsupportedVersion', 'NoSuchMethod')


class Away(exception.BootcacheError):
    """The storage service does not answer."""


class Refused(exception.BootcacheError):
    """The storage service answers that it cannot do it, and why."""


class ServiceClient:
    """The storage service's client, with errors that tell an operator what to do.

    :param client: sends the messages.
    :param bus: the message bus, as people are told of it.
    """

    def __init__(self, client: StorageClient, bus: str):
        self._client = client
        self._bus = bus

    def send(self, message: Message[Answer]) -> Answer:
        """Send a message, and return its answer.

        :raises BootcacheError: with what an operator can do.
        """
        try:
            return self._client.send(message)
        except messaging.MessagingTimeout as error:
            raise Away(
                f'the storage service does not answer on the message bus {self._bus}; is'
                ' glance-bootcache running there ("systemctl status glance-bootcache" on the'
                ' storage node), and is this its transport_url?') from error
        except messaging.MessageDeliveryFailure as error:
            cause = error.__cause__
            if bus.is_transports(cause) and getattr(cause, 'code', None) in _REFUSALS:
                raise Away(f'the message bus refuses {self._bus}: {one_line(cause)}; correct user,'
                           ' password and virtual host in transport_url of the configuration'
                           ) from error
            raise Away(f'the storage service does not answer, as the message bus {self._bus}'
                       f' cannot be used: {one_line(error)}') from error
        except (messaging.UnsupportedVersion, messaging.NoSuchMethod,
                messaging.RemoteError) as error:
            # The service's own error, or the client's word of the same.
            if getattr(error, 'exc_type', type(error).__name__) in _TOO_OLD:
                raise exception.BootcacheError('the storage service is older than this command;'
                                               ' upgrade it') from error
            raise Refused(f'the storage service refused: {one_line(error.value)}') from error


def utc(when: float) -> str:
    """Return seconds since the epoch as ISO 8601."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat(timespec='seconds')


PROJECT = 'bootcache'
# Where install.rst has the configuration, for root and the service's user only.
FOLDER = '/etc/bootcache'


def version() -> str:
    """Return the version of what is installed, and that of the messages that it speaks."""
    try:
        installed = metadata.version('bootcache')
    except metadata.PackageNotFoundError:
        installed = 'not installed'
    return f'{installed} (RPC {messages.VERSION})'


def read(conf: cfg.ConfigOpts, prog: str, arguments: Sequence[str] = (),
         files: Sequence[str] = ()) -> None:
    """Read the configuration of the storage service.

    :param prog: the program; a file of its name is looked for, too.
    :param arguments: of the command line, with ``--config-file`` among them.
    :param files: to read; where oslo.config looks, if there are none.
    :raises ConfigurationError: naming the file and the cure.
    """
    try:
        conf(list(arguments), project=PROJECT, prog=prog, version=version(),
             default_config_files=list(files) or None)
    except cfg.ConfigFilesNotFoundError as error:
        raise ConfigurationError(
            f'configuration: there is no file {_named(error)}; name the storage service\'s'
            ' configuration with --config-file') from error
    except cfg.ConfigFilesPermissionDeniedError as error:
        raise ConfigurationError(
            f'configuration: {_named(error)} may not be read by user {tls.user()}; it has'
            f' passwords, so run {prog} as root or as the storage service\'s user (glance, if its'
            ' unit was not changed), or name another file with --config-file') from error
    except (cfg.Error, ValueError) as error:
        raise ConfigurationError(f'configuration: {optionfault.told(error, conf)}') from error


def check_transport(conf: cfg.ConfigOpts) -> None:
    """Check that the message bus is named: oslo.messaging takes a broker on localhost otherwise.

    :raises ConfigurationError: naming the files that were read, or looked for, and the cure.
    """
    for group, opts in messaging_opts.list_opts():
        if group is None:
            conf.register_opts(opts)
    url = conf[bootcache_conf.GROUP].transport_url
    if not url and conf.get_location('transport_url').location is cfg.Locations.opt_default:
        if not conf.config_file and os.path.isdir(FOLDER) and not os.access(FOLDER, os.X_OK):
            raise ConfigurationError(
                f'configuration: user {tls.user()} may not look into {FOLDER}; what is in it has'
                ' passwords, so run this as root or as the storage service\'s user (glance, if its'
                ' unit was not changed), or name another file with --config-file')
        files = ', '.join(dict.fromkeys(conf.config_file or ())) or (
            'any configuration file, as none was found (bootcache.conf in ~/.bootcache, ~,'
            ' /etc/bootcache or /etc; --config-file names another)')
        raise ConfigurationError(
            'the message bus is not known: transport_url is neither in [bootcache] nor in [DEFAULT]'
            f' of {files}; set it to the storage service\'s, as in'
            ' rabbit://user:password@host:5672/')
    # Nothing is connected yet.
    transport.get_transport(conf).cleanup()


def _named(error: cfg.Error) -> str:
    # oslo.config reads them twice, and names each as often.
    return ', '.join(dict.fromkeys(error.config_files))
