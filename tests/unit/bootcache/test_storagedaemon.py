"""What the QMP library may do; the daemon itself is in tests/functional/test_storagedaemon.py."""

import asyncio
import logging
import socket
import threading
import time

import pytest

from bootcache import exception, monitor
from bootcache.storagedaemon import StorageDaemon, UnixListener
from bootcache.util.backoff import CircuitBreaker


class EndsAfterItsGreeting:
    """Stands for the library's client of a daemon that crashes at this very moment."""

    def __init__(self, name):
        self.logger = logging.getLogger(name)

    async def connect(self, path):
        raise AssertionError


def test_a_daemon_that_ends_after_its_greeting_does_not_answer(tmp_path, monkeypatch):
    """The library has an assertion for it that may fail: which thread is first decides."""
    monkeypatch.setattr(monitor, 'QMPClient', EndsAfterItsGreeting)
    daemon = StorageDaemon('x', str(tmp_path), UnixListener(str(tmp_path / 'nbd')))
    (tmp_path / 'x.qmp').touch()
    assert daemon.answers() is False


class Hangs:
    """Stands for the library's client of a daemon whose monitor takes connections, and hangs."""

    def __init__(self, name):
        self.logger = logging.getLogger(name)

    async def connect(self, path):
        Hangs.asked += 1
        await asyncio.sleep(3600)


def hanging(tmp_path, monkeypatch, breaker):
    monkeypatch.setattr(monitor, 'QMPClient', Hangs)
    Hangs.asked = 0
    (tmp_path / 'x.qmp').touch()
    return StorageDaemon('x', str(tmp_path), UnixListener(str(tmp_path / 'nbd')), patience=0.05,
                         breaker=breaker)


def test_a_daemon_that_hangs_is_asked_once_in_a_while(tmp_path, monkeypatch):
    daemon = hanging(tmp_path, monkeypatch, CircuitBreaker(1, 3600))
    for words in ('no answer on', 'did not answer just now', 'did not answer just now'):
        with pytest.raises(exception.StorageDaemonBusy, match=words), daemon.session():
            pass
    assert Hangs.asked == 1


def test_a_daemon_that_did_not_answer_just_now_is_not_queued_for(tmp_path, monkeypatch):
    """Whoever has its monitor may wait for it in vain."""
    daemon = hanging(tmp_path, monkeypatch, CircuitBreaker(1, 3600))
    with pytest.raises(exception.StorageDaemonBusy), daemon.session():
        pass
    held, end = threading.Event(), threading.Event()

    def hold():
        with daemon.monitor.alone():
            held.set()
            end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        with pytest.raises(exception.StorageDaemonBusy, match='just now'), daemon.session():
            pass
    finally:
        end.set()
        thread.join()


def test_without_a_breaker_it_is_asked_each_time(tmp_path, monkeypatch):
    daemon = hanging(tmp_path, monkeypatch, None)
    assert [daemon.answers() for _ in range(3)] == [False] * 3 and Hangs.asked == 3


def test_nobody_waits_for_ever_for_another_who_has_the_monitor(tmp_path, monkeypatch):
    daemon = hanging(tmp_path, monkeypatch, CircuitBreaker(1, 3600))
    held, end = threading.Event(), threading.Event()

    def hold():
        with daemon.monitor.alone():
            held.set()
            end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        with pytest.raises(exception.StorageDaemonBusy, match='in use'), daemon.session():
            pass
    finally:
        end.set()
        thread.join()
    assert Hangs.asked == 0


def test_who_stands_in_a_queue_waits_as_long_as_the_daemon_answers(tmp_path):
    """Each of many that start at once on a slow disk has it for a while."""
    asked = monitor.Monitor('x', str(tmp_path / 'x.qmp'), 0.1, 1, CircuitBreaker(1, 3600),
                            queue_seconds=3600)
    held, waits, end = threading.Event(), threading.Event(), threading.Event()

    def hold():
        with asked.alone():
            held.set()
            while not end.wait(0.001):
                asked.heard()
            # From here on it says nothing.
            waits.wait(30)

    def queue():
        began = time.monotonic()
        try:
            with asked.alone():
                found.append('had it')
        except exception.StorageDaemonBusy as error:
            found.append((str(error), time.monotonic() - began))

    found = []
    holder, waiter = threading.Thread(target=hold), threading.Thread(target=queue)
    holder.start()
    held.wait(30)
    waiter.start()
    # Five times as long as it has patience for.
    waiter.join(0.5)
    assert waiter.is_alive() and not found
    end.set()
    waiter.join(30)
    (words, seconds), = found
    assert 'in use' in words and seconds > 0.5
    waits.set()
    holder.join()


@pytest.mark.parametrize('is_left', [False, True])
def test_nobody_who_listens_is_told_once_and_in_words(tmp_path, caplog, is_left):
    """The library that connects has lines of its own, without a path."""
    path = str(tmp_path / 'gateway.qmp')
    if is_left:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
    with pytest.raises(exception.StorageDaemonError) as caught, \
            monitor.Monitor('gateway', path, 5, 5).session():
        raise AssertionError('there is a session')
    assert str(caught.value) == f'gateway: no answer on {path}: nobody listens there'
    assert caplog.records == []


class Answers:
    """Stands for the library's client of a daemon that does all that it is told."""

    def __init__(self, name):
        self.logger = logging.getLogger(name)

    async def connect(self, path):
        pass

    async def execute(self, command, arguments):
        Answers.told.append(command)

    async def disconnect(self):
        pass


def test_a_change_that_is_not_to_be_made_is_not_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, 'QMPClient', Answers)
    Answers.told = []
    asked = monitor.Monitor('x', str(tmp_path / 'x.qmp'), 5, 5)

    def refuse():
        raise exception.StorageDaemonBusy('x: reads wait')

    changes = ['blockdev-add', 'blockdev-del', 'blockdev-reopen', 'block-export-add',
               'block-export-del']
    with asked.session() as session:
        for command in changes:
            session.execute(command)
        asked.before_change = refuse
        for command in changes:
            with pytest.raises(exception.StorageDaemonBusy, match='reads wait'):
                session.execute(command)
        session.execute('query-block-exports')
    assert Answers.told == [*changes, 'query-block-exports']
