"""One real qemu-storage-daemon: started, adopted, killed, and steered."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from functional_tools import processes_of, until
from storage_daemons import MIB, connect
from storage_daemons import base as base  # the fixture

from bootcache import exception


def kill(daemon):
    """End it as a crash does, and wait until the kernel is rid of it."""
    pid = daemon.pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: daemon.pid() is None, 'the end of the daemon')
    return pid


def test_under_eventlet_other_greenlets_go_on(directory):
    """nova-compute may still run with eventlet; the patching needs a process of its own."""
    script = f"""
import eventlet; eventlet.monkey_patch()
from bootcache.storagedaemon import StorageDaemon, UnixListener
daemon = StorageDaemon('green', {directory!r}, UnixListener({directory!r} + '/nbd'))
ticks = []
def tick():
    while True:
        ticks.append(1); eventlet.sleep(0)
eventlet.spawn(tick)
try:
    print(daemon.ensure_running(), daemon.ensure_running(), daemon.nodes(), len(ticks) > 3)
finally:
    daemon.stop()
"""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', script], text=True, timeout=60,
                          capture_output=True, check=False)
    assert done.stdout.split() == ['True', 'False', 'set()', 'True'], done.stderr


def test_under_eventlet_qmp_waits_for_no_green_lock(directory):
    """Such as logging's, which oslo.log makes a green one: a native thread never gets it again."""
    script = f"""
import eventlet; eventlet.monkey_patch()
import logging
from oslo_log import log
from bootcache.exception import StorageDaemonError
from bootcache.storagedaemon import StorageDaemon, UnixListener
log._fix_eventlet_logging()
daemon = StorageDaemon('green', {directory!r}, UnixListener({directory!r} + '/nbd'))
try:
    with logging._lock:
        try:
            daemon.nodes()
        except StorageDaemonError as error:
            print(type(error).__name__)
    print(daemon.ensure_running())
finally:
    daemon.stop()
"""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', script], text=True, timeout=60,
                          capture_output=True, check=False)
    # The library logs an error where there is nobody.
    assert done.stdout.split() == ['StorageDaemonError', 'True'], done.stderr


def test_start_and_stop(daemons):
    daemon = daemons()
    assert daemon.answers() is False and daemon.pid() is None
    assert daemon.ensure_running() is True
    assert daemon.answers() is True and daemon.pid() > 1
    assert daemon.ensure_running() is False
    assert daemon.nodes() == set() and daemon.exports() == {}
    pid = daemon.pid()
    daemon.stop()
    assert daemon.answers() is False and daemon.pid() is None
    until(lambda: not os.path.exists(f'/proc/{pid}'), 'the end of the process')
    daemon.stop()


def test_another_object_adopts_it(daemons, base):
    first, second = daemons(), daemons()
    first.ensure_running()
    first.add_nodes(*base.nodes('b-1'))
    first.add_export('base-1', 'b-1')
    assert second.ensure_running() is False
    assert second.pid() == first.pid()
    assert second.exports() == {'base-1': 'b-1'} and second.nodes() == {'b-1', 'b-1f'}
    second.stop()
    assert first.answers() is False


def test_started_anew_after_a_crash(daemons, base):
    daemon = daemons()
    daemon.ensure_running()
    daemon.add_nodes(*base.nodes('b-1'))
    old = kill(daemon)
    assert daemon.answers() is False
    assert daemon.ensure_running() is True
    assert daemon.pid() != old and daemon.nodes() == set()
    # Its socket serves again as well.
    daemon.add_nodes(*base.nodes('b-1'))
    daemon.add_export('base-1', 'b-1')
    handle = connect(daemon.listener.path, 'base-1')
    assert handle.get_size() == MIB
    handle.shutdown()


def test_commands_fail_clearly_when_it_is_gone(daemons):
    daemon = daemons()
    daemon.ensure_running()
    kill(daemon)
    for call in (daemon.nodes, daemon.exports):
        with pytest.raises(exception.StorageDaemonError, match='daemon'):
            call()


def test_a_frozen_monitor_of_a_stranger_is_not_adopted(daemons, directory):
    """A pid file that names another process: that one is not ended."""
    daemon = daemons()
    other = subprocess.Popen(['sleep', '600'])
    try:
        os.makedirs(daemon.directory)
        with open(daemon.pid_path, 'w') as stream:
            stream.write(str(other.pid))
        assert daemon.pid() is None
        assert daemon.ensure_running() is True
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def is_frozen(pid):
    """Tell whether all threads of a process that was sent SIGSTOP are stopped."""
    return all(Path(task, 'stat').read_text().rpartition(')')[2].split()[0] == 'T'
               for task in Path(f'/proc/{pid}/task').iterdir())


def is_pending(pid, signum):
    """Tell whether a process that is frozen, or gone, has been sent a signal."""
    try:
        with open(f'/proc/{pid}/status') as stream:
            masks = dict(line.split(':') for line in stream if line.startswith('ShdPnd'))
    except FileNotFoundError:
        return True
    return bool(int(masks['ShdPnd'], 16) >> (signum - 1) & 1)


def test_stop_waits_for_the_process_not_for_its_pid_file(daemons):
    """The daemon removes its pid file before it has ended; frozen, it stays at that point."""
    daemon = daemons()
    daemon.ensure_running()
    pid = daemon.pid()
    os.kill(pid, signal.SIGSTOP)
    # Of two signals that wait the kernel delivers the lower one first: SIGTERM is to come later.
    until(lambda: is_frozen(pid), 'the daemon is stopped')
    ending = threading.Thread(target=daemon.stop, args=(3,))
    ending.start()
    until(lambda: is_pending(pid, signal.SIGTERM), 'the signal that is to end it')
    os.unlink(daemon.pid_path)
    ending.join(60)
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as stream:
            assert daemon.monitor_path.encode() not in stream.read()
    except FileNotFoundError:
        pass


def program(directory, text):
    path = f'{directory}/program'
    with open(path, 'w') as stream:
        stream.write(text)
    os.chmod(path, 0o755)
    return path


def test_one_that_crashes_as_it_starts_is_started_again(daemons, directory):
    crashed = f'{directory}/crashed'
    daemon = daemons(binary=program(
        directory, f'#!/bin/sh\nmkdir {crashed} 2>/dev/null && kill -SEGV $$\n'
                   'exec qemu-storage-daemon "$@"\n'))
    assert daemon.ensure_running() is True
    assert os.path.isdir(crashed) and daemon.nodes() == set()


def test_one_that_always_crashes_is_an_error(daemons, directory):
    daemon = daemons(binary=program(directory, '#!/bin/sh\nkill -SEGV $$\n'))
    with pytest.raises(exception.StorageDaemonError, match='did not come up'):
        daemon.ensure_running()


def test_one_that_hangs_as_it_starts_is_not_left_behind(daemons, directory, monkeypatch):
    monkeypatch.setattr('bootcache.storagedaemon._START_SECONDS', 1)
    daemon = daemons(binary=program(
        directory, f'#!{sys.executable}\nimport time\ntime.sleep(600)\n'))
    with pytest.raises(exception.StorageDaemonError, match='did not come up'):
        daemon.ensure_running()
    assert processes_of(daemon.directory) == []


@pytest.mark.parametrize('content', ['', 'x', '999999999'])
def test_a_damaged_pid_file(daemons, content):
    daemon = daemons()
    os.makedirs(daemon.directory)
    with open(daemon.pid_path, 'w') as stream:
        stream.write(content)
    assert daemon.pid() is None and daemon.ensure_running() is True


def test_many_threads_start_one(daemons):
    daemon = daemons()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(daemon.ensure_running()))
               for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]


def test_many_threads_share_the_monitor(daemons, base):
    daemon = daemons()
    daemon.ensure_running()
    failures = []

    def work(number):
        try:
            for turn in range(3):
                daemon.add_nodes(*base.nodes(f'n{number}-{turn}'))
                daemon.remove_nodes(f'n{number}-{turn}', f'n{number}-{turn}f')
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and daemon.nodes() == set()


def test_a_session_within_a_session_is_the_same_one(daemons, base):
    """The monitor serves one client: another one would wait for the first, which waits for it."""
    daemon = daemons()
    daemon.ensure_running()
    with daemon.session() as session:
        with daemon.session() as inner:
            assert inner is session and daemon.nodes() == set()
        assert session.execute('query-version')
    assert daemon.answers()
