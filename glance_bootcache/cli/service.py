"""``glance-bootcache``: reads the configuration and runs the storage service."""

import contextlib
import faulthandler
import fcntl
import logging as stdlib_logging
import os
import select
import shutil
import signal
import sys
import threading

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, logformat, optionfault, tier
from bootcache.connectors import probe
from bootcache.rpc import transport
from glance_bootcache import conf as glance_conf
from glance_bootcache import startchecks, systemd
from glance_bootcache.cli import client
from glance_bootcache.db import conf as db_conf
from glance_bootcache.service import StorageService, tell_fault

# A stop takes longest where servers of profile boots have to be deleted. systemd waits for 90 s.
_STOP_SECONDS = 80
# Between looks at nothing, where systemd does not want to hear of the process.
_IDLE_SECONDS = 3600.0
_ENDING = frozenset((signal.SIGTERM, signal.SIGINT))


class _Ended(BaseException):
    """A signal ends the service; raised in the main thread, wherever that is in the start."""


def main(argv: list[str] | None = None) -> int:
    """Run the storage service until it is told to stop.

    :returns: the process's exit code, if the service cannot be started at all.
    """
    conf = cfg.CONF
    logging.register_options(conf)
    glance_conf.register_opts(conf)
    db_conf.register_opts(conf)
    conf.register_opts(glance_conf.default_opts)
    messaging.set_transport_defaults(control_exchange=transport.EXCHANGE)
    try:
        client.read(conf, 'glance-bootcache', sys.argv[1:] if argv is None else argv)
        # Reads each value: one that an option cannot have is told before anything is started.
        conf.log_opt_values(stdlib_logging.Logger('values', stdlib_logging.CRITICAL), 0)
        logformat.setup(conf, 'glance-bootcache')
    except (ValueError, OSError, exception.BootcacheError) as error:
        # There is no log yet.
        print(f'glance-bootcache cannot be started: {optionfault.told(error, conf)}',
              file=sys.stderr)
        return 1
    try:
        _check_tools()
        # Until the process ends.
        _only_one(conf[bootcache_conf.GROUP].state_dir)
        startchecks.check_place(conf)
    except (ValueError, OSError, exception.BootcacheError) as error:
        tell_fault(conf, error)
        return 1
    code = _serve(conf, StorageService(conf, lambda: _check(conf)))
    # Work that was given up, as a hash of a large file, and libraries' threads are not waited for.
    stdlib_logging.shutdown()
    os._exit(code)


def _serve(conf: cfg.ConfigOpts, service: StorageService) -> int:
    """Run the service in this process until SIGTERM or SIGINT; SIGHUP has options read again.

    oslo.service would fork, or (``no_fork``, from 4.5 on) end with a traceback at SIGHUP, and at
    SIGINT without giving up what is in hand.

    :returns: the process's exit code.
    """
    signalled, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _ENDING:
        signal.signal(number, _end)
    signal.signal(signal.SIGHUP, lambda _number, _frame: threading.Thread(
        target=conf.mutate_config_files, name='options', daemon=True).start())
    try:
        service.start()
        # What is raised in a finalizer is lost, and time.sleep begins after a signal of just now.
        for number in _ENDING:
            signal.signal(number, lambda _number, _frame: None)
        systemd.notify('READY=1')
        pause = (systemd.watchdog_seconds() or 2 * _IDLE_SECONDS) / 2
        while not _is_ended(signalled, pause):
            systemd.notify('WATCHDOG=1')
        return 0
    except _Ended:
        return 0
    except Exception as error:
        tell_fault(conf, error)
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # No signal: the first process of a container is not ended by its own alarm.
        faulthandler.dump_traceback_later(_STOP_SECONDS, exit=True)
        systemd.notify('STOPPING=1')
        service.stop()


def _end(_number: int, _frame: object) -> None:
    raise _Ended


def _is_ended(signalled: int, seconds: float) -> bool:
    """Wait for a signal; return whether one ends the service."""
    select.select([signalled], [], [], seconds)
    with contextlib.suppress(BlockingIOError):
        return not _ENDING.isdisjoint(os.read(signalled, select.PIPE_BUF))
    return False


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
    """Lock the state directory until this process ends.

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
