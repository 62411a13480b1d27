"""Which servers are moved onto a cache image that came after they began; the house is settling's.

tests/functional/test_landing.py has real ones."""

import dataclasses
import os
import types

import libvirt
import pytest
from fakes_settling import BANDWIDTH, DELAY, IMAGE, Move, nova_works_on
from fakes_settling import house as house  # the fixture

from bootcache import exception
from nova_bootcache import libvirtcalls
from nova_bootcache.settling import landing
from nova_bootcache.settling.landing import EMPTY_BYTES, MOST_OWN_BYTES, is_to_land
from nova_bootcache.settling.livedisk import LiveDisk, OpenFiles
from nova_bootcache.settling.pivotstate import PivotFailed, PivotRefused
from nova_bootcache.settling.settler import Settler

RATE = 3 << 20


@pytest.fixture
def lands(house, monkeypatch):
    """What is here, and what servers have open; and how they are moved."""
    here = types.SimpleNamespace(opened={}, moved=[], right=True, expands=False, asked=[])
    house.expansions = types.SimpleNamespace(is_to_come=lambda _entry: here.expands)
    house.entry = lambda image_id: house.noted[image_id] if here.right else None
    house.notes('sha512:ab')
    house.noted[IMAGE] = dataclasses.replace(house.noted[IMAGE], cache_image='whole')
    house.keep_free = 0

    def comes(size=8 << 20):
        with open(house.path(IMAGE), 'wb') as stream:
            stream.write(b'1' * size)

    class Disk:
        def __init__(self, domain, target, path):
            assert target == 'vda' and domain.isActive()
            self._server_id = path.split('/')[-2]
            assert self._server_id in house.locked

        def open_files(self, path):
            assert path == house.path(IMAGE)
            here.asked.append(self._server_id)
            found = here.opened.get(self._server_id, OpenFiles(4096, 4096))
            if isinstance(found, Exception):
                raise found
            return found

    class Lands(Move):
        def finish(self):
            super().finish()
            here.opened[self._server_id] = OpenFiles(4096, 8 << 20)

    def begun(find_domain, directory, base, base_format, cache_image, rate, target, keep_free):
        server_id = directory.split('/')[-1]
        assert find_domain() is house.domains[server_id] and keep_free == house.keep_free
        assert (base, base_format, rate, target) == (cache_image, 'qcow2', RATE, 'vda')
        here.moved.append(server_id)
        return Lands(house, server_id, base)

    monkeypatch.setattr(landing, 'time', house.clock)
    monkeypatch.setattr(landing, 'LiveDisk', Disk)
    monkeypatch.setattr(landing, 'Pivot', begun)
    here.comes = comes
    comes()
    return here


@pytest.fixture
def settler(house):
    """One of a host on which settling is off."""
    return Settler(house, house, 0, DELAY, RATE)


@pytest.mark.parametrize('opened, here, expected', [
    (OpenFiles(0, 200704), 8 << 20, True),
    (OpenFiles(MOST_OWN_BYTES, 200704), 8 << 20, True),
    (OpenFiles(MOST_OWN_BYTES + 1, 200704), 8 << 20, False),
    # Another empty one.
    (OpenFiles(0, 200704), 200704, False),
    # An earlier version, or one that is expanded now.
    (OpenFiles(0, EMPTY_BYTES), 64 << 20, False),
    (OpenFiles(0, 8 << 20), 8 << 20, False)])
def test_which_are_moved(opened, here, expected):
    assert is_to_land(opened, here) is expected


def test_a_server_that_began_before_is_moved_once(house, settler, lands, caplog):
    caplog.set_level('INFO')
    house.boots('one')
    house.boots('two')
    lands.opened['two'] = OpenFiles(4096, 8 << 20)
    settler.look()
    assert lands.moved == ['one'] == house.done('finish') and house.locked == []
    assert 'server one reads its cache image\'s file itself now' in caplog.text
    house.clock.now += 10
    settler.look()
    # It was looked at once more; then there is nothing that anybody would be asked for.
    assert lands.asked == ['one', 'two', 'one'] and lands.moved == ['one']
    for _round in range(5):
        house.clock.now += 10
        settler.look()
    assert lands.asked == ['one', 'two', 'one']
    # Another file has the name: one of them might be on an empty one.
    lands.comes(9 << 20)
    settler.once()
    assert lands.asked[3:] == ['one', 'two'] and lands.moved == ['one']


def test_nova_has_worked_on_it(house, settler, lands):
    house.boots('one')
    lands.opened['one'] = OpenFiles(4096, 8 << 20)
    settler.look()
    nova_works_on(house, settler)
    # It came back onto an empty one, as by a live migration.
    del lands.opened['one']
    settler.look()
    assert lands.moved == ['one']


def test_nova_comes_in_between(house, settler, lands):
    house.boots('one')
    house.then['wait'] = lambda: nova_works_on(house, settler)
    settler.look()
    assert house.done('abort') == ['one'] and house.done('finish') == []
    house.clock.now += 10
    settler.look()
    assert house.done('finish') == ['one']


def test_what_it_waits_for(house, settler, lands, tmp_path):
    house.boots('one', age=DELAY - 1)
    settler.look()
    house.boots('one')
    house.needs.begin_arrival(IMAGE)
    settler.look()
    house.needs.end_arrival(IMAGE)
    house.needs.begin_boot('another')
    settler.look()
    house.needs.end_boot('another')
    lands.expands = True
    settler.look()
    assert lands.asked == []
    lands.expands = False
    settler.look()
    assert lands.moved == ['one']


def test_what_is_left_alone(house, settler, lands):
    """Without a question to QEMU, or with one only."""
    house.boots('stopped', running=False)
    house.boots('busy', settles=False, state='suspended')
    for _round in range(3):
        settler.once()
    assert lands.asked == [] and lands.moved == []
    house.boots('large')
    lands.opened['large'] = OpenFiles(MOST_OWN_BYTES + 1, 4096)
    for _round in range(3):
        settler.once()
    assert lands.asked == ['large'] and lands.moved == []


@pytest.mark.parametrize('make', [
    lambda house: Settler(house, house, BANDWIDTH, DELAY, RATE),
    lambda house: Settler(house, house, 0, DELAY, 0),
    lambda house: Settler(house, house, 0, DELAY)], ids=['settles', 'off', 'both off'])
def test_where_none_is_moved_so(house, lands, make):
    house.boots('one')
    make(house).look()
    assert lands.asked == [] and lands.moved == []


def test_an_image_whose_servers_do_not_settle(house, lands):
    settler = Settler(house, house, BANDWIDTH, DELAY, RATE)
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    settler.look()
    assert lands.moved == ['one'] and house.pivots == []
    # It says yes later: settled from there.
    house.stored[IMAGE]['settle'] = True
    house.clock.now += 100
    settler.look()
    assert house.backing('one') == house.base()


def test_nothing_is_begun_after_the_end(house, settler, lands):
    house.boots('one')
    house.boots('two')
    house.then['wait'] = settler.stop
    settler.once()
    assert lands.moved == ['one'] and house.done('abort') == ['one'] and house.locked == []


def test_one_whose_base_is_here_settles_after_its_pause(house, lands):
    settler = Settler(house, house, BANDWIDTH, DELAY, RATE)
    house.boots('one')

    def fails():
        raise PivotFailed('no')

    house.then['begin'] = fails
    settler.look()
    assert lands.moved == [] and house.done('finish') == []
    house.clock.now += 100
    settler.look()
    assert lands.moved == [] and house.backing('one') == house.base()


def test_an_image_whose_base_is_not_to_be_had(house, lands):
    settler = Settler(house, house, BANDWIDTH, DELAY, RATE)
    house.boots('one')
    house.stored[IMAGE] = None
    settler.look()
    assert lands.moved == ['one']


@pytest.mark.parametrize('error', [PivotRefused('no'), PivotFailed('no')])
def test_it_is_tried_again_at_growing_pauses(house, settler, lands, error, caplog):
    house.boots('one')
    lands.opened['one'] = error
    for _second in range(0, 60 + 120 + 9, 10):
        settler.look()
        house.clock.now += 10
    assert lands.asked == ['one'] * 3
    assert 'goes on reading its cache image by the gateway: no' in caplog.text
    del lands.opened['one']
    house.clock.now += 240
    settler.look()
    assert lands.moved == ['one']


def test_nobody_is_asked_of_one_that_pauses(house, settler, lands, monkeypatch):
    """Nova's conductor has others to answer, and a pause lasts for hours."""
    looks, see = [], settler._see
    monkeypatch.setattr(settler, '_see', lambda: (looks.append(house.clock.now), see()))
    house.boots('one')
    lands.opened['one'] = PivotRefused('no')
    settler.look()
    for _second in range(0, 50, 10):
        house.clock.now += 10
        settler.look()
    assert len(looks) == len(lands.asked) == 1
    house.clock.now += 10
    settler.look()
    assert len(looks) == len(lands.asked) == 2
    del lands.opened['one']
    house.clock.now += 120
    settler.look()
    assert lands.moved == ['one']


def test_one_that_hangs_is_asked_when_its_pause_ends(house, settler, lands, monkeypatch):
    looks, see = [], settler._see
    monkeypatch.setattr(settler, '_see', lambda: (looks.append(house.clock.now), see()))
    house.boots('one')
    lands.opened['one'] = exception.LibvirtHangs('hangs')
    settler.look()
    for _round in range(60):
        house.clock.now += 10
        settler.look()
    # After 10, 20, 40 and 60 s, and then of each minute; one round later at most.
    assert len(lands.asked) <= len(looks) <= len(lands.asked) + 2 <= 15
    del lands.opened['one']
    house.clock.now += 70
    settler.look()
    assert lands.moved == ['one']


def test_a_file_that_is_not_right_is_not_read_again_and_again(house, settler, lands, monkeypatch):
    """To tell that reads all of it; a boot has another one fetched."""
    read, entry = [], house.entry
    monkeypatch.setattr(
        house, 'entry', lambda image_id: (read.append(image_id), entry(image_id))[1])
    for name in ('one', 'two', 'three'):
        house.boots(name)
    lands.right = False
    for _round in range(5):
        settler.once()
        house.clock.now += 10
    assert read == [IMAGE]
    lands.right = True
    house.clock.now += 60
    settler.look()
    assert sorted(lands.moved) == ['one', 'three', 'two']


def test_libvirts_own_errors_keep_no_other_waiting(house, settler, lands):
    house.boots('one')
    house.boots('two')
    lands.opened['one'] = libvirt.libvirtError('gone')
    settler.look()
    assert lands.moved == ['two']


def test_a_qemu_that_hangs_keeps_no_other_waiting(house, settler, lands):
    house.boots('one')
    house.boots('two')
    lands.opened['one'] = exception.LibvirtHangs('hangs')
    settler.look()
    assert lands.moved == ['two']
    del lands.opened['one']
    house.clock.now += 11
    settler.look()
    assert lands.moved == ['two', 'one']


def test_a_disk_without_room(house, settler, lands, caplog):
    house.boots('one')
    house.keep_free = 1 << 60
    settler.look()
    assert lands.moved == [] and 'reserved_host_disk_mb' in caplog.text


def test_what_its_copy_takes_is_of_whole_clusters(house, settler, lands, caplog, monkeypatch):
    """A guest's file system writes some of each; of its file the rest takes no room, until then."""
    house.boots('one')
    os.truncate(house.known['one'].disk, 800 << 20)
    # Others use this machine's disk at the same time.
    space = os.statvfs(house.known['one'].directory)
    monkeypatch.setattr(os, 'statvfs', lambda path: space)
    house.keep_free = space.f_bavail * space.f_frsize - (400 << 20)
    settler.look()
    assert lands.moved == [] and 'reserved_host_disk_mb' in caplog.text
    house.keep_free = 0
    os.truncate(house.known['one'].disk, MOST_OWN_BYTES + 1)
    house.clock.now += 60
    settler.look()
    assert lands.asked == ['one', 'one'] and lands.moved == []


def test_a_file_that_is_not_right(house, settler, lands):
    house.boots('one')
    lands.right = False
    settler.look()
    assert lands.moved == []
    house.noted[IMAGE] = dataclasses.replace(house.noted[IMAGE], cache_image=None)
    settler.once()
    assert lands.asked == []


# What libvirt tells.

FIGURES = {
    'block.count': 4, 'block.0.name': 'vdb', 'block.0.path': '/b', 'block.0.physical': 1,
    'block.1.name': 'vda', 'block.1.path': '/a/disk', 'block.1.physical': 5000,
    'block.2.name': 'vda', 'block.2.path': '/cache/a', 'block.2.physical': 600,
    'block.3.name': 'vda', 'block.3.physical': 7}


class Told:
    """Stands for a domain of which libvirt tells figures."""

    def __init__(self, figures):
        self._figures = figures

    def connect(self):
        return self

    def domainListGetStats(self, domains, stats, flags):  # libvirt's name
        assert domains == [self] and stats == libvirt.VIR_DOMAIN_STATS_BLOCK
        assert flags == libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_BACKING
        return [(self, self._figures)]


def test_what_a_qemu_has_open():
    assert LiveDisk(Told(FIGURES), 'vda', '/a/disk').open_files('/cache/a') == OpenFiles(5000, 600)


@pytest.mark.parametrize('change', [
    {'block.count': 2}, {'block.2.path': '/cache/b'}, {'block.1.path': '/a/other'},
    {'block.1.name': 'vdc', 'block.2.name': 'vdc', 'block.3.name': 'vdc'}, {'block.count': 0}])
def test_what_libvirt_does_not_tell_is_not_guessed(change):
    with pytest.raises(PivotRefused, match='does not tell'):
        LiveDisk(Told(FIGURES | change), 'vda', '/a/disk').open_files('/cache/a')
    without = {name: value for name, value in FIGURES.items() if not name.endswith('.physical')}
    with pytest.raises(PivotRefused, match='does not tell'):
        LiveDisk(Told(without), 'vda', '/a/disk').open_files('/cache/a')


def test_it_is_asked_within_the_bound(monkeypatch):
    asked = []

    class Calls:
        def ask_qemu(self, server_id, call, seconds=None, urgent=False):
            asked.append((server_id, urgent))
            return call(Told(FIGURES))

    domain = libvirtcalls.BoundedDomain(Calls(), 'one', urgent=True)
    assert libvirtcalls.chain_figures(domain) == FIGURES and asked == [('one', True)]
