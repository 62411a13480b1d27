"""Reading the configuration: its errors say which file or option it is, and what to do."""

import os
import pwd
from collections.abc import Sequence
from importlib import metadata

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts

from bootcache import conf as bootcache_conf
from bootcache import optionfault, rpcapi
from bootcache.exception import ConfigurationError

PROJECT = 'bootcache'
# Where install.rst has the configuration, for root and the service's user only.
FOLDER = '/etc/bootcache'


def version() -> str:
    """Return the version of what is installed, and that of the messages that it speaks."""
    try:
        installed = metadata.version('bootcache')
    except metadata.PackageNotFoundError:
        installed = 'not installed'
    return f'{installed} (RPC {rpcapi.VERSION})'


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
        user = _user()
        raise ConfigurationError(
            f'configuration: {_named(error)} may not be read by user {user}; it has passwords, so'
            f' run {prog} as root or as the storage service\'s user (glance, if its unit was not'
            ' changed), or name another file with --config-file') from error
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
                f'configuration: user {_user()} may not look into {FOLDER}; what is in it has'
                ' passwords, so run this as root or as the storage service\'s user (glance, if its'
                ' unit was not changed), or name another file with --config-file')
        raise ConfigurationError(
            'the message bus is not known: transport_url is neither in [bootcache] nor in [DEFAULT]'
            f' of {_read(conf)}; set it to the storage service\'s, as in'
            ' rabbit://user:password@host:5672/')
    try:
        messaging.TransportURL.parse(conf, url)
    except (messaging.InvalidTransportURL, ValueError):
        # Their messages have the password.
        raise ConfigurationError(
            f'transport_url in {_read(conf)} is no URL of a message bus; give one as in'
            ' rabbit://user:password@host:5672/, with special characters of the password as %XX'
        ) from None
    # Nothing is connected yet.
    rpcapi.get_transport(conf).cleanup()


def _named(error: cfg.Error) -> str:
    # oslo.config reads them twice, and names each as often.
    return ', '.join(dict.fromkeys(error.config_files))


def _read(conf: cfg.ConfigOpts) -> str:
    found = dict.fromkeys(conf.config_file or ())
    if found:
        return ', '.join(found)
    return ('any configuration file, as none was found (bootcache.conf in ~/.bootcache, ~,'
            ' /etc/bootcache or /etc; --config-file names another)')


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
