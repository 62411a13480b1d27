"""What the QMP library may do; the daemon itself is in tests/functional/test_storagedaemon.py."""

from bootcache import storagedaemon
from bootcache.storagedaemon import StorageDaemon, UnixListener


class EndsAfterItsGreeting:
    """Stands for the library's client of a daemon that crashes at this very moment."""

    def __init__(self, name):
        pass

    async def connect(self, path):
        raise AssertionError


def test_a_daemon_that_ends_after_its_greeting_does_not_answer(tmp_path, monkeypatch):
    """The library has an assertion for it that may fail: which thread is first decides."""
    monkeypatch.setattr(storagedaemon, 'QMPClient', EndsAfterItsGreeting)
    daemon = StorageDaemon('x', str(tmp_path), UnixListener(str(tmp_path / 'nbd')))
    (tmp_path / 'x.qmp').touch()
    assert daemon.answers() is False
