"""``bootcache-exchange``: reads the configuration, and exchanges files until it is told to stop."""

import contextlib
import os
import resource
import signal
import sys
import threading
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, logformat, optionfault, tls
from bootcache.exchange import limits

LOG = logging.getLogger(__name__)

# Beside connections: files, the socket, Python's own.
_OTHER_DESCRIPTORS = 128


def main(argv: list[str] | None = None) -> int:
    """Run the exchange of this host until it is told to stop.

    :returns: the process's exit code.
    """
    conf = cfg.ConfigOpts()
    logging.register_options(conf)
    bootcache_conf.register_opts(conf)
    try:
        conf(sys.argv[1:] if argv is None else argv, project='bootcache',
             prog='bootcache-exchange')
        logformat.setup(conf, 'bootcache-exchange')
        server = _serve(conf)
    except (cfg.Error, ValueError, OSError, exception.BootcacheError) as error:
        print(f'bootcache-exchange cannot be started: {optionfault.told(error, conf)}',
              file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not in the signal's own call: it waits for the loop that it interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    group = conf[bootcache_conf.GROUP]
    LOG.info('bootcache-exchange meets others at %s, port %d', group.exchange_address,
             group.exchange_port)
    try:
        server.run()
    finally:
        server.server_close()
        server.session.stop()
    return 0


def _serve(conf: cfg.ConfigOpts) -> Any:
    wanted = limits.read(conf)
    group = conf[bootcache_conf.GROUP]
    if not group.tls_directory:
        raise exception.ConfigurationError(
            f'[bootcache]{tls.OPTION} is not set: hosts exchange files with members only,'
            ' who are known by certificates; "bootcache ca" makes them')
    try:
        # What the rest of bootcache does without.
        from bootcache.exchange import members, server, session
    except ImportError as error:
        raise exception.ConfigurationError(
            f'libtorrent cannot be loaded ({error}); install it by "pip install'
            ' bootcache[exchange]", or do not start bootcache-exchange: cache images are copied'
            ' from the storage node then') from error
    ours = members.Members(group.tls_directory)
    ours.check()
    _bound_descriptors(wanted)
    bootcache_conf.check_sockets(conf)
    path = group.exchange_socket
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        made = session.ExchangeSession(wanted, ours, os.path.join(folder, 'files'))
        with contextlib.ExitStack() as undone:
            undone.callback(made.stop)
            serving = server.ExchangeServer(path, made, ours)
            undone.pop_all()
    except OSError as error:
        raise exception.ConfigurationError(
            f'[bootcache]exchange_socket={path}: {error.filename or folder}: {error.strerror}; give'
            ' its folder to this process\'s user, as the unit does') from error
    return serving


def _bound_descriptors(wanted: limits.ExchangeLimits) -> None:
    needed = wanted.connections + 4 * wanted.files + _OTHER_DESCRIPTORS
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise exception.ConfigurationError(
            f'{needed} open files are needed for [bootcache]exchange_connections and'
            f' exchange_files, and {hard} are allowed: lower them, or raise LimitNOFILE in its'
            ' unit')
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


if __name__ == '__main__':
    sys.exit(main())
