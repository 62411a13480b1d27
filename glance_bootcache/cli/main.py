"""The ``bootcache`` command: options that all commands share."""

import argparse
import sys
from typing import Any

import oslo_messaging as messaging
from cliff import app, commandmanager
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import exception, rpcapi
from glance_bootcache import conf as glance_conf


class BootcacheApp(app.App):  # type: ignore[misc]
    """Looks after cache images, and builds them without any OpenStack."""

    # Warnings and errors; -v shows more.
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self) -> None:
        super().__init__(description=self.__doc__, version=_version(),
                         command_manager=commandmanager.CommandManager('bootcache.cli'),
                         deferred_help=True)
        self._conf: cfg.ConfigOpts | None = None

    def build_option_parser(self, description: str, version: str,
                            argparse_kwargs: Any = None) -> argparse.ArgumentParser:
        """Add our options to cliff's."""
        parser: argparse.ArgumentParser = super().build_option_parser(description, version,
                                                                      argparse_kwargs)
        parser.add_argument('--config-file', metavar='PATH', action='append', default=[],
                            help='configuration of the storage service (default: bootcache.conf'
                                 ' where oslo.config looks, such as /etc/bootcache)')
        return parser

    @property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration, read when it is first needed.

        :raises BootcacheError: if it cannot be read.
        """
        if self._conf is None:
            # The global one: oslo.messaging registers some options nowhere else.
            conf = cfg.CONF
            logging.register_options(conf)
            glance_conf.register_opts(conf)
            files = self.options.config_file
            try:
                conf([], project='bootcache', prog='bootcache',
                     default_config_files=files or None)
                glance_conf.check(conf)
            except (cfg.Error, ValueError) as error:
                raise exception.BootcacheError(f'configuration: {error}') from error
            self._conf = conf
        return self._conf

    def storage_api(self) -> 'ServiceClient':
        """Return a client of the storage service.

        :raises BootcacheError: if the configuration cannot be read.
        """
        return ServiceClient(rpcapi.StorageAPI(self.conf))


class ServiceClient:
    """The storage service's client, with errors that tell an operator what to do.

    :param api: what it calls; it has the same methods.
    """

    def __init__(self, api: rpcapi.StorageAPI):
        self._api = api

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)

        def call(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure) as error:
                raise exception.BootcacheError(
                    f'the storage service does not answer ({error}); is glance-bootcache running,'
                    ' and is [bootcache]transport_url right?') from error
            except messaging.RemoteError as error:
                raise exception.BootcacheError(
                    f'the storage service refused: {error.value}') from error
        return call


def _version() -> str:
    from importlib import metadata
    try:
        return metadata.version('bootcache')
    except metadata.PackageNotFoundError:
        return 'not installed'


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    :returns: the process's exit code.
    """
    return int(BootcacheApp().run(sys.argv[1:] if argv is None else argv))


if __name__ == '__main__':
    sys.exit(main())
