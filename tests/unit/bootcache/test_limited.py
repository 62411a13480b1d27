"""Programs under limits, with a real shell: what they may take, and what their end tells."""

import signal
import subprocess

import pytest

from bootcache import limited
from bootcache.limited import Limits


def run(limits, *arguments):
    return subprocess.run(limited.command(limits, *arguments), capture_output=True, text=True)


def test_a_program_has_the_limits_and_its_arguments():
    done = run(Limits(7, 1 << 30, files=20, file_bytes=0), 'sh', '-c',
               'ulimit -S -t; ulimit -H -t; ulimit -v; ulimit -n; ulimit -f; echo "$1"', 'x',
               '$a b')
    assert done.stdout.split('\n')[:6] == ['7', '17', '1048576', '20', '0', '$a b']
    assert not done.stderr


def test_files_are_limited_where_that_is_wanted_only():
    before = subprocess.run(['sh', '-c', 'ulimit -n; ulimit -f'], capture_output=True, text=True)
    assert run(Limits(7, 1 << 30), 'sh', '-c', 'ulimit -n; ulimit -f').stdout == before.stdout


def test_too_much_cpu_time_is_told_from_a_kill():
    done = run(Limits(1, 1 << 30), 'sh', '-c', 'while :; do :; done')
    assert limited.took_too_long(done.returncode)
    assert not limited.was_interrupted(done.returncode)
    assert not limited.took_too_long(-signal.SIGKILL)


@pytest.mark.parametrize('name', ['KILL', 'TERM', 'INT', 'HUP', 'QUIT'])
def test_those_that_others_end(name):
    number = signal.Signals[f'SIG{name}']
    done = subprocess.run(
        limited.command(Limits(7, 1 << 30), 'sh', '-c', f'kill -{name} $$'),
        # A shell in the background has its children ignore some.
        preexec_fn=lambda: number != signal.SIGKILL and signal.signal(number, signal.SIG_DFL))
    assert limited.was_interrupted(done.returncode)


def test_those_that_are_not_begun():
    for command in ('/no/such/program', '/etc/passwd'):
        assert limited.was_interrupted(run(Limits(7, 1 << 30), command).returncode)
    # A limit that cannot be set.
    assert limited.was_interrupted(run(Limits(7, 1 << 30, files=1 << 62), 'true').returncode)


@pytest.mark.parametrize('code', [0, 1, 2, -signal.SIGSEGV, -signal.SIGABRT])
def test_others_tell_of_what_they_worked_on(code):
    assert not limited.was_interrupted(code) and not limited.took_too_long(code)
