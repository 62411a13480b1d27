"""How the exporter's log tells of a loop of errors; the loop itself is in tests/functional."""

import os
import threading

import pytest
from fakes_manager import FakeExporter, until

from glance_bootcache.images import readerrors
from glance_bootcache.images.readerrors import ReadErrors
from glance_bootcache.storage import inspection

ERROR = (b'qemu-storage-daemon: Disconnect client, due to: Failed to send reply: reading from file'
         b' failed: Input/output error\n')


def asked(name):
    return b"nbd_negotiate_handle_export_name_request Client requested export '%s'\n" % name


def test_one_that_comes_again_after_each_error():
    assert readerrors.looping((ERROR + asked(b'base-one')) * 30) == 'base-one'


def test_two_loops_one_after_the_other():
    log = (ERROR + ERROR + asked(b'base-one') + asked(b'base-two')) * 30
    assert readerrors.looping(log) == 'base-one'


def test_many_clients_that_meet_no_error_are_none():
    """As when the exporter was started anew."""
    assert readerrors.looping(asked(b'base-one') * 5000) is None
    storm = b''.join(ERROR + asked(b'base-one') + asked(b'base-two') * 9 for _ in range(30))
    assert readerrors.looping(storm) == 'base-one'


def test_some_errors_are_no_loop():
    assert readerrors.looping((ERROR + asked(b'base-one')) * 5) is None
    # An exporter of an earlier version, which runs on, does not say which it is.
    assert readerrors.looping(ERROR * 500) is None
    assert readerrors.looping(b'') is None


def test_a_log_is_read_once_and_kept_short(tmp_path, monkeypatch):
    monkeypatch.setattr(readerrors, '_MOST_READ', 100)
    monkeypatch.setattr(readerrors, '_MOST_LOG', 1000)
    path = tmp_path / 'log'
    log = readerrors.ErrorLog(str(path))
    assert log.news() == b''
    path.write_bytes(b'one')
    log = readerrors.ErrorLog(str(path))
    assert log.news() == b'', 'what an earlier process saw'
    with open(path, 'ab') as daemon:
        daemon.write(b' two')
        daemon.flush()
        assert log.news() == b' two' and log.news() == b''
        daemon.write(b'x' * 2000)
        daemon.flush()
        assert log.news() == b'x' * 100 and os.path.getsize(path) == 0
        daemon.write(b'three')
        daemon.flush()
        assert log.news() == b'three'


# Bases that are looked into.

class Exporter(FakeExporter):
    """As fakes_manager.FakeExporter, with a log."""

    def __init__(self, log_path):
        super().__init__()
        self.log_path, self.suspended = log_path, set()

    def suspend(self, image_id):
        """As Exporter.suspend."""
        is_new = image_id not in self.suspended
        self.suspended.add(image_id)
        return is_new

    def resume(self, image_id):
        """As Exporter.resume."""
        self.suspended.discard(image_id)

    def cut_off(self, export):
        """As Exporter.cut_off."""


@pytest.fixture
def errors(house, tmp_path):
    log = tmp_path / 'log'
    log.touch()
    exporter = Exporter(str(log))
    errors = ReadErrors(house.store, exporter, house.tiers, house.manager.jobs,
                        house.manager.shown)

    def loops(image_id):
        with open(log, 'ab') as daemon:
            daemon.write((ERROR + asked(f'base-{image_id}'.encode())) * 30)
        errors.once()

    errors.loops, errors.exporter = loops, exporter
    yield errors
    errors.stop()


def test_one_owners_base_that_takes_hours_holds_up_no_other(house, errors, monkeypatch):
    """It was read before all others; those were served by nobody meanwhile."""
    hostile = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in (1, 2, 3)]
    other = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    for image in (*hostile, other):
        house.images.put(image, owner='another' if image == other else 'hostile')
        house.manager.consider(image)
    house.settle()
    slow = {house.store.load(image).made.base_path for image in hostile}
    go_on, reading = threading.Event(), []

    def read_all(path, inspected, stored_bytes, check):
        reading.append(path)
        if path in slow:
            assert go_on.wait(60)

    monkeypatch.setattr(inspection, 'read_all', read_all)
    try:
        for image in (*hostile, other):
            errors.loops(image)
        until(lambda: other not in errors.exporter.suspended, 'the end of the other one')
        assert errors.exporter.suspended == set(hostile)
    finally:
        go_on.set()
    until(lambda: not errors.exporter.suspended, 'the end of all')
    assert len(reading) == 4
