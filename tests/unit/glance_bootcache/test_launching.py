"""How ``glance-bootcache`` has oslo.service start its process, with whatever version of that.

tests/functional/test_service_start.py starts it with the one that is installed."""

import contextlib
import logging
import os
import signal
import subprocess
import sys

import pytest
from fakes_manager import until
from oslo_config import cfg

from bootcache import exception
from glance_bootcache.cli import service


@pytest.mark.parametrize('launch, how', [
    (lambda conf, service, workers=1, restart_method='reload', no_fork=False: None, {}),
    (lambda conf, service, workers=1, restart_method='reload', no_fork=False,
     start_method=None: None, {'start_method': 'fork'})], ids=['4.7', '4.8'])
def test_it_is_said_that_it_forks_where_that_can_be_said(launch, how):
    assert service._how_to_launch(launch) == how
    launch(None, None, workers=1, **how)


@pytest.mark.parametrize('line, is_told', [
    # As 4.5.0 to 4.7.0 have it.
    ('Service %s is not picklable with spawn; falling back to fork. Please make the service'
     ' spawn-safe to avoid this fallback.', False),
    ('Service %s is not picklable with spawn and fork is unavailable.', True),
    ('no_fork=True: running service %s in main process', True)])
def test_that_it_forks_is_no_news(caplog, line, is_told):
    logger = logging.getLogger(service._FORKS_LOGGER)
    logger.addFilter(service._is_no_fork)
    try:
        logger.warning(line, 'StorageService', exc_info=ValueError('cannot pickle'))
    finally:
        logger.removeFilter(service._is_no_fork)
    assert bool(caplog.records) == is_told


WORKS = """
import os, sys, threading
from glance_bootcache.cli import service as cli
from oslo_config import cfg
from oslo_service import service
cfg.CONF([], project='bootcache', default_config_files=[], default_config_dirs=[])
lock = cli._only_one(sys.argv[1])

class Works(service.Service):
    def start(self):
        super().start()
        os.write(1, f'{os.getpid()} '.encode())

    def stop(self, graceful=True):
        threading.Event().wait()  # As long as a hash or a download may take.

service.launch(cfg.CONF, Works(), workers=1, **cli._how_to_launch(service.launch)).wait()
"""


def test_the_state_directory_is_locked_for_as_long_as_anybody_works_on_it(tmp_path):
    """The parent alone may be killed, as by the kernel that is short of memory."""
    state = str(tmp_path / 'state')
    parent = subprocess.Popen([sys.executable, '-W', 'ignore', '-c', WORKS, state],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child = 0
    try:
        child = int(parent.stdout.read1().split()[0])
        for _time in 'both work', 'the parent is dead':
            with pytest.raises(exception.BootcacheError, match='another glance-bootcache works'):
                service._only_one(state)
            parent.kill()
            parent.wait()
    finally:
        parent.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child or parent.pid, signal.SIGKILL)
        parent.stdout.close()

    taken = []

    def is_free():
        with contextlib.suppress(exception.BootcacheError):
            taken.append(service._only_one(state))
        return taken

    until(is_free, 'the lock')
    os.close(taken[0])


def test_a_value_that_an_option_cannot_have_is_told(tmp_path, capsys, monkeypatch):
    path = tmp_path / 'bootcache.conf'
    path.write_text('[bootcache]\nexport_port = hello\n')
    monkeypatch.setattr(cfg, 'CONF', cfg.ConfigOpts())
    assert service.main(['--config-file', str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f'glance-bootcache cannot be started: [bootcache]export_port in {path}: \'hello\' is no'
        ' whole number; correct it, or take it out for its default')
