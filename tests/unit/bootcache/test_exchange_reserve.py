"""When the storage node is asked beside the hosts that a fetch was told of.

The exchange's process is stood for: what it tells of a fetch is given, and what it is asked noted.
"""

import types

import pytest

from bootcache import exception
from bootcache.exchange import client
from bootcache.exchange.client import Exchanged, FetchProgress

NEAR, STORAGE = ('192.0.2.7', 10811), ('192.0.2.1', 10811)


class Client:
    """A fetch of which so much is there, with so many hosts."""

    def __init__(self, clock, done, peers):
        self.clock, self.done, self.peers, self.asked = clock, done, peers, []

    def with_timeout(self, _seconds):
        return self

    def fetch(self, *_arguments):
        return 'name'

    def look(self, _name):
        return FetchProgress(False, self.done, 1 << 20, self.done, self.peers, '')

    def missing(self, _name):
        return [(0, 1 << 20)]

    def drop(self, _name):
        pass

    def connect(self, _name, peers):
        self.asked.append(('connect', peers))

    def start_over(self, _name, peers):
        self.asked.append(('start over', peers))


@pytest.mark.parametrize('done, peers, first', [
    # Far back in a line: those before it have nothing yet.
    (0, {NEAR[0]: 0}, (NEAR,)),
    # They have gone.
    (0, {}, (NEAR, STORAGE)),
    # Or do not go on.
    (65536, {NEAR[0]: 65536}, (NEAR, STORAGE))])
def test_who_is_asked_when_nothing_comes(monkeypatch, done, peers, first):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(client, 'time', types.SimpleNamespace(
        monotonic=lambda: clock.now,
        sleep=lambda seconds: setattr(clock, 'now', clock.now + seconds)))
    asked = Client(clock, done, peers)
    with pytest.raises(exception.ExchangeStalled):
        client.fetch(asked, Exchanged(b'torrent', '', (NEAR,), (STORAGE,)), '/nowhere')
    # In the end everybody is asked in any case.
    assert asked.asked == [('connect', first), ('start over', (NEAR, STORAGE))]
