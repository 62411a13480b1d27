"""By which way each base is read, and what the watch over all of them does.

Connectors, the reads of the watch and Ceph are stand-ins; functional/test_connectors.py has real
connectors.
"""

import concurrent.futures
import dataclasses
import threading
import types

import pytest
from fakes_clock import Clock

from bootcache import exception, qemuimg
from bootcache.ceph.places import RbdOrigin
from bootcache.connectors import probe, watch
from bootcache.connectors.connector import ABSENT
from bootcache.connectors.probe import Answer
from bootcache.connectors.ways import absent_way, rbd_origin, rbd_way
from nova_bootcache.gateway.connections import BaseConnections
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.storagenode import PLAIN, Encryption, Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ORIGIN = RbdOrigin('f', 'images', IMAGE, 'snap', '1a', '4')
NODE, MOVED = '10.0.0.1', '10.0.0.2'
CEPH = 'rbd'


def remote(image=IMAGE, **fields):
    return Remote(image, **{'host': NODE, 'port': 10810, 'export': f'base-{image}', **fields})


BASE = remote()
IN_CEPH = remote(rbd=ORIGIN)


def place(node):
    """Where a node's base is: an address, or CEPH."""
    return node['server']['host'] if node['driver'] == 'nbd' else node['driver']


class Connectors:
    """Stands for a host's connectors.

    :ivar away: places that do not answer.
    :ivar silent: names of connectors whose connections are stuck.
    :ivar hangs: exports of which no read has an answer.
    :ivar lost: exports of which a storage node gives errors.
    :ivar loops: exports of which Ceph gives errors without end.
    :ivar tried: places at which something was tried, each time.
    :ivar ended: names of connectors whose connections were ended that no link leads to.
    :ivar kept: exports of which there are links at most.
    :ivar fresh: exports that somebody is about to open.
    :ivar checked: exports that were read where nobody else reads.
    """

    def __init__(self):
        self.links, self.places, self.running = {}, {}, set()
        self.away, self.silent, self.lost, self.loops = set(), set(), set(), set()
        self.hangs = set()
        self.tried, self.kept, self.ended = [], None, []
        self.fresh, self.checked = set(), []
        self.links_made_at = 1000.0

    def since(self, _export):
        return self.links_made_at

    def socket(self, export):
        return f'/run/bases/{export}'

    def name_of(self, export):
        name = self.links.get(export, '')
        return '' if name.startswith(ABSENT) else name

    def runs(self, name):
        return name in self.running

    def is_by(self, name, way):
        return name.startswith(f'{way.origin}-') and self.runs(name)

    def has_link(self, export):
        return export in self.links

    def touch(self, export):
        pass

    def is_fresh(self, export):
        return export in self.fresh

    def check(self, export, way):
        self.checked.append(export)
        if export in self.hangs:
            raise exception.StorageDaemonBusy(f'{way.text}: nothing')

    def connect(self, export, way, avoid=()):
        where = place(way.node)
        self.tried.append(where)
        name = next((name for name in (f'{way.origin}-0', f'{way.origin}-1') if name not in avoid),
                    None)
        if where in self.away or name is None:
            raise exception.StorageDaemonBusy(f'{way.text}: nothing')
        if export in self.lost:
            raise exception.BaseUnreadable(f'{way.text}: an error')
        self.running.add(name)
        self.places[name] = where
        self.links[export] = name

    def park(self, export):
        self.links[export] = ''

    def disconnect(self, name):
        self.ended.append(name)

    def park_absent(self, export):
        if self.links.get(export, '').startswith(ABSENT):
            self.park(export)

    def keep(self, exports):
        self.kept = set(exports)
        self.links = {export: name for export, name in self.links.items() if export in self.kept}

    def looping(self):
        return set(self.loops)

    # What the tests ask, and do.

    def place_of(self, export):
        """Where a base is read; None if it is nowhere."""
        return self.places.get(self.name_of(export))

    def kill(self, export):
        self.running.discard(self.name_of(export))

    def read(self, sockets, _seconds, _places=None):
        return {export: self._answer(export) for export in sockets}

    def _answer(self, export):
        name = self.name_of(export)
        if not self.runs(name) or export in self.lost:
            return Answer.FAILED
        is_silent = name in self.silent or self.places[name] in self.away or export in self.hangs
        return Answer.SILENT if is_silent else Answer.READ


class Clones:
    """Stands for this host's clones in Ceph: all are there.

    :ivar made: images whose clones were looked for, and made.
    :ivar read: images whose clones stayed.
    """

    origin = rbd_origin('/c', 'u')

    def __init__(self):
        self.is_on, self.has_any, self.made, self.read = True, True, [], set()

    def clone(self, base, origin):
        return origin.clone(base.image_id, 'p', 'n')

    def way(self, base, makes=True):
        if makes:
            self.made.append(base.image_id)
        if not (self.is_on and self.has_any) or base.rbd is None:
            return None
        return rbd_way(self.clone(base, base.rbd), '/c', 'u')

    def sweep(self, read):
        self.read = {base.image_id for base in read}


class House:
    """A host's connections."""

    def __init__(self, encryption=PLAIN):
        self.connectors, self.clones, self.clock = Connectors(), Clones(), Clock()
        self.of = BaseConnections(self.connectors, encryption, self.clones, self.clock)
        self.watch = self.of._watch

    def reads(self, *bases):
        """Have bases be read, and be watched from now on."""
        for base in bases:
            self.of.connect(base)

    def renew(self, base):
        """Have a base be read by its best way."""
        self.of.reconcile({base.export: base})

    def look(self):
        """Have the watch look once, and do what it begins."""
        self.watch._tried.clear()
        self.watch.look()
        self.wait()

    def wait(self):
        concurrent.futures.wait(self.watch._tried.values())
        for thread in threading.enumerate():
            if thread.name == 'bootcache-lost':
                thread.join()

    def place(self, base=BASE):
        return self.connectors.place_of(base.export)

    def linked(self, base=BASE):
        return self.connectors.links.get(base.export)

    def name(self, base=BASE):
        return self.connectors.name_of(base.export)


@pytest.fixture
def house(monkeypatch):
    return of_host(monkeypatch)


def of_host(monkeypatch, encryption=PLAIN):
    found = House(encryption)
    monkeypatch.setattr(watch, 'probe', types.SimpleNamespace(
        read=found.connectors.read, Answer=probe.Answer))
    return found


# Which way is taken.

def turn_off(house):
    house.clones.is_on = False


def has_no_clone(house):
    house.clones.has_any = False


def cannot_be_opened(house):
    house.connectors.away = {CEPH}


@pytest.mark.parametrize('base, happens, where', [
    (IN_CEPH, None, CEPH), (BASE, None, NODE), (IN_CEPH, turn_off, NODE),
    (IN_CEPH, has_no_clone, NODE), (IN_CEPH, cannot_be_opened, NODE)],
    ids=['Ceph', 'nobody told', 'off', 'no clone', 'no answer'])
def test_a_base_is_read_in_ceph_where_it_may_be_else_from_the_storage_node(
        house, base, happens, where):
    if happens:
        happens(house)
    house.of.connect(base)
    assert house.place() == where and house.of.is_read(base.export)
    assert house.of.is_in_ceph(base.export) is (where == CEPH)


@pytest.mark.parametrize('base', [BASE, IN_CEPH])
def test_one_that_is_read_by_that_way_is_left_alone(house, base):
    house.of.connect(base)
    name = house.name()
    house.connectors.away = {NODE, CEPH}
    house.renew(base)
    assert house.name() == name and len(house.connectors.tried) == 1
    house.connectors.away = set()
    house.of.connect(base)
    assert house.name() == name and len(house.connectors.tried) == 1


def test_one_that_nobody_reaches_is_away(house):
    house.connectors.away = {NODE, CEPH}
    with pytest.raises(exception.StorageNodeAway, match=BASE.export):
        house.of.connect(IN_CEPH)
    assert house.connectors.tried == [CEPH, NODE] and not house.of.is_read(BASE.export)


def test_a_storage_node_with_which_this_host_does_not_speak_is_named_with_the_cure(house):
    with pytest.raises(exception.ConfigurationError, match='tls_directory'):
        house.of.connect(remote(tls=True))


def test_a_base_at_another_address_is_read_there(house):
    house.of.connect(BASE)
    house.renew(remote(host=MOVED))
    assert house.place() == MOVED


def test_certificates_that_were_renewed_are_used(monkeypatch, tmp_path):
    for name in ('ca-cert.pem', 'client-cert.pem', 'client-key.pem'):
        (tmp_path / name).write_text(name)
    house = of_host(monkeypatch, Encryption(str(tmp_path)))
    base = remote(tls=True)
    house.of.connect(base)
    before = house.name()
    house.renew(base)
    assert house.name() == before
    (tmp_path / 'client-cert.pem').write_text('renewed')
    house.renew(base)
    assert house.name() != before and house.place() == NODE
    # Half written, for instance.
    (tmp_path / 'client-key.pem').unlink()
    before = house.name()
    house.renew(base)
    assert house.name() == before


def test_a_way_that_fails_leaves_what_is_there(house, caplog):
    house.of.connect(BASE)
    before = house.name()
    house.connectors.away = {MOVED}
    house.renew(remote(host=MOVED))
    assert house.name() == before and 'is not read by its best way' in caplog.text


def test_a_base_whose_size_is_all_that_is_known_is_read_by_no_way_after_that(house):
    with pytest.raises(exception.StorageDaemonError):
        with house.of.absent(BASE, 1 << 30, lambda: False):
            assert house.linked().startswith(absent_way(BASE.export, 1 << 30).origin)
            assert not house.of.is_read(BASE.export)
            raise exception.StorageDaemonError('the gateway does not answer')
    assert house.linked() == ''
    # As after a crash before it was parked.
    house.connectors.connect(BASE.export, absent_way(BASE.export, 1 << 30))
    assert not house.of.is_read(BASE.export)
    house.connectors.away = {NODE}
    house.look()
    assert house.linked() == ''
    house.connectors.away = set()
    with house.of.absent(BASE, 1 << 30, lambda: False):
        pass
    assert house.linked() == ''
    # Somebody else was first, and its readers wait.
    with house.of.absent(BASE, 1 << 30, lambda: True):
        assert house.linked() == ''
    house.of.connect(BASE)
    with house.of.absent(BASE, 1 << 30, lambda: False):
        assert house.place() == NODE
    assert house.place() == NODE


@pytest.mark.parametrize('happens', ['parked', 'silent', 'killed'])
def test_a_base_that_cannot_be_read_now_is_told_before_its_nodes_are_changed(house, happens):
    house.of.connect(BASE)
    house.of.check(BASE.export)
    if happens == 'parked':
        house.connectors.park(BASE.export)
    elif happens == 'silent':
        house.connectors.silent.add(house.name())
    else:
        house.connectors.kill(BASE.export)
    with pytest.raises(exception.StorageNodeAway, match='cannot be read now'):
        house.of.check(BASE.export)


# The watch.

def test_a_base_that_can_be_read_is_left_alone(house):
    house.reads(BASE, remote(OTHER))
    house.look()
    assert house.connectors.tried == [NODE] * 2 and house.place() == NODE


def test_one_that_is_silent_is_read_by_another_connector_of_its_storage_node(house):
    house.reads(BASE)
    before = house.name()
    house.connectors.silent.add(before)
    house.look()
    assert house.name() != before and house.place() == NODE


def test_one_that_is_silent_in_ceph_is_read_by_another_connector_and_nobody_waits_for_ceph(house):
    house.reads(IN_CEPH)
    before = house.name()
    house.connectors.silent.add(before)
    house.look()
    assert house.name() != before and house.place() == CEPH and house.clones.made == [IMAGE]


def test_where_ceph_is_away_it_is_read_from_the_storage_node(house):
    house.reads(IN_CEPH)
    house.connectors.away = {CEPH}
    house.look()
    assert house.place() == NODE


def test_where_nothing_answers_reads_fail_until_something_does(house):
    house.reads(BASE)
    house.connectors.away = {NODE}
    house.look()
    assert not house.of.is_read(BASE.export)
    house.look()
    assert not house.of.is_read(BASE.export)
    house.connectors.away = set()
    house.look()
    assert house.place() == NODE


def test_one_that_hangs_is_tried_where_no_other_is_read(house):
    """QEMU 10 would have all of a connector wait with it; what is left of it by 7.2 is ended."""
    other = remote(OTHER).export
    house.reads(BASE, remote(OTHER))
    before = house.name(remote(OTHER))
    house.connectors.hangs = {BASE.export}
    house.look()
    house.connectors.tried.clear()
    for _look in range(2):
        house.look()
    assert not house.of.is_read(BASE.export) and house.connectors.tried == []
    assert set(house.connectors.checked) == {BASE.export}
    assert house.of.is_read(other) and house.name(remote(OTHER)) == before
    house.connectors.hangs.clear()
    house.look()
    assert house.of.is_read(BASE.export)


def test_readers_of_one_that_is_silent_wait_before_another_way_is_tried(house, monkeypatch):
    house.reads(BASE)
    linked, connect = [], house.connectors.connect

    def note(export, way, avoid=()):
        linked.append(house.name())
        connect(export, way, avoid)

    monkeypatch.setattr(house.connectors, 'connect', note)
    house.connectors.silent = {house.name()}
    house.look()
    assert linked == [''] and house.place() == NODE


def test_one_whose_connector_was_killed_is_read_by_it_again(house):
    house.reads(BASE)
    before = house.name()
    for _time in range(3):
        house.connectors.kill(BASE.export)
        house.look()
        assert house.name() == before and house.connectors.runs(before)


def test_one_that_is_slow_is_moved_no_sooner_again_than_after_a_minute(house):
    """A storage node that is slow would never end a read."""
    house.reads(BASE)
    first = house.name()
    house.connectors.silent.add(first)
    house.look()
    second = house.name()
    house.connectors.silent = {second}
    house.clock.now += 59
    house.look()
    assert house.name() == second
    house.connectors.silent = set()
    house.look()
    house.connectors.silent = {second}
    house.clock.now += 1
    house.look()
    assert house.name() == first


def test_one_that_was_moved_is_moved_again_if_it_is_silent_twice(house):
    """Its new connection is stuck as well."""
    house.reads(BASE)
    first = house.name()
    house.connectors.silent.add(first)
    house.look()
    house.connectors.silent = {house.name()}
    house.look()
    house.look()
    assert house.name() == first


def test_it_waits_where_nothing_answers_any_more(house):
    house.reads(BASE)
    house.connectors.silent.add(house.name())
    house.look()
    house.connectors.away = {NODE}
    house.look()
    house.look()
    assert house.linked() == '' and house.connectors.ended


def test_what_failed_for_one_is_not_tried_for_others_of_a_connector(house):
    """A hundred bases of a storage node that is away would be tried for minutes."""
    house.reads(BASE, remote(OTHER))
    house.connectors.away = {NODE}
    house.connectors.tried.clear()
    house.look()
    assert house.connectors.tried == [NODE]
    assert not house.of.is_read(BASE.export) and not house.of.is_read(remote(OTHER).export)


def test_one_of_which_ceph_gives_errors_is_read_from_the_storage_node_for_minutes(
        house, caplog):
    house.reads(IN_CEPH)
    house.connectors.loops = {BASE.export}
    before = house.name()
    house.look()
    # Ceph may have shut out that client alone.
    assert house.place() == CEPH and house.name() != before
    house.look()
    assert house.place() == NODE and 'cannot be read by connector' in caplog.text
    house.connectors.loops = set()
    house.clock.now += 299
    house.renew(IN_CEPH)
    assert house.place() == NODE
    house.clock.now += 1
    house.renew(IN_CEPH)
    assert house.place() == CEPH


def test_it_goes_on_until_it_is_stopped_also_after_a_fault(house, monkeypatch, caplog):
    looked, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    class Looks:
        """Its waits: the second look is the last one."""

        def __init__(self):
            self.count = 0

        def wait(self, _seconds):
            self.count += 1
            if self.count == 3:
                looked.set()
                assert go_on.wait(60)
            return stopped.is_set()

        is_set = stopped.is_set

        def set(self):
            stopped.set()

    house.reads(BASE)
    monkeypatch.setattr(house.watch, '_stopped', Looks())
    faults = iter([ValueError('a fault of ours')])

    def looping():
        for fault in faults:
            raise fault
        return set()

    monkeypatch.setattr(house.connectors, 'looping', looping)
    house.connectors.silent.add(house.name())
    before = house.name()
    house.of.start([])
    assert looked.wait(60)
    house.wait()
    go_on.set()
    house.of.stop()
    assert 'unexpected error' in caplog.text and house.name() not in ('', before)


@pytest.mark.parametrize('before', ['nowhere', 'by a connector that is silent'])
def test_one_that_somebody_has_found_since_it_was_looked_at_stays_there(house, before):
    """As a server that starts does; it would be moved to a second connector for nothing."""
    house.reads(BASE)
    if before == 'nowhere':
        house.connectors.park(BASE.export)
    else:
        house.connectors.silent.add(house.name())
    with house.watch.alone(BASE.export):
        house.watch.look()
        moved = remote(host=MOVED)
        house.of.connect(moved)
        found = house.name()
        house.wait()
    assert house.name() == found and house.place() == MOVED


# What is held while it is read.

def test_what_somebody_reads_is_watched_and_kept_until_it_is_let_go(house):
    cache_image = remote(export='cache-x')
    house.of.hold('arrival', cache_image)
    house.of.reconcile({})
    assert house.connectors.kept == {'cache-x'} and set(house.of._all()) == {'cache-x'}
    house.of.let_go('arrival')
    house.of.reconcile({})
    assert house.connectors.kept == set() and house.of._all() == {}


def test_who_cannot_read_holds_nothing(house):
    house.connectors.away = {NODE}
    with pytest.raises(exception.StorageNodeAway):
        house.of.hold('arrival', BASE)
    assert status(house) == [] and not house.of._held


def test_a_base_that_has_moved_is_not_looked_for_where_who_holds_it_knew_it(house):
    """A recording of minutes begins before its storage node gets another address."""
    house.of.hold('server', BASE)
    house.connectors.away = {NODE}
    house.of.reconcile({BASE.export: remote(host=MOVED)})
    assert house.place() == MOVED
    assert house.of._all()[BASE.export].host == MOVED


# All that the gateway serves.

def test_what_is_served_is_read_by_its_best_way_and_all_else_is_forgotten(house):
    house.clones.has_any = False
    house.of.connect(IN_CEPH)
    house.of.connect(remote(OTHER))
    assert house.place() == NODE
    house.clones.has_any = True
    house.clock.now += 600
    house.of.reconcile({BASE.export: IN_CEPH})
    assert house.place() == CEPH
    assert house.connectors.kept == {BASE.export} and house.clones.read == {IMAGE}


def test_one_that_the_gateway_is_about_to_serve_is_watched(house):
    house.of.connect(BASE)
    house.connectors.fresh = {BASE.export}
    house.of.reconcile({})
    house.connectors.silent = {house.name()}
    house.look()
    assert house.place() == NODE and house.name() not in house.connectors.silent
    house.connectors.fresh.clear()
    house.of.reconcile({})
    assert house.connectors.kept == set()


def test_of_one_that_is_read_in_ceph_nothing_is_asked_of_ceph(house):
    house.of.connect(IN_CEPH)
    asked = list(house.clones.made)
    house.of.reconcile({BASE.export: IN_CEPH})
    assert house.place() == CEPH and house.clones.made == asked


def test_of_one_that_waits_only_the_watch_looks_for_a_way(house):
    house.of.connect(BASE)
    house.connectors.park(BASE.export)
    house.connectors.tried.clear()
    house.of.reconcile({BASE.export: BASE})
    assert house.connectors.tried == [] and house.connectors.kept == {BASE.export}


def test_a_better_way_that_fails_is_tried_ever_less_often(house):
    """Each try takes seconds, for which all of upkeep waits."""
    house.connectors.away = {CEPH}
    house.of.connect(IN_CEPH)
    house.connectors.tried.clear()
    for _round in range(60):
        house.clock.now += 10
        house.of.reconcile({BASE.export: IN_CEPH})
    assert house.place() == NODE
    assert 1 <= house.connectors.tried.count(CEPH) <= 6
    house.connectors.away = set()
    house.clock.now += 600
    house.of.reconcile({BASE.export: IN_CEPH})
    assert house.place() == CEPH


# What keeps one base from being read keeps no other.

def test_one_whose_way_is_being_changed_keeps_no_other_waiting(house):
    other = remote(OTHER)
    house.reads(BASE, other)
    before = house.name(other)
    house.connectors.silent.add(before)
    with house.watch.alone(BASE.export):
        house.look()
    assert house.name() == before and house.name(other) not in ('', before)


def test_one_that_the_storage_node_cannot_read_keeps_no_other_from_being_found(house):
    """Its file is damaged, and all of them have waited for the storage node."""
    other = remote(OTHER)
    house.reads(BASE, other)
    house.connectors.away = {NODE}
    house.look()
    assert not house.of.is_read(other.export)
    house.connectors.away, house.connectors.lost = set(), {BASE.export}
    for _time in range(100):
        house.look()
    assert not house.of.is_read(BASE.export) and house.place(other) == NODE


def test_a_base_that_the_host_reads_elsewhere_than_another_is_found_where_it_is(house):
    other = dataclasses.replace(remote(OTHER), host=MOVED)
    house.reads(BASE, other)
    house.connectors.away = {NODE}
    house.look()
    assert not house.of.is_read(BASE.export) and house.place(other) == MOVED


# What is told of it.

def status(house):
    return [dataclasses.astuple(one) for one in house.of.list_bases()]


def test_how_a_base_is_read_is_told(house, monkeypatch):
    monkeypatch.setattr('time.time', lambda: 2000.0)
    assert status(house) == []
    house.reads(BASE)
    told = (IMAGE, f'{NODE}:10810', house.name(), 1000.0)
    assert status(house) == [(*told, None)]
    house.look()
    # While it is answered nothing changes: hosts report changes only.
    monkeypatch.setattr('time.time', lambda: 2003.0)
    house.look()
    assert status(house) == [(*told, None)]
    house.connectors.away.add(NODE)
    monkeypatch.setattr('time.time', lambda: 2006.0)
    house.look()
    assert status(house) == [(IMAGE, '', '', 1000.0, 2003.0)]
    house.connectors.away.clear()
    house.look()
    house.look()
    assert status(house) == [(*told, None)]


def is_changed(house):
    """Tell whether the gateway may be changed."""
    try:
        house.of.check_changes(25)
    except exception.StorageDaemonBusy:
        return False
    return True


@pytest.mark.parametrize('version', [7, 10])
def test_where_changes_wait_for_reads_none_is_made_while_one_waits(house, monkeypatch, version):
    monkeypatch.setattr(qemuimg, 'major_version', lambda: version)
    never_waits = version < 10
    house.reads(BASE)
    assert is_changed(house)
    now = 2000.0
    monkeypatch.setattr('time.time', lambda: now)
    house.look()
    assert is_changed(house)
    house.connectors.silent.add(house.name())
    with house.watch.alone(BASE.export):
        house.look()
    assert is_changed(house) is never_waits
    # They are sent on.
    house.look()
    assert is_changed(house)
    house.connectors.away.add(NODE)
    house.look()
    now += 24
    house.look()
    assert not house.of.is_read(BASE.export) and is_changed(house) is never_waits
    now += 1
    assert is_changed(house), 'those of a base that nobody can read have failed'


def test_a_boot_is_served_when_no_read_waits_any_more(house, monkeypatch, tmp_path):
    monkeypatch.setattr(qemuimg, 'major_version', lambda: 10)
    now = 2000.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr('time.time', lambda: now)
    monkeypatch.setattr('time.sleep', sleep)
    house.reads(BASE)
    house.look()
    house.connectors.away.add(NODE)
    house.look()
    assert not is_changed(house)
    Gateway(str(tmp_path), str(tmp_path / 'gateway.sock'), house.of)._await_changes()
    house.of.check_changes(23)
    assert now <= 2025


def test_a_base_in_ceph_is_told_by_its_clone_also_of_an_earlier_process(house):
    house.reads(IN_CEPH)
    told = (IMAGE, ORIGIN.clone(IMAGE, 'p', 'n').path, house.name(), 1000.0, None)
    assert status(house) == [told]
    house.of.reconcile({IN_CEPH.export: IN_CEPH})
    assert status(house) == [told]


def test_of_a_base_that_nobody_reads_nothing_is_kept(house):
    house.reads(BASE)
    house.of.reconcile({})
    house.look()
    assert status(house) == [] and not house.watch._answered_at
