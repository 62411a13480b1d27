"""How the exporter's log tells of a loop of errors; the loop itself is in tests/functional."""

import collections
import os
import threading
import types

import pytest
from fakes_manager import FakeExporter, until

from bootcache import errorlog, exception, savefile
from bootcache.manifest import Availability
from glance_bootcache.images import readerrors
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.images.readerrors import ReadErrors
from glance_bootcache.storage import inspection

ERROR = (b'qemu-storage-daemon: Disconnect client, due to: Failed to send reply: reading from file'
         b' failed: Input/output error\n')


def asked(name):
    return b"nbd_negotiate_handle_export_name_request Client requested export '%s'\n" % name


# Names that clients ask for are written as they come, lines and all.
FORGED = asked(b"x'\n" + (ERROR + asked(b'base-victim')) * 30 + asked(b'y')[:-2])


def test_one_that_comes_again_after_each_error():
    one, two = asked(b'base-one'), asked(b'base-two')
    assert errorlog.looping(ERROR * 30, one * 30) == 'base-one'
    # Others connect as well, as after a restart: less often, or more, than there are errors.
    assert errorlog.looping(ERROR * 30, one * 29 + two * 270) == 'base-one'
    assert errorlog.looping(ERROR * 3000, one * 2800 + two * 300) == 'base-one'
    assert errorlog.looping(ERROR * 30, two * 9) is None
    assert errorlog.looping(ERROR * 30, b'') is None


def test_many_clients_that_meet_no_error_are_none():
    """As when the exporter was started anew."""
    assert errorlog.looping(b'', asked(b'base-one') * 5000) is None


def test_some_errors_are_no_loop():
    assert errorlog.looping(ERROR * 5, asked(b'base-one') * 5) is None
    assert errorlog.looping(b'', b'') is None


def test_what_a_client_says_is_no_error():
    assert errorlog.looping(b'', FORGED * 100) is None
    assert errorlog.looping(ERROR * 19, asked(b'base-one') * 19 + FORGED) is None


def test_a_file_of_names_that_was_cut_goes_on_with_a_hole(tmp_path, monkeypatch):
    """QEMU does not append to it."""
    monkeypatch.setattr(errorlog, '_MOST_LOG', 1000)
    path, names = tmp_path / 'exporter.log', tmp_path / 'exporter.asked'
    names.touch()
    log = errorlog.ErrorLog(str(path))
    with open(names, 'wb') as daemon:
        for _again in range(3):
            daemon.write(asked(b'base-one') * 30)
            daemon.flush()
            path.write_bytes(ERROR * 30)
            assert log.looping() == 'base-one'
            assert os.path.getsize(names) == 0
            path.unlink()
            log.forget()


def test_the_logs_of_many_exporters_are_looked_at_in_turn(monkeypatch):
    class Log:
        def __init__(self, path):
            self.path = path

        def looping(self):
            looked[self.path] += 1

    looked = collections.Counter()
    monkeypatch.setattr(readerrors, 'ErrorLog', Log)
    monkeypatch.setattr(readerrors, '_MOST_LOGS', 2)
    exporters = types.SimpleNamespace(log_paths=['a', 'b', 'c', 'd', 'e'])
    errors = ReadErrors(None, exporters, None, None, None)
    for number in range(1, 4):
        errors.once()
        assert looked.total() <= 2 * number
    assert looked == dict.fromkeys('abcde', 1)
    exporters.log_paths = ['a', 'f']
    errors.once()
    assert looked['f'] == 1 and looked.total() == 7


def test_what_an_exporter_does_not_serve_is_not_taken_out_by_its_log(house, errors):
    image = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    house.images.put(image)
    house.changed(image)
    house.settle()
    errors.exporter.elsewhere.add(f'base-{image}')
    errors.loops(image)
    assert not errors.exporter.suspended
    errors.exporter.elsewhere.clear()
    errors.loops(image)
    assert errors.exporter.suspended == {image}


@pytest.mark.parametrize('says, lacks', [
    (b'error: --trace file=...: option not supported by the selected tracing backends\n', True),
    (b'qemu-storage-daemon: cannot listen\n', False)])
def test_a_daemon_that_was_built_to_log_no_events(tmp_path, says, lacks, caplog):
    (tmp_path / 'log').write_bytes(b'x' * 2000 + b'\n' + says)
    assert errorlog.lacks_events(str(tmp_path / 'log')) is lacks
    assert ('built to log no events' in caplog.text) is lacks


def test_a_log_is_read_once_and_kept_short(tmp_path, monkeypatch):
    monkeypatch.setattr(errorlog, 'MOST_READ', 100)
    monkeypatch.setattr(errorlog, '_MOST_LOG', 1000)
    path = tmp_path / 'log'
    log = errorlog._Growing(str(path))
    assert log.news() == b''
    path.write_bytes(b'one')
    log = errorlog._Growing(str(path))
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
        self.log_paths, self.suspended, self.elsewhere = [log_path], set(), set()

    def may_serve(self, log_path, export):
        """As Exporters.may_serve."""
        return log_path in self.log_paths and export not in self.elsewhere

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
    errors = ReadErrors(house.store, exporter, house.tiers, house.running,
                        CephBases(house.conf))

    def loops(image_id):
        with open(log, 'ab') as daemon:
            daemon.write(ERROR * 30)
        with open(errorlog.apart(str(log)), 'ab') as daemon:
            daemon.write(asked(f'base-{image_id}'.encode()) * 30)
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
        house.changed(image)
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


@pytest.mark.parametrize('heard', [Availability.MISSING, Availability.DELETION_NOTIFIED,
                                   Availability.DELETED])
@pytest.mark.parametrize('fault', ['bad sector', 'other hash'])
def test_the_last_copy_of_a_base_stays_whatever_is_wrong_with_it(house, errors, monkeypatch,
                                                                 heard, fault):
    """Glance says that it does not have the image: servers run from what is here."""
    image = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    if heard is not Availability.DELETED:
        house.conf.set_override('deletion_delay', 300, 'bootcache')
        house.restart()
    house.images.put(image)
    house.changed(image)
    house.settle()
    house.boots.servers.add(image)
    del house.images.images[image]
    if heard is Availability.MISSING:
        house.changed(image)
    else:
        house.deleted(image)
    before = house.store.load(image)
    assert before.wished.availability is heard
    if fault == 'bad sector':
        monkeypatch.setattr(inspection, 'read_all', refuse)
        errors.loops(image)
    else:
        with open(before.made.base_path, 'r+b') as stream:
            stream.write(b'x')
        errors.hash_changed()
    errors._looks.shutdown(wait=True)
    assert house.store.load(image) == before and os.path.exists(before.made.base_path)
    assert errors.exporter.suspended == {image}, 'it is served no more'


def test_a_base_that_is_written_while_it_is_hashed_is_hashed_again(house, errors, monkeypatch):
    """As while an operator puts it back."""
    image = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    house.images.put(image)
    house.changed(image)
    house.settle()
    path, real, grown = house.store.load(image).made.base_path, savefile.file_digest, []
    with open(path, 'rb') as stream:
        content = stream.read()

    def write(data):
        with open(path, 'wb') as stream:
            stream.write(data)

    def digest(*arguments):
        found = real(*arguments)
        if not grown:
            grown.append(path)
            write(content)
        return found

    write(content[:-1])
    monkeypatch.setattr(savefile, 'file_digest', digest)
    errors.hash_changed()
    until(lambda: not errors.exporter.suspended, 'the end of the first look')
    assert house.store.load(image).made.base_path == path
    errors.hash_changed()
    until(lambda: not errors.exporter.suspended, 'the end of the second look')
    assert house.store.load(image).made.base_file == savefile.signature(path)


def refuse(*_arguments):
    raise exception.ImageRefused('a part of it cannot be read: Input/output error')
