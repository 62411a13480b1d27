"""How ``glance-bootcache`` runs in one process, from its start to the signal that ends it."""

import os
import signal
import subprocess
import sys

import pytest
from oslo_config import cfg

from bootcache import exception
from glance_bootcache.cli import service

WORKS = """
import os, signal, sys, threading
from glance_bootcache.cli import service as cli
from oslo_config import cfg
cfg.CONF([], project='bootcache', default_config_files=[], default_config_dirs=[])
cfg.CONF.register_mutate_hook(lambda conf, changes: say('options'))
how = sys.argv[1]
lock = cli._only_one(sys.argv[2])

def say(text):
    os.write(1, f'{text}\\n'.encode())

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), 15)

class Works:
    def start(self):
        say('starts')
        if how == 'fails':
            raise OSError('it is broken')
        if how == 'loses':
            Finalized()
        if how == 'waits':
            threading.Event().wait()
        if how == 'serves, and is not interrupted':
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        say('serves')

    def stop(self):
        say('stops')
        if how == 'hangs':
            threading.Event().wait()

sys.exit(cli._serve(cfg.CONF, Works()))
"""


class Process:
    """The service's process, with something else in the place of its work."""

    def __init__(self, how, state):
        self._process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', WORKS, how, state], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)

    def says(self, text):
        assert self._process.stdout.readline() == f'{text}\n'

    def send(self, number):
        self._process.send_signal(number)

    def end(self):
        """Return its exit code, and what it said last."""
        out = self._process.stdout.read()
        return self._process.wait(60), out

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def run(tmp_path):
    started = []

    def start(how):
        started.append(Process(how, str(tmp_path / 'state')))
        started[-1].says('starts')
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize('how', ['serves', 'serves, and is not interrupted', 'waits'])
def test_a_signal_ends_it_while_it_serves_and_while_it_waits(run, how, number):
    """One that comes just before a wait is like one of another thread: no call is cut short."""
    process = run(how)
    if how != 'waits':
        process.says('serves')
    process.send(number)
    assert process.end() == (0, 'stops\n')


def test_a_signal_in_a_finalizer_ends_it(run):
    """Python ignores what its handler raises there."""
    process = run('loses')
    process.says('serves')
    assert process.end() == (0, 'stops\n')


def test_options_are_read_again(run):
    process = run('serves')
    process.says('serves')
    process.send(signal.SIGHUP)
    process.says('options')
    process.send(signal.SIGTERM)
    assert process.end() == (0, 'stops\n')


def test_a_second_sigterm_does_not_cut_its_stop_short_and_a_second_sigint_does(run):
    process = run('hangs')
    process.says('serves')
    process.send(signal.SIGTERM)
    process.says('stops')
    process.send(signal.SIGTERM)
    process.send(signal.SIGINT)
    assert process.end() == (-signal.SIGINT, '')


@pytest.mark.parametrize('before', [[], ['unshare', '--pid', '--fork', '--kill-child=KILL']],
                         ids=['by systemd', 'first of a container'])
def test_a_stop_that_hangs_has_an_end(tmp_path, before):
    """The first process of a container is ended by no signal that it has no handler for."""
    if before and subprocess.run([*before, 'true'], capture_output=True, check=False).returncode:
        pytest.skip('no namespace can be made')
    works = WORKS.replace('sys.exit(cli', 'cli._STOP_SECONDS = 1\nsys.exit(cli').replace(
        "say('serves')", 'os.kill(os.getpid(), 15)')
    done = subprocess.run(
        [*before, sys.executable, '-W', 'ignore', '-c', works, 'hangs', str(tmp_path / 'state')],
        capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, 'starts\nstops\n')
    assert 'in stop' in done.stderr, 'where it hangs'


def test_what_keeps_it_from_serving_ends_it(run):
    assert run('fails').end() == (1, 'stops\n')


def test_the_state_directory_is_locked_for_as_long_as_it_works_on_it(run, tmp_path):
    process, state = run('hangs'), str(tmp_path / 'state')
    process.says('serves')
    process.send(signal.SIGTERM)
    process.says('stops')
    with pytest.raises(exception.BootcacheError, match='another glance-bootcache works'):
        service._only_one(state)
    process.close()
    os.close(service._only_one(state))


def test_a_value_that_an_option_cannot_have_is_told(tmp_path, capsys, monkeypatch):
    path = tmp_path / 'bootcache.conf'
    path.write_text('[bootcache]\nexport_port = hello\n')
    monkeypatch.setattr(cfg, 'CONF', cfg.ConfigOpts())
    assert service.main(['--config-file', str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f'glance-bootcache cannot be started: [bootcache]export_port in {path}: \'hello\' is no'
        ' whole number; correct it, or take it out for its default')
