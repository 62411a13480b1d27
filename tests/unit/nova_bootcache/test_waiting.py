"""A server whose chain cannot be opened just now waits; one whose chain never can does not.

Time, the gateway and the storage service are stand-ins.
"""

import os

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from fakes_letting_go import IMAGE, place
from fakes_letting_go import host as host  # the fixture
from nova import exception as nova_exception

from bootcache import exception
from nova_bootcache.chains import chainstores

PASSING = [exception.StorageDaemonBusy('busy'), exception.StorageNodeAway('away'),
           exception.StorageDaemonError('killed'), exception.StorageServiceAway('away'),
           messaging.MessagingTimeout('bus'),
           exception.ConfigurationError('client-key.pem cannot be read')]
LASTING = [exception.BootcacheError('another content'), OSError('disk'), ValueError('a fault')]


class EventfulClock(Clock):
    """Things happen at given seconds."""

    def __init__(self):
        super().__init__()
        self.then = {}

    def sleep(self, seconds):
        super().sleep(seconds)
        for at in [at for at in self.then if self.now >= 5000 + at]:
            self.then.pop(at)()


@pytest.fixture
def clock(monkeypatch):
    clock = EventfulClock()
    clock.retry_by(monkeypatch)
    return clock


@pytest.fixture
def gateway(host, monkeypatch, tmp_path):
    """The gateway of a host that has a cache image, and a server's disk."""
    place(host)
    (tmp_path / 'disk').touch()
    monkeypatch.setattr(host.cache, 'entry', host.cache.known)
    host.tries, host.error = [], None

    def ensure_base(remote):
        host.tries.append(remote.image_id)
        if host.error is not None:
            raise host.error

    monkeypatch.setattr(host.gateway, 'ensure_base', ensure_base)
    monkeypatch.setattr(host.storage, 'ask', lambda *_arguments: None)
    return host


def disk(tmp_path):
    return str(tmp_path / 'disk')


@pytest.mark.parametrize('error', PASSING, ids=repr)
def test_a_start_waits_while_what_is_below_its_disk_is_away(gateway, clock, tmp_path, error,
                                                           caplog):
    gateway.error = error
    clock.then[12] = lambda: setattr(gateway, 'error', None)
    gateway.chains.keep_chain(IMAGE, disk(tmp_path), 60)
    assert clock.now == 5012 and gateway.needs.is_in_making(IMAGE), 'it is opened now'
    told = [record.getMessage() for record in caplog.records if 'waits' in record.getMessage()]
    assert told == [f'bootcache: {disk(tmp_path)} waits, for 60 s at most: {error}']


@pytest.mark.parametrize('error', PASSING, ids=repr)
def test_it_fails_in_the_end_with_what_it_waited_for(gateway, clock, tmp_path, error):
    gateway.error = error
    with pytest.raises(type(error), match=str(error)):
        gateway.chains.keep_chain(IMAGE, disk(tmp_path), 60)
    assert clock.now == 5060 and not gateway.needs.is_in_making(IMAGE)


@pytest.mark.parametrize('error', PASSING, ids=repr)
def test_a_guest_that_waits_is_started_at_once(gateway, clock, tmp_path, error, monkeypatch,
                                               caplog):
    gateway.error, absent = error, []
    monkeypatch.setattr(gateway.gateway, 'serve_absent', lambda *what: absent.append(what))
    gateway.chains.keep_chain(IMAGE, disk(tmp_path), 60, guest_waits=True)
    entry = gateway.cache.known(IMAGE)
    assert absent == [(entry.remote, entry.virtual_bytes)]
    assert clock.now == 5000 and 'is paused, and resumes by itself' in caplog.text


@pytest.mark.parametrize('error', LASTING, ids=repr)
def test_no_guest_is_started_on_what_does_not_pass(gateway, clock, tmp_path, error, monkeypatch):
    gateway.error = error
    monkeypatch.setattr(gateway.gateway, 'serve_absent', pytest.fail)
    with pytest.raises(type(error), match=str(error)):
        gateway.chains.keep_chain(IMAGE, disk(tmp_path), 60, guest_waits=True)


def test_a_gateway_that_does_not_answer_is_waited_for_all_the_same(gateway, clock, tmp_path,
                                                                   monkeypatch):
    gateway.error = PASSING[0]

    def serve_absent(*_what):
        raise gateway.error

    monkeypatch.setattr(gateway.gateway, 'serve_absent', serve_absent)
    clock.then[12] = lambda: setattr(gateway, 'error', None)
    gateway.chains.keep_chain(IMAGE, disk(tmp_path), 60, guest_waits=True)
    assert clock.now == 5012


@pytest.mark.parametrize('error', LASTING, ids=repr)
def test_what_does_not_pass_is_told_at_once(gateway, clock, tmp_path, error):
    gateway.error = error
    with pytest.raises(type(error), match=str(error)):
        gateway.chains.keep_chain(IMAGE, disk(tmp_path), 60)
    assert clock.now == 5000


def test_without_patience_nobody_waits(gateway, clock, tmp_path):
    gateway.error = PASSING[0]
    with pytest.raises(exception.StorageDaemonBusy):
        gateway.chains.keep_chain(IMAGE, disk(tmp_path))
    assert clock.now == 5000


def test_a_server_that_is_deleted_meanwhile_does_not_wait(gateway, clock, tmp_path):
    gateway.error = PASSING[1]
    clock.then[5] = lambda: os.unlink(disk(tmp_path))
    with pytest.raises(exception.StorageNodeAway):
        gateway.chains.keep_chain(IMAGE, disk(tmp_path), 600)
    assert clock.now == 5005 and len(gateway.tries) == 5, 'its chain is not made after its end'


@pytest.mark.parametrize('answer, seconds', [
    (None, 60), ({'action': 'wait', 'reason': 'prepared', 'ready_in': 5000}, 60),
    ({'action': 'stock', 'reason': 'it is no more'}, 0)])
def test_a_cache_image_that_is_lost_is_waited_for_if_it_may_come(gateway, clock, tmp_path,
                                                                monkeypatch, answer, seconds):
    monkeypatch.setattr(gateway.storage, 'ask', lambda *_arguments: answer)
    gateway.cache.remove(IMAGE)
    with pytest.raises(exception.BootcacheError, match='is gone from this host'):
        gateway.chains.keep_chain(IMAGE, disk(tmp_path), 60)
    assert clock.now == 5000 + seconds


@pytest.mark.parametrize('error', [*PASSING, *LASTING, nova_exception.InternalError('x')],
                         ids=repr)
def test_what_passes(error):
    assert chainstores.passes(error) is (error in PASSING)
    assert not chainstores.passes(None)
