"""Clones of the storage service's: when Ceph is asked where they come from.

functional/test_ceph_away.py has a real Ceph.
"""

import pytest
from fakes_clock import Clock

from bootcache import exception
from bootcache.ceph import places
from bootcache.ceph.places import RbdOrigin
from bootcache.connectors import probe
from bootcache.connectors.connectors import Connectors
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache.ceph import opening
from glance_bootcache.ceph.opening import OpenClones

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ORIGIN_NAME = f'rbd-{0:016x}'
ORIGIN = RbdOrigin('f', 'images', IMAGE, 'snap', '1a', '4')


def manifest(number):
    path = f'rbd:bootcache/storage/base-{IMAGE}-{number:08x}'
    return Manifest(IMAGE, Standing.DONE, made=Made(
        base_path=path, image_format='raw', virtual_bytes=4096))


class Ceph:
    """Stands for Ceph's commands, which tell where clones come from."""

    def __init__(self, clock):
        self.asked, self.tells, self.seconds, self._clock = [], ORIGIN, 0, clock

    def origin(self, clone):
        self.asked.append(clone.name)
        self._clock.now += self.seconds
        if isinstance(self.tells, Exception):
            raise self.tells
        return self.tells


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(opening, 'time', clock)
    return clock


@pytest.fixture
def ceph(clock):
    return Ceph(clock)


@pytest.fixture
def clones(storage_conf, monkeypatch, ceph):
    # Stands for the connector: all are open in it that were opened by an earlier process.
    monkeypatch.setattr(Connectors, 'name_of', lambda self, export: f'{ORIGIN_NAME}-0')
    monkeypatch.setattr(Connectors, 'keep', lambda self, exports: None)
    monkeypatch.setattr(probe, 'read', lambda sockets, seconds, places=None: dict.fromkeys(
        sockets, probe.Answer.READ))
    clones = OpenClones(storage_conf)
    clones._rbd = ceph
    return clones


def test_whoever_has_an_open_one_be_served_does_not_wait_for_ceph(clones, ceph):
    assert clones.base(manifest(1)).protocol['driver'] == 'nbd'
    assert ceph.asked == [] and clones.told(manifest(1)) == {}
    clones.keep([manifest(1)])
    assert len(ceph.asked) == 1 and clones.told(manifest(1))['rbd']['id'] == '1a'
    clones.keep([manifest(1)])
    assert len(ceph.asked) == 1


@pytest.mark.parametrize('tells', [None, exception.BootcacheError('no')])
def test_one_of_which_nothing_is_told_is_not_asked_for_in_each_round(clones, ceph, clock, tells):
    ceph.tells = tells
    for _round in range(10):
        clones.keep([manifest(1), manifest(2)])
        clock.now += 10
    assert len(ceph.asked) == 2
    ceph.tells, clock.now = ORIGIN, clock.now + 600
    clones.keep([manifest(1), manifest(2)])
    assert clones.told(manifest(1)) and clones.told(manifest(2))


def test_a_round_takes_so_long_at_most(clones, ceph):
    ceph.seconds = 4
    served = [manifest(number) for number in range(5)]
    clones.keep(served)
    assert len(ceph.asked) == 3
    clones.keep(served)
    assert all(map(clones.told, served))


def name_of(manifest):
    return places.clone_of(manifest.made.base_path).name


def test_while_ceph_is_silent_nobody_who_has_one_be_served_waits_for_long(clones, monkeypatch):
    asked = []

    def connect(self, export, way, avoid=()):
        asked.append(export)
        raise exception.StorageDaemonBusy('no answer')

    monkeypatch.setattr(Connectors, 'connect', connect)
    monkeypatch.setattr(probe, 'read', lambda sockets, seconds, places=None: dict.fromkeys(
        sockets, probe.Answer.SILENT))
    for number in range(5):
        with pytest.raises(exception.StorageDaemonError, match='cannot be opened'):
            clones.base(manifest(number))
    assert asked == [name_of(manifest(0))]


def test_what_an_exporter_serves_that_has_not_told_is_not_ended(clones, monkeypatch):
    kept = []
    monkeypatch.setattr(Connectors, 'keep', lambda self, exports: kept.append(set(exports)))
    clones.keep([], may_end=False)
    assert kept == []
    clones.keep([manifest(1)])
    assert kept == [{name_of(manifest(1))}]
