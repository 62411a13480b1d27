"""How tests are shared out between processes that run beside each other, and what is told then."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.testrun import __main__ as testrun
from tools.testrun import share

TOP = Path(__file__).resolve().parents[2]


def test_the_longest_files_come_first():
    counts = {'a': 1, 'b': 1, 'c': 4, 'd': 1}
    assert share.order(counts, {'a': 100, 'b': 31}) == ['c', 'a', 'b', 'd']


def test_files_whose_time_is_recorded_are_there():
    for name in json.loads(share.DURATIONS.read_text()):
        assert (TOP / name).exists(), f'{name} is gone; take it out of {share.DURATIONS}'


def test_each_file_is_claimed_once_and_stays_together(tmp_path):
    items = [SimpleNamespace(location=(name, number, ''))
             for number in range(2) for name in ('tests/a.py', 'tests/b.py', 'tests/c.py')]
    seconds = {'tests/a.py': 1, 'tests/b.py': 3, 'tests/c.py': 2}
    first, second = (share.claimed(items, tmp_path, seconds) for _process in range(2))
    names = [next(first).location[0], next(second).location[0]]
    assert names == ['tests/b.py', 'tests/c.py']
    assert [item.location[:2] for item in first] \
        == [('tests/b.py', 1), ('tests/a.py', 0), ('tests/a.py', 1)]
    assert [item.location[:2] for item in second] == [('tests/c.py', 1)]


FILE = '''
import pytest
@pytest.fixture(scope='module')
def thing():
    yield 1
def test_one(thing): pass
def test_two(thing): assert {good}
@pytest.mark.skip
def test_three(): pass
'''


def test_two_processes_run_each_test_once_and_tell_what_came_of_it(tmp_path):
    (tmp_path / 'share' / 'e2e').mkdir(parents=True)
    # Beside it: what was claimed has the name of the file, and a process that starts late would
    # collect it.
    tests = tmp_path / 'tests'
    tests.mkdir()
    for number in range(4):
        (tests / f'test_{number}.py').write_text(FILE.format(good=number != 2))
    processes = []
    for name in ('e2e-1', 'e2e-2'):
        environment = {**os.environ, 'BOOTCACHE_SHARE': str(tmp_path / 'share' / 'e2e'),
                       'BOOTCACHE_SHARE_NAME': name, 'PYTHONPATH': str(TOP)}
        processes.append(subprocess.Popen(
            [sys.executable, '-m', 'pytest', '-p', 'tools.testrun.share', '-p', 'no:cacheprovider',
             '-c', os.devnull,
             '--rootdir', str(tests), str(tests)], env=environment, cwd=tests,
            stdout=subprocess.DEVNULL))
    assert sorted(process.wait(60) for process in processes) == [0, 1]
    counts, bad, wrong, seconds = testrun.summary(tmp_path / 'share')
    assert counts == {'passed': 7, 'failed': 1, 'skipped': 4} and wrong == []
    assert [test for _lane, test in bad] == ['test_2.py::test_two']
    assert sorted(seconds) == [f'test_{number}.py' for number in range(4)]


def test_tests_that_no_process_has_told_of_are_missed(tmp_path):
    document = {'collected': 9, 'ran': 4, 'counts': {'passed': 4}, 'bad': [], 'seconds': {}}
    (tmp_path / 'e2e').mkdir()
    for name, ran in (('e2e-1', 4), ('e2e-2', 3)):
        (tmp_path / 'e2e' / f'{name}.json').write_text(json.dumps({**document, 'ran': ran}))
    assert testrun.summary(tmp_path)[2] == ['e2e: 2 of 9 tests were not run']


@pytest.mark.parametrize('counts, line', [
    ({'passed': 900, 'skipped': 2}, '900 passed, 2 skipped in 61s'),
    ({'passed': 3, 'failed': 1, 'error': 2}, '1 failed, 3 passed, 2 errors in 61s'),
    ({}, 'no tests ran in 61s')])
def test_the_last_line_is_as_pytest_has_it(counts, line):
    assert testrun.last_line(Counter(counts), 61.2) == line


def test_lanes(tmp_path):
    lanes = testrun.lanes_of(['unit', 'functional', 'e2e'], 2, tmp_path)
    assert [(lane.name, lane.parts, lane.home.name) for lane in lanes] == [
        ('local', ['unit', 'functional'], tmp_path.name),
        ('e2e-1', ['e2e', 'functional'], 'test1'), ('e2e-2', ['e2e', 'functional'], 'test2')]
    assert [lane.parts for lane in testrun.lanes_of(['unit', 'e2e'], 1, tmp_path)] \
        == [['unit'], ['e2e']]
    (tmp_path / 'test1' / 'cloud').mkdir()
    assert os.readlink(tmp_path / 'test1' / 'venv') == '../venv'
    # What a run that was killed left does not stay.
    testrun.lanes_of(['e2e'], 1, tmp_path)
    assert not (tmp_path / 'test1' / 'cloud').exists()


@pytest.mark.parametrize(('gib', 'clouds'), [(4, 2), (11, 2), (12, 3), (24, 3), (512, 3)])
def test_clouds_are_as_many_as_the_memory_bears(gib, clouds):
    assert testrun.default_clouds(gib << 30) == clouds


def marked(mark):
    """The processes that have a word in their environment."""
    found = []
    for path in Path('/proc').glob('[0-9]*'):
        try:
            if mark.encode() in (path / 'environ').read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found


def namespaces_work():
    return os.geteuid() == 0 and subprocess.run(
        ['unshare', '--net', '--pid', '--fork', '--mount-proc', 'true'], check=False,
        stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not namespaces_work(), reason='needs namespaces of its own, so root')
def test_nothing_stays_when_the_run_is_killed(tmp_path):
    """Not even a daemon in a session of its own."""
    mark = f'lane-of-{tmp_path}'
    script = ('import subprocess, sys; from tools.testrun.__main__ import NAMESPACES;'
              'subprocess.Popen([*NAMESPACES, *sys.argv[1:]], start_new_session=True).wait()')
    begun = tmp_path / 'begun'
    process = subprocess.Popen(
        [sys.executable, '-c', script, 'sh', '-c',
         f'setsid sleep 600 & mount -t tmpfs tmpfs /mnt; touch {begun}; sleep 600'],
        cwd=TOP, env={**os.environ, 'MARK': mark})
    deadline = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(marked(mark)) >= 4
    process.send_signal(signal.SIGKILL)
    process.wait()
    while marked(mark):
        assert time.monotonic() < deadline, marked(mark)
        time.sleep(0.05)


@pytest.mark.skipif(not namespaces_work(), reason='needs namespaces of its own, so root')
def test_a_lock_of_a_terminal_that_another_namespace_left_is_not_seen():
    """libvirt locks /dev/pts/N by a process's number there, which may well run here, as 1 does."""
    stale = Path('/var/lock/LCK.._pts_bootcache_test')
    stale.write_text('         1\n')
    try:
        lane = subprocess.run([*testrun.NAMESPACES, 'sh', '-c',
                               f'test ! -e {stale} && touch {stale}.new'], check=False)
        assert lane.returncode == 0
        assert stale.exists() and not Path(f'{stale}.new').exists()
    finally:
        stale.unlink()
