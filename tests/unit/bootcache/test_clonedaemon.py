"""The daemon that has clones open: what it remembers of those that were asked for."""

import time
import types

from bootcache.ceph import clonedaemon


def test_names_that_were_asked_for_once_are_forgotten(tmp_path, monkeypatch):
    daemon = clonedaemon.CloneDaemon(str(tmp_path), '/c', 'u')
    for number in range(100):
        assert not daemon.is_ready(f'base-{number}')
        daemon.cut_off(f'base-{number}')
    daemon.keep_open({})
    assert daemon.is_fresh('base-7') and daemon.is_closed('base-7')
    now = time.monotonic()
    monkeypatch.setattr(clonedaemon, 'time', types.SimpleNamespace(monotonic=lambda: now + 3600))
    assert not daemon.is_ready('base-7')
    daemon.keep_open({})
    assert set(daemon._opened_at) == {'base-7'} and daemon._closed_until == {}


def test_a_name_that_is_asked_for_as_it_is_forgotten_stays():
    class Times(dict):
        def pop(self, name, default):
            self[name] = 9.0
            return super().pop(name, default)

    times = Times(old=1.0)
    clonedaemon.forget_before(times, 5.0)
    assert times == {'old': 9.0}
