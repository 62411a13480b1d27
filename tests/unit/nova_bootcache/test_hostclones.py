"""The key of a host that reads bases in Ceph, looked at before its first use; and what hangs.

In the place of Ceph's commands are scripts, which say what those say; functional/test_ceph_hosts.py
has a real Ceph.
"""

import dataclasses
import os
import time
import types

import pytest

from bootcache import exception, qemuimg
from bootcache.ceph import clonedaemon
from bootcache.ceph.places import RbdOrigin
from bootcache.ceph.reach import CephReach
from bootcache.ceph.rights import RbdAccess
from nova_bootcache.gateway import hostclones
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ORIGIN = RbdOrigin('f', 'images', IMAGE, 'snap', '1a', '4')
REMOTE = Remote(IMAGE, '10.0.0.1', 10810, 'base-x', rbd=ORIGIN)
NO_KEYRING = '2026-11-24T00:00:00.000+0000 7f auth: unable to find a keyring on /etc/ceph/x'
NO_USER = "2026-11-24T00:00:00.000+0000 7f monclient: authenticate NOTE: no keyring\n" \
    "couldn't connect to cluster: Operation not permitted"


class Commands:
    """Ceph's, as a directory of scripts that all do the same, and note that they were called."""

    def __init__(self, directory):
        self._directory, self._log = directory, directory / 'called'

    def do(self, what):
        """Have them do that from now on."""
        for name in ('rbd', 'rados', 'ceph'):
            script = self._directory / name
            script.write_text(f'#!/bin/sh\necho "$0 $*" >> {self._log}\n{what}\n')
            script.chmod(0o755)

    def fail(self, said):
        """Have them fail, and say something."""
        (self._directory / 'said').write_text(said + '\n')
        self.do(f'cat {self._directory}/said >&2; exit 1')

    def called(self):
        """Return what was called."""
        return self._log.read_text()


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    return Commands(tmp_path)


@pytest.fixture
def clones(tmp_path, monkeypatch):
    monkeypatch.setattr(hostclones, '_PAUSE_SECONDS', 0)
    return HostClones(RbdAccess('images', 'bootcache', 'host-1', 'host-1', str(tmp_path / 'conf'),
                                'base_access=rbd', 'base_rbd_user', 'base_rbd_ceph_conf', ''),
                      True, str(tmp_path), 0)


@pytest.mark.parametrize('said', [NO_KEYRING, NO_USER])
def test_a_key_that_comes_later_is_looked_at(commands, clones, caplog, said):
    commands.fail(said)
    assert clones.place(REMOTE) is None
    # Whoever may delete what is not there is not told of it.
    commands.do('[ $(basename $0) = ceph ] && echo f; exit 0')
    assert clones.place(REMOTE) is None
    assert 'can delete what is in pool images' in caplog.text
    assert f'{commands._directory}/rbd' not in commands.called()


@pytest.mark.parametrize('said', ['', 'warning', '[]', '{}', '{"size": "x"}'])
def test_a_command_that_tells_nothing_of_use(commands, clones, caplog, said):
    clones._is_harmless = True
    commands.do(f"[ $(basename $0) = ceph ] && echo f || echo '{said}'; exit 0")
    assert clones.place(REMOTE) is None
    assert 'its base is read through the exporter, and not in Ceph: rbd info tells' in caplog.text


@pytest.fixture
def daemon(clones, monkeypatch):
    """Stands for the daemon's process and monitor: what is open, and whether it was ended."""
    seen = types.SimpleNamespace(open={'base-x': 'n'}, ended=0, hangs=False, ceph=True)

    def check_opens(node):
        if not {'nbd': not seen.hangs, 'rbd': seen.ceph}[node['driver']]:
            raise exception.Interrupted('qemu-img info was not done after 10 s')

    def end(_grace):
        seen.ended += 1
    of = clones.daemon._daemon
    monkeypatch.setattr(qemuimg, 'check_opens', check_opens)
    monkeypatch.setattr(type(of), 'runs', property(lambda _daemon: not seen.ended))
    monkeypatch.setattr(of, 'exports', lambda: seen.open)
    monkeypatch.setattr(of, 'remove_export', lambda export, disconnect: seen.open.pop(export))
    monkeypatch.setattr(of, 'remove_nodes', lambda name: None)
    monkeypatch.setattr(of, 'stop', end)
    return seen


@pytest.mark.parametrize('hangs, ceph', [(True, True), (False, False)])
def test_a_daemon_that_hangs_is_as_a_ceph_that_is_away(clones, daemon, monkeypatch, hangs, ceph):
    clones.watch([REMOTE])
    daemon.hangs, daemon.ceph = hangs, ceph
    # Before a base is moved reads that wait there are to end.
    assert not clones.answers(REMOTE)
    clones.watch([REMOTE])
    assert not clones.is_away and not daemon.ended
    monkeypatch.setattr(hostclones, '_AWAY_SECONDS', 0)
    clones.watch([REMOTE])
    assert clones.is_away and daemon.ended
    daemon.ceph, clones.daemon._reach = True, CephReach()
    clones.watch([REMOTE])
    assert not clones.is_away


def test_one_that_somebody_is_about_to_read_is_not_closed(clones, daemon):
    assert clones.place(REMOTE).socket == clones.daemon.socket
    clones.keep([])
    assert daemon.open
    clones.daemon._opened_at.clear()
    clones.keep([])
    assert not daemon.open


def test_a_service_that_does_not_know_it_yet(clones, daemon):
    asked = dataclasses.replace(REMOTE, rbd=None)
    assert clones.place(asked).socket == clones.daemon.socket
    assert clones.goes_on(asked) and not clones.waits(asked)
    daemon.hangs = True
    assert clones.waits(asked)
    daemon.open.clear()
    assert clones.place(asked) is None and not clones.goes_on(asked)


@pytest.mark.parametrize('last, comes', [('', 'a'), ('a', 'b'), ('aa', 'b'), ('c', 'a'),
                                         ('x', 'a')])
def test_which_one_comes_next(last, comes):
    assert hostclones.clockwise(['c', 'a', 'b'], last) == comes
    assert hostclones.clockwise([], last) is None


def test_each_base_is_tried_in_its_turn_and_one_that_waits_until_it_does_not(clones, monkeypatch):
    """One of whose objects Ceph has lost is found, though all others can be read."""
    images = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(3)]
    read = [Remote(image_id, '10.0.0.1', 10810, f'base-{image_id}', rbd=ORIGIN)
            for image_id in images]
    tried, lost = [], {images[1]}

    def answers(remote):
        tried.append(images.index(remote.image_id))
        return remote.image_id not in lost

    monkeypatch.setattr(clones, 'answers', answers)
    monkeypatch.setattr(clones, 'leave', lambda: None)
    for _look in range(4):
        clones.watch(read)
    assert tried == [0, 1, 1, 1] and clones._away_since is not None
    lost.clear()
    for _look in range(3):
        clones.watch(read)
    assert tried[4:] == [1, 2, 0] and clones._away_since is None
    # It is not read any more: nothing tells that Ceph is away.
    lost.add(images[1])
    clones.watch(read)
    clones.watch(read[2:])
    assert tried[7:] == [1, 2] and clones._away_since is None


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
