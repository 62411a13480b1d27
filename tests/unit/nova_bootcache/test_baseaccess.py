"""What bases are read by, looked after: when they change over, and how often that is tried.

functional/test_ceph_hosts.py has a real gateway and a real Ceph.
"""

import pytest
from fakes_clock import Clock

from bootcache import exception
from bootcache.ceph.places import RbdOrigin
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.gateway import baseaccess
from nova_bootcache.gateway.baseaccess import BaseAccess
from nova_bootcache.gateway.graph import Place, Present
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ORIGIN = RbdOrigin('f', 'images', IMAGE, 'snap', '1a', '4')
BY_NBD, IN_CEPH = Place('10.0.0.1', 10810, 'base-x'), Place('', 0, 'base-x', socket='/s')


class Daemon:
    """Stands for the daemon that has clones open."""

    runs = True

    def __init__(self, done):
        self.done, self.closed = done, False

    def is_closed(self, export):
        return self.closed

    def mend(self):
        self.done.append('mend')


class Clones:
    """Stands for the host's clones."""

    def __init__(self, done):
        self.done, self.daemon, self.is_on, self.is_away = done, Daemon(done), True, False
        self.is_open = True

    def watch(self, read):
        self.done.append(('watch', list(read)))

    def goes_on(self, remote):
        return remote.rbd is not None or self.is_open

    def keep(self, read):
        self.done.append('keep')

    def sweep(self, read):
        self.done.append('sweep')

    def give_up(self):
        self.done.append('give up')


class Gateway:
    """Stands for the gateway, which serves one base."""

    def __init__(self):
        self.place, self.asked, self.refuses, self.absent = BY_NBD, [], False, False
        self.is_away = False

    def present(self, image_ids):
        if self.is_away:
            raise exception.StorageDaemonBusy('gateway')
        return {image_id: Present(is_exported=True, place=self.place, is_absent=self.absent)
                for image_id in image_ids}

    def reads_in_ceph(self, there):
        return there.place == IN_CEPH

    def ensure_base(self, remote):
        self.asked.append(remote)
        if self.refuses:
            raise exception.StorageNodeAway('the exporter')


class House:
    """All that there is of a host for it."""

    def __init__(self):
        self.done, self.gateway, self.needed = [], Gateway(), True
        self.clones = Clones(self.done)
        self.remote = Remote(IMAGE, '10.0.0.1', 10810, 'base-x', rbd=ORIGIN)
        self.access = BaseAccess(self.gateway, self.clones, self, self)

    def entries(self):
        return [CacheEntry(self.remote, None, 'ab', 4096)]

    def needs_base(self, image_id):
        return self.needed


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(baseaccess, 'time', clock)
    return clock


@pytest.fixture
def house(clock):
    return House()


@pytest.mark.parametrize('place, change, changes', [
    (BY_NBD, {}, True), (IN_CEPH, {}, False),
    (BY_NBD, {'is_on': False}, False), (IN_CEPH, {'is_on': False}, True),
    (BY_NBD, {'is_away': True}, False), (IN_CEPH, {'is_away': True}, True)])
def test_it_is_read_in_ceph_if_that_is_wanted_and_goes(house, place, change, changes):
    house.gateway.place = place
    for name, value in change.items():
        setattr(house.clones, name, value)
    house.access.look()
    assert bool(house.gateway.asked) == changes


@pytest.mark.parametrize('place, changes', [(BY_NBD, False), (IN_CEPH, True)])
def test_one_that_cannot_be_read_there_is_read_through_the_exporter(house, place, changes):
    house.gateway.place, house.clones.daemon.closed = place, True
    house.access.look()
    assert bool(house.gateway.asked) == changes


@pytest.mark.parametrize('place, is_open, changes', [
    (BY_NBD, False, False), (IN_CEPH, False, True), (IN_CEPH, True, False)])
def test_so_is_one_of_which_it_is_not_told_where_it_is(house, place, is_open, changes):
    house.gateway.place, house.clones.is_open = place, is_open
    house.remote = Remote(IMAGE, '10.0.0.1', 10810, 'base-x')
    house.access.look()
    assert bool(house.gateway.asked) == changes


def test_what_nobody_needs_or_nobody_can_read_stays_as_it_is(house):
    house.needed = False
    house.access.look()
    house.needed, house.gateway.absent = True, True
    house.access.look()
    assert house.gateway.asked == []


def test_a_change_that_fails_is_tried_again_after_growing_pauses(house, clock, caplog):
    house.gateway.refuses = True
    tries = []
    for second in range(0, 700, 10):
        clock.now = second
        before = len(house.gateway.asked)
        house.access.look()
        tries += [second] * (len(house.gateway.asked) - before)
    assert tries == [0, 30, 90, 210, 450]
    assert 'its base goes on to be read as it is: the exporter' in caplog.text
    # One that has stayed as it was wanted begins anew.
    house.gateway.place, clock.now = IN_CEPH, 5000
    house.access.look()
    house.clones.is_away = True
    for second in (5010, 5020, 5040):
        clock.now = second
        house.access.look()
    assert len(house.gateway.asked) == len(tries) + 2


def test_ceph_is_looked_at_though_the_gateway_hangs(house):
    house.gateway.place = IN_CEPH
    house.access.look()
    assert house.done == [('watch', []), 'mend', 'keep', 'sweep']
    house.gateway.is_away = True
    with pytest.raises(exception.StorageDaemonBusy):
        house.access.look()
    assert house.done[4:] == [('watch', [house.remote])]


def test_where_it_was_switched_off_the_daemon_ends(house):
    house.clones.is_on = False
    house.access.look()
    assert house.done == [('watch', []), 'give up']
    house.clones.daemon.runs = False
    house.access.look()
    assert house.done == [('watch', []), 'give up', ('watch', [])]
