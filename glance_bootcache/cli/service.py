"""``glance-bootcache``: reads the configuration and runs the storage service."""

import fcntl
import inspect
import logging as stdlib_logging
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import service

from bootcache import conf as bootcache_conf
from bootcache import exception, logformat, optionfault, tier
from bootcache.connectors import probe
from bootcache.rpc import transport
from glance_bootcache import conf as glance_conf
from glance_bootcache import startchecks
from glance_bootcache.cli import client
from glance_bootcache.service import StorageService, tell_fault

# Where oslo.service 4.5 to 4.7 tell of a fork.
_FORKS_LOGGER = 'oslo_service.backend._threading.service'


def main(argv: list[str] | None = None) -> int:
    """Run the storage service until it is told to stop.

    :returns: the process's exit code.
    """
    conf = cfg.CONF
    logging.register_options(conf)
    glance_conf.register_opts(conf)
    conf.register_opts(glance_conf.default_opts)
    messaging.set_transport_defaults(control_exchange=transport.EXCHANGE)
    try:
        client.read(conf, 'glance-bootcache', sys.argv[1:] if argv is None else argv)
        # Reads each value, as oslo.service does: what is none at all keeps it from being started.
        conf.log_opt_values(stdlib_logging.Logger('values', stdlib_logging.CRITICAL), 0)
        logformat.setup(conf, 'glance-bootcache')
    except (ValueError, OSError, exception.BootcacheError) as error:
        # There is no log yet.
        print(f'glance-bootcache cannot be started: {optionfault.told(error, conf)}',
              file=sys.stderr)
        return 1
    lock = _take_place(conf)
    if isinstance(lock, Exception):
        tell_fault(conf, lock)
        return 1
    stdlib_logging.getLogger(_FORKS_LOGGER).addFilter(_is_no_fork)
    failed = multiprocessing.get_context('fork').Value('b', False)
    try:
        service.launch(conf, StorageService(conf, lambda: _check(conf), failed), workers=1,
                       **_how_to_launch(service.launch)).wait()
    finally:
        os.close(lock)
    return int(failed.value)


def _take_place(conf: cfg.ConfigOpts) -> int | Exception:
    """Check what the exporter needs of this machine, and lock the state directory.

    :returns: the lock, or why that cannot be.
    """
    try:
        _check_tools()
        lock = _only_one(conf[bootcache_conf.GROUP].state_dir)
        startchecks.check_place(conf)
    except (ValueError, OSError, exception.BootcacheError) as error:
        return error
    return lock


def _how_to_launch(launch: Callable[..., Any]) -> dict[str, str]:
    """Return the arguments that have oslo.service fork, as far as it has any: it does anyway.

    What the service is made of is in this process's memory: configuration, log, checks.
    """
    return {'start_method': 'fork'} if 'start_method' in inspect.signature(launch).parameters \
        else {}


def _is_no_fork(record: stdlib_logging.LogRecord) -> bool:
    """Tell whether a log line is another one than that a service forks, as this one is to.

    oslo.service 4.5 to 4.7 would rather start a new interpreter, and warn, with a traceback, of
    each service for which they do not.
    """
    return 'falling back to fork' not in str(record.msg)


def _check(conf: cfg.ConfigOpts) -> None:
    """Check what servers that run do not depend on."""
    glance_conf.check(conf)
    client.check_transport(conf)
    glance_conf.check_tiers(conf)
    startchecks.check_stores(conf)
    startchecks.check_ceph(conf)
    startchecks.check_compression(conf)
    startchecks.check_signatures(conf)


def _check_tools() -> None:
    for program in ('qemu-img', 'qemu-storage-daemon'):
        if shutil.which(program) is None:
            raise exception.BootcacheError(
                f'{program} is not installed; Debian has it in qemu-utils and qemu-system-common')
    probe.check()


def _only_one(state_dir: str) -> int:
    """Lock the state directory for this process and those that it forks, until all have ended.

    One of POSIX, as fasteners has, would be this process's alone, and it is its child that works.

    :returns: the lock's file descriptor.
    """
    tier.check_directory('state_dir', state_dir, make=True, mode=0o750)
    path = os.path.join(state_dir, 'lock')
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError:
        raise exception.ConfigurationError(
            f'[bootcache]state_dir: {path} belongs to another user, as whom glance-bootcache was'
            f' started before. End what that user has left running (qemu-storage-daemon), and give'
            f' all that is there, and in run_dir, to this service\'s user: chown -R'
            f' {os.geteuid()} {state_dir}') from None
    except BlockingIOError:
        raise exception.BootcacheError(
            f'another glance-bootcache works on [bootcache]state_dir {state_dir}') from None
    return lock


if __name__ == '__main__':
    sys.exit(main())
