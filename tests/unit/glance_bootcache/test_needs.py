"""Which bases are served: those that hosts need, also over restarts, and what is asked for."""

import sqlite3

import pytest
from fakes_clock import Clock
from fakes_manager import in_hand

from bootcache import exception
from bootcache.manifest import Made, Manifest, Standing
from bootcache.rpc.report import HostReport
from glance_bootcache.db.writer import Writer
from glance_bootcache.hosts import reportedneeds
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
DAY = 86400


@pytest.fixture
def clock():
    return Clock(1e9)


@pytest.fixture
def known(database, clock):
    return ReportedNeeds(database, clock)


@pytest.fixture
def restarted(database, clock):
    """Writes what there is to write, and starts anew."""
    def restart(known):
        Writer(database, [known.changes]).write()
        return ReportedNeeds(database, clock)
    return restart


def report(*images):
    return HostReport(needs=frozenset(images))


def test_what_a_host_said_last_counts(known):
    assert not known.needed(IMAGE)
    known.note('one', report(IMAGE))
    known.note('two', report())
    assert known.needed(IMAGE) and not known.needed(OTHER)
    known.note('one', None)
    assert known.needed(IMAGE), 'nothing has changed'
    known.note('one', report(OTHER))
    assert not known.needed(IMAGE) and known.needed(OTHER)


def test_a_host_that_does_not_tell_may_need_anything(known):
    known.note('old', HostReport())
    assert known.needed(IMAGE) and known.needed(OTHER)
    known.note('old', report())
    assert not known.needed(IMAGE)


def test_one_that_is_not_heard_of_for_a_day_needs_nothing(known, clock):
    known.note('old', HostReport())
    known.note('one', report(IMAGE))
    clock.now += DAY
    assert known.needed(OTHER)
    clock.now += 1
    assert not known.needed(OTHER)
    # What a host has named it may read, without the message bus.
    clock.now += 30 * DAY
    assert known.needed(IMAGE)


def test_a_host_that_nova_does_not_have_is_forgotten(known, restarted, clock):
    for name in 'one', 'two', 'down':
        known.note(name, report(IMAGE))
    clock.now += DAY + 1
    known.note('two', None)
    known.forget_gone([])
    known.forget_gone(['another Nova\'s'])
    assert known.hosts(IMAGE) == ['down', 'one', 'two'], 'it is asked for other hosts'
    known.forget_gone(['down'])
    assert known.hosts(IMAGE) == ['down', 'two'] == restarted(known).hosts(IMAGE)


def test_an_operator_forgets_a_host(known, restarted, clock):
    known.note('one', report(IMAGE))
    with pytest.raises(exception.RequestRefused, match='stop its nova-compute'):
        known.forget('one')
    clock.now += 300
    assert known.forget('one') and not known.forget('one') and not known.needed(IMAGE)
    assert restarted(known).hosts(IMAGE) == []
    known.note('one', report(IMAGE))
    assert known.hosts(IMAGE) == ['one'], 'it was not gone'


def test_what_it_has_named_stays_until_it_says_something_else(known, restarted, clock, monkeypatch):
    """Its cell may be down: then Nova does not list its servers either."""
    monkeypatch.setattr(reportedneeds, 'MOST_HOSTS', 3)
    known.note('one', report(IMAGE))
    known.note('gone', report())
    for _day in range(3):
        clock.now += DAY + 1
        known.forget_silent()
        known = restarted(known)
    assert known.hosts(IMAGE) == ['one'] and known.hosts(OTHER) == []
    assert set(known._hosts) == {'one'}, 'one that needs nothing is forgotten'
    # Nor is it for names that somebody makes up.
    for number in range(9):
        clock.now += 1
        known.note(f'made-up-{number}', report())
    assert known.hosts(IMAGE)
    known.note('one', report(OTHER))
    clock.now += DAY + 1
    assert known.hosts(IMAGE) == [] and known.hosts(OTHER) == ['one']


def test_a_restart_forgets_nothing(known, restarted):
    """A host whose gateway is cut off reconnects, maybe before it can say anything."""
    known.note('one', report(IMAGE))
    known.note('old', HostReport())
    again = restarted(known)
    assert again.needed(IMAGE) and again.needed(OTHER)
    again.note('old', report())
    assert again.needed(IMAGE) and not again.needed(OTHER)
    again = restarted(again)
    assert again.hosts(IMAGE) == ['one'] and not again.needed(OTHER)


def test_a_standstill_of_the_service_does_not_count_towards_a_hosts_day(known, restarted, clock):
    """Both sides may be off for a week: a base whose servers are soft-deleted, of which Nova does
    not tell, stays until the host that keeps them has had its day."""
    known.note('one', report(IMAGE))
    clock.now += 7 * DAY
    again = restarted(known)
    again.forget_gone(['two'])
    assert again.hosts(IMAGE) == ['one'] and again.needed(IMAGE)
    again.note('two', report())
    clock.now += DAY + 1
    again.forget_gone(['two'])
    assert not again.needed(IMAGE)


def test_a_report_that_says_nothing_new_writes_nothing(known, restarted, clock):
    known.note('one', report(IMAGE))
    known = restarted(known)
    for told in (None, report(IMAGE)):
        clock.now += 60
        known.note('one', told)
        assert known.changes(True) is None


def test_what_changes_is_written_and_nothing_else(known, database):
    """Of what 50 images a host has, one row comes and one goes."""
    many = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(50)]
    writer = Writer(database, [known.changes])
    for host in 'one', 'two':
        known.note(host, report(*many))
    writer.write()
    file = sqlite3.connect(database.file)
    file.execute('CREATE TABLE told (what TEXT)')
    for what in 'INSERT', 'UPDATE', 'DELETE':
        file.execute(f'CREATE TRIGGER told_{what} AFTER {what} ON host_images BEGIN'
                     f" INSERT INTO told VALUES ('{what}'); END")
    file.commit()
    known.note('one', report(*many[1:], IMAGE))
    writer.write()
    assert sorted(file.execute('SELECT what FROM told')) == [('DELETE',), ('INSERT',)]
    file.close()


def test_a_cloud_that_reports_for_the_first_time_holds_up_no_other_writer(known, database,
                                                                         monkeypatch):
    # A row of the host, and another of its image.
    monkeypatch.setattr(reportedneeds, '_MOST_WRITTEN', 4)
    for number in range(5):
        known.note(f'host-{number}', report(IMAGE))
    writer, found = Writer(database, [known.changes]), []
    for _second in range(4):
        writer.write()
        found.append(len(ReportedNeeds(database).hosts(IMAGE)))
    assert found == [2, 4, 5, 5]


def test_a_host_that_names_more_each_time_keeps_no_other_from_being_written(known, database,
                                                                            monkeypatch):
    """In the names of several hosts: all that it names would be one transaction, for minutes."""
    monkeypatch.setattr(reportedneeds, '_MOST_WRITTEN', 4)
    writer, found = Writer(database, [known.changes]), []
    known.note('liar-0', report())
    for second in range(5):
        for name in 'liar-0', 'liar-1':
            known.note(name, report(*(f'{second}{number}5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
                                      for number in range(9))))
        known.note('one', report(IMAGE))
        writer.write()
        found.append(ReportedNeeds(database).hosts(IMAGE))
    assert found == [[], [], ['one'], ['one'], ['one']]


def test_what_was_maybe_written_is_written_as_a_whole(known, restarted, database):
    """The answer to a commit can be lost: the rows may be those of before, or of after."""
    known.note('one', report(IMAGE))
    known = restarted(known)
    for is_written in False, True:
        known.note('one', report(OTHER))
        changes = known.changes(True)
        if is_written:
            database.write(changes.write)
        known.note('one', report(IMAGE))
        known = restarted(known)
        assert known.hosts(IMAGE) == ['one'] and known.hosts(OTHER) == []


def test_a_host_that_is_forgotten_has_no_rows(known, restarted, clock, database):
    known.note('one', report())
    known.note('two', report(IMAGE))
    known = restarted(known)
    clock.now += DAY + 1
    known.note('two', report())
    known.forget_silent()
    assert set(restarted(known)._hosts) == {'two'}
    file = sqlite3.connect(database.file)
    assert file.execute('SELECT name FROM hosts').fetchall() == [('two',)]
    assert file.execute('SELECT * FROM host_images').fetchall() == []
    file.close()


def test_images_are_found_without_a_look_at_each_host(known):
    """Upkeep asks for each image each half a minute, and there may be 10,000 hosts."""
    for number in range(20):
        known.note(f'host-{number}', report(f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f'))
    assert {image: len(hosts) for image, hosts in known._by_image.items()} == {
        f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f': 1 for number in range(20)}
    for number in range(20):
        known.note(f'host-{number}', report())
    assert known._by_image == {} and known._named == 0


def test_a_host_that_lies_cannot_fill_the_memory(known, clock, monkeypatch):
    monkeypatch.setattr(reportedneeds, 'MOST_HOSTS', 3)
    for number in range(10):
        clock.now += 1
        known.note(f'host-{number}', report(IMAGE))
    assert len(known._hosts) <= 4


def test_of_a_host_that_had_to_be_forgotten_any_base_may_be_needed(known, restarted, clock,
                                                                   monkeypatch):
    """Its servers read, whatever names somebody makes up in its place."""
    monkeypatch.setattr(reportedneeds, 'MOST_HOSTS', 3)
    known.note('honest', report(IMAGE))
    for number in range(10):
        clock.now += 1
        known.note(f'made-up-{number}', report())
    assert known.hosts(IMAGE) and known.needed(IMAGE)
    again = restarted(known)
    assert again.hosts(IMAGE) == ['(other hosts)']
    clock.now += 86401
    for number in range(3):
        again.note(f'made-up-{number}', report())
    assert not again.hosts(IMAGE)


def test_hosts_that_lie_cannot_fill_it_with_names_either(known, restarted, monkeypatch):
    """Whoever names the most needs anything from then on; what others name counts as well."""
    monkeypatch.setattr(reportedneeds, '_MOST_NAMED', 25)
    known.note('honest', report(IMAGE))
    for number in range(10):
        known.note(f'host-{number}', report(*(
            f'{number:04x}{image:04x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for image in range(20))))
    assert known._named <= 25
    assert known.hosts(IMAGE) and known.needed(OTHER)
    # Whose list was too long may be honest: no base goes that it has named.
    kept = known.hosts(OTHER)
    assert kept and all(name.startswith('host-') for name in kept)
    known.note(kept[0], None)
    assert restarted(known).hosts(OTHER) == kept


# Several storage nodes: one hears of a host, and tells the others.

def test_what_another_node_has_heard_counts_and_is_not_written(known, restarted):
    known.note('one', report(IMAGE), is_told=True)
    assert known.hosts(IMAGE) == ['one'] and known.changes(True) is None
    assert restarted(known).hosts(IMAGE) == []
    known.note('one', report(OTHER), is_told=True)
    assert known.hosts(IMAGE) == [] and known.hosts(OTHER) == ['one']
    assert known.changes(True) is None


def test_who_heard_of_a_host_last_writes_it(known, database, clock):
    """Its reports come to one node and to another: what the rows have neither knows."""
    first, second = known, ReportedNeeds(database, clock)
    third = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'

    def heard(by, told, *images):
        by.note('one', report(*images))
        told.note('one', report(*images), is_told=True)
        Writer(database, [by.changes]).write()
        assert told.changes(True) is None
        stored = ReportedNeeds(database)
        assert sorted(image for image in (IMAGE, OTHER, third) if stored.hosts(image)) \
            == sorted(images)

    heard(first, second, IMAGE)
    heard(second, first, OTHER, third)
    # It was of these images when this node wrote it last.
    heard(first, second, IMAGE)
    heard(first, second, IMAGE, OTHER)
    heard(second, first)


def test_what_it_heard_itself_before_is_the_other_one_s_to_write(known, database):
    known.note('one', report(IMAGE))
    known.note('one', report(OTHER), is_told=True)
    assert known.changes(True) is None
    known.note('two', report(IMAGE))
    Writer(database, [known.changes]).write()
    assert ReportedNeeds(database).hosts(IMAGE) == ['two']


def test_that_nothing_is_new_is_told_as_well(known, clock):
    """A host that is heard of anywhere is not silent."""
    known.note('one', HostReport(), is_told=True)
    for _day in range(3):
        clock.now += DAY
        known.note('one', None, is_told=True)
    assert known.needed(IMAGE)


def test_a_host_is_asked_for_what_it_has_named_alone(known):
    known.note('one', report(IMAGE, OTHER))
    known.note('old', HostReport())
    assert known.of('one', frozenset([OTHER])) == (OTHER,)
    assert known.of('one', frozenset([OTHER, IMAGE])) == (IMAGE, OTHER)
    assert known.of('one', frozenset()) == ()
    for name in 'old', 'nobody':
        assert known.of(name, frozenset([IMAGE])) == ()


def test_a_host_that_an_operator_forgets_is_forgotten_by_all_nodes(known, database, clock):
    """\"bootcache host forget\" is answered by one of them, and told to the others."""
    other = ReportedNeeds(database, clock)
    known.note('one', report(IMAGE))
    other.note('one', report(IMAGE), is_told=True)
    clock.now += 300
    assert known.forget('one') and other.forget('one')
    Writer(database, [known.changes, other.changes]).write()
    assert not other.needed(IMAGE) and not ReportedNeeds(database, clock).needed(IMAGE)


# Upkeep.

def base(house, image_id, standing=Standing.DONE):
    storedimages.put(house.store, Manifest(
        image_id, standing, made=Made('/base', virtual_bytes=1 << 20)))


def test_upkeep_serves_what_hosts_need_and_gives_up_what_is_idle(house):
    base(house, IMAGE)
    base(house, OTHER)
    house.endpoints.report_holdings({}, 'one', report(IMAGE))
    house.upkeep.keep_needed(house.store.manifests())
    assert set(house.exporter.serving) == {IMAGE} and house.exporter.idle == [OTHER]
    house.writer.write()
    house.restart()
    house.exporter.serving.clear()
    house.upkeep.keep_needed(house.store.manifests())
    assert set(house.exporter.serving) == {IMAGE}, 'known before any host reports'
    house.endpoints.report_holdings({}, 'one', report())
    house.upkeep.keep_needed(house.store.manifests())
    assert house.exporter.serving == {}


def test_upkeep_asks_nova_which_hosts_there_are(house):
    house.needs.note('one', report(IMAGE))
    house.needs.note('two', report(OTHER))
    house.needs._clock = lambda: house.seconds() + 2 * DAY
    house.boots.services = {'two'}
    house.upkeep.forget_hosts()
    assert house.needs.hosts(IMAGE) == [] and house.needs.hosts(OTHER) == ['two']
    house.boots.services = {'one'}
    house.upkeep.forget_hosts()
    assert house.needs.hosts(OTHER) == ['two'], 'it is asked once in an hour'


def test_an_exporter_that_hangs_keeps_no_other_image_from_being_served(house, monkeypatch):
    def away(needed_by, idle):
        raise exception.StorageDaemonError('exporter-1: no answer')

    for image in IMAGE, OTHER:
        base(house, image)
    ended = []
    monkeypatch.setattr(house.exporter, 'withdraw_idle', away)
    monkeypatch.setattr(house.exporter, 'end_unused', ended.append)
    house.endpoints.report_holdings({}, 'one', report(IMAGE, OTHER))
    with pytest.raises(exception.StorageDaemonError, match='no answer'):
        house.upkeep.keep_needed(house.store.manifests())
    assert set(house.exporter.serving) == {IMAGE, OTHER} and ended


def test_an_image_that_is_worked_on_is_not_idle(house):
    base(house, IMAGE, Standing.WANTED)
    with in_hand(house, IMAGE):
        house.upkeep.keep_needed(house.store.manifests())
        assert house.exporter.idle == []
