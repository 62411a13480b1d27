"""How the exporter's log tells of a loop of errors; the loop itself is in tests/functional."""

import os

from glance_bootcache.images import readerrors

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
