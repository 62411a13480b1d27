"""The ``bootcache`` command: options that all commands share."""

import argparse
import contextlib
import functools
import sys
from typing import Any

from cliff import app, commandmanager
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import bus, exception
from bootcache.rpc.client import StorageClient
from glance_bootcache import conf as glance_conf
from glance_bootcache.cli import client
from glance_bootcache.cli.client import ServiceClient
from glance_bootcache.progressline import ProgressLine


class BootcacheApp(app.App):  # type: ignore[misc]
    """Looks after cache images, and builds them without any OpenStack."""

    # cliff counts from here with -v; -q is 0.
    DEFAULT_VERBOSE_LEVEL = 1

    def __init__(self) -> None:
        super().__init__(description=self.__doc__, version=client.version(),
                         command_manager=commandmanager.CommandManager('bootcache.cli'),
                         deferred_help=True)

    def build_option_parser(self, description: str, version: str,
                            argparse_kwargs: Any = None) -> argparse.ArgumentParser:
        """Add our options to cliff's."""
        parser: argparse.ArgumentParser = super().build_option_parser(description, version,
                                                                      argparse_kwargs)
        parser.add_argument('--config-file', metavar='PATH', action='append', default=[],
                            help='configuration of the storage service (default: bootcache.conf'
                                 ' where oslo.config looks, such as /etc/bootcache)')
        return parser

    def configure_logging(self) -> None:
        """Log warnings and errors; each -v shows more. cliff's own would begin with more."""
        level = self.options.verbose_level
        self.options.verbose_level = max(level - 1, 0)
        super().configure_logging()
        self.options.verbose_level = level

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration, read when it is first needed.

        :raises BootcacheError: if it cannot be read.
        """
        # The global one: oslo.messaging registers some options nowhere else.
        conf = cfg.CONF
        logging.register_options(conf)
        glance_conf.register_opts(conf)
        client.read(conf, 'bootcache', files=self.options.config_file)
        try:
            glance_conf.check(conf)
        except ValueError as error:
            raise exception.ConfigurationError(f'configuration: {error}') from error
        return conf

    def interact(self) -> None:
        """Show help, and end as with wrong arguments: cliff would begin a prompt of its own."""
        self.options.deferred_help = True
        with contextlib.suppress(SystemExit):
            self.print_help_if_requested()
        raise SystemExit(2)

    def storage_client(self) -> ServiceClient:
        """Return a client of the storage service.

        :raises BootcacheError: if the configuration cannot be read.
        """
        client.check_transport(self.conf)
        return ServiceClient(StorageClient(self.conf), bus.named(self.conf))

    def progress(self) -> ProgressLine:
        """Return what shows how far something is; with -q it shows nothing."""
        return ProgressLine(self.stderr, quiet=self.options.verbose_level == 0)


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    :returns: the process's exit code.
    """
    return int(BootcacheApp().run(sys.argv[1:] if argv is None else argv))


if __name__ == '__main__':
    sys.exit(main())
