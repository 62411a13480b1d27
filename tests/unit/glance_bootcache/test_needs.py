"""Which bases are served: those that hosts need, also over restarts, and what is asked for."""

import json

import pytest
from fakes_clock import Clock

from bootcache import exception
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache.door import arguments
from glance_bootcache.hosts import reportedneeds
from glance_bootcache.hosts.reportedneeds import ReportedNeeds

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
DAY = 86400


@pytest.fixture
def clock():
    return Clock(1e9)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'needs.json')


def report(*images):
    return {'images': {}, 'needs': list(images), 'quotas': {}}


def test_what_a_host_said_last_counts(path, clock):
    known = ReportedNeeds(path, clock, clock)
    assert not known.needed(IMAGE)
    known.note('one', report(IMAGE.upper(), 'no image', None, 5))
    known.note('two', report())
    assert known.needed(IMAGE) and not known.needed(OTHER)
    known.note('one', None)
    assert known.needed(IMAGE), 'nothing has changed'
    known.note('one', report(OTHER))
    assert not known.needed(IMAGE) and known.needed(OTHER)


@pytest.mark.parametrize('told', [{'images': {}}, {'needs': 'all'}, {'needs': {IMAGE: 1}}, 'x'])
def test_a_host_that_does_not_tell_may_need_anything(path, clock, told):
    known = ReportedNeeds(path, clock, clock)
    known.note('old', told)
    assert known.needed(IMAGE) and known.needed(OTHER)
    known.note('old', report())
    assert not known.needed(IMAGE)


def test_a_host_that_is_not_heard_of_for_a_day_reads_nothing(path, clock):
    known = ReportedNeeds(path, clock, clock)
    known.note('one', report(IMAGE))
    clock.now += DAY
    assert known.needed(IMAGE)
    clock.now += 1
    assert not known.needed(IMAGE)


def test_what_it_has_named_stays_until_it_says_something_else(path, clock, monkeypatch):
    """Its cell may be down: then Nova does not list its servers either."""
    monkeypatch.setattr(reportedneeds, 'MOST_HOSTS', 3)
    known = ReportedNeeds(path, clock, clock)
    known.note('one', report(IMAGE))
    known.note('gone', report())
    for _day in range(9):
        clock.now += DAY
        known.save()
        known = ReportedNeeds(path, clock, clock)
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


def test_a_restart_forgets_nothing(path, clock):
    """A host whose gateway is cut off reconnects, maybe before it can say anything."""
    known = ReportedNeeds(path, clock, clock)
    known.note('one', report(IMAGE))
    known.note('old', {'images': {}})
    known.save()
    again = ReportedNeeds(path, clock, clock)
    assert again.needed(IMAGE) and again.needed(OTHER)
    again.note('old', report())
    assert again.needed(IMAGE) and not again.needed(OTHER)


def test_a_host_that_says_nothing_new_is_remembered_for_a_day_from_then(path, clock):
    known = ReportedNeeds(path, clock, clock)
    known.note('one', report(IMAGE))
    known.save()
    for _hour in range(40):
        clock.now += 3600
        known.note('one', None)
        known.save()
    assert ReportedNeeds(path, clock, clock).needed(IMAGE)


def test_a_standstill_of_the_service_does_not_count_towards_a_hosts_day(path, clock):
    """Both sides may be off for a week: a base whose servers are soft-deleted, of which Nova does
    not tell, stays until the host that keeps them has had its day."""
    known = ReportedNeeds(path, clock, clock)
    known.note('two', report(OTHER))
    clock.now += DAY / 2
    known.note('one', report(IMAGE))
    known.save()
    clock.now += 7 * DAY
    again = ReportedNeeds(path, clock, clock)
    assert again.hosts(IMAGE) and again.needed(IMAGE) and again.needed(OTHER)
    clock.now += DAY / 2 + 1
    assert again.needed(IMAGE) and not again.needed(OTHER)
    clock.now += DAY / 2
    assert not again.needed(IMAGE)


def test_a_clock_that_is_set_ages_no_host(path, clock):
    """As that of a machine that comes up without one that runs on."""
    wall = Clock()
    wall.now = 0.0
    known = ReportedNeeds(path, clock, wall)
    known.note('one', report(IMAGE))
    known.save()
    wall.now = 1e9
    assert known.needed(IMAGE)
    known.note('one', report(IMAGE, OTHER))
    known.save()
    clock.now, wall.now = 5.0, 0.0
    again = ReportedNeeds(path, clock, wall)
    clock.now += DAY
    assert again.needed(IMAGE)
    clock.now += 1
    assert not again.needed(IMAGE)


def test_it_is_written_when_something_changed(path, clock):
    known = ReportedNeeds(path, clock, clock)
    known.save()
    known.note('one', report(IMAGE))
    known.save()
    with open(path) as stream:
        assert json.load(stream) == {'version': 1, 'written': 1e9, 'hosts': {
            'one': {'seen': 1e9, 'images': [IMAGE]}}}
    with open(path, 'w') as stream:
        stream.write('as it was')
    clock.now += 60
    known.note('one', None)
    known.save()
    with open(path) as stream:
        assert stream.read() == 'as it was'


@pytest.mark.parametrize('content', ['', '{}', '[]', '{"version": 2, "hosts": {}}',
                                     '{"version": 1, "hosts": {"one": 5}}',
                                     '{"version": 1, "hosts": {"one": {"seen": "x"}}}',
                                     '{"version": 1, "hosts": {"one": {"seen": NaN,'
                                     ' "images": null}}}',
                                     '{"version": 1, "written": "x", "hosts": {}}'])
def test_a_damaged_file_counts_as_empty(path, clock, content):
    with open(path, 'w') as stream:
        stream.write(content)
    assert not ReportedNeeds(path, clock, clock).needed(IMAGE)


def test_a_host_that_lies_cannot_fill_the_memory(path, clock, monkeypatch):
    monkeypatch.setattr(reportedneeds, 'MOST_HOSTS', 3)
    known = ReportedNeeds(path, clock, clock)
    for number in range(10):
        clock.now += 1
        known.note(f'host-{number}', report(IMAGE))
    assert len(known._hosts) <= 4
    many = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
            for number in range(arguments.MOST_IMAGES + 1)]
    assert len(reportedneeds.parse(many[1:])) == arguments.MOST_IMAGES
    refused = []
    assert reportedneeds.parse(many, refused.append) is None and refused[0].field == 'report.needs'


def test_of_a_host_that_had_to_be_forgotten_any_base_may_be_needed(path, clock, monkeypatch):
    """Its servers read, whatever names somebody makes up in its place."""
    monkeypatch.setattr(reportedneeds, 'MOST_HOSTS', 3)
    known = ReportedNeeds(path, clock, clock)
    known.note('honest', report(IMAGE))
    for number in range(10):
        clock.now += 1
        known.note(f'made-up-{number}', report())
    assert known.hosts(IMAGE) and known.needed(IMAGE)
    known.save()
    again = ReportedNeeds(path, clock, clock)
    assert again.hosts(IMAGE) == ['(other hosts)']
    clock.now += 86401
    for number in range(3):
        again.note(f'made-up-{number}', report())
    assert not again.hosts(IMAGE)


def test_hosts_that_lie_cannot_fill_it_with_names_either(path, clock, monkeypatch):
    """Whoever names the most needs anything from then on; what others name counts as well."""
    monkeypatch.setattr(reportedneeds, '_MOST_NAMED', 25)
    known = ReportedNeeds(path, clock, clock)
    known.note('honest', report(IMAGE))
    for number in range(10):
        known.note(f'host-{number}', report(*(
            f'{number:04x}{image:04x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for image in range(20))))
    assert sum(len(host.images or ()) for host in known._hosts.values()) <= 25
    assert known.hosts(IMAGE) and known.needed(OTHER)
    # Whose list was too long may be honest: no base goes that it has named.
    kept = known.hosts(OTHER)
    assert kept and all(name.startswith('host-') for name in kept)
    known.note(kept[0], None)
    known.save()
    assert ReportedNeeds(path, clock, clock).hosts(OTHER) == kept


# Upkeep.

def base(house, image_id, standing=Standing.DONE):
    house.store.put(Manifest(image_id, standing, made=Made('/base', virtual_bytes=1 << 20)))


def test_upkeep_serves_what_hosts_need_and_gives_up_what_is_idle(house):
    base(house, IMAGE)
    base(house, OTHER)
    house.endpoints.report_holdings({}, 'one', report(IMAGE))
    house.upkeep.keep_needed(house.store.manifests())
    assert set(house.exporter.serving) == {IMAGE} and house.exporter.idle == [OTHER]
    house.needs.save()
    house.restart()
    house.exporter.serving.clear()
    house.upkeep.keep_needed(house.store.manifests())
    assert set(house.exporter.serving) == {IMAGE}, 'known before any host reports'
    house.endpoints.report_holdings({}, 'one', report())
    house.upkeep.keep_needed(house.store.manifests())
    assert house.exporter.serving == {}


def test_what_hosts_need_is_written_also_while_the_exporter_does_not_answer(house, monkeypatch):
    def away(needed_by, idle):
        raise exception.StorageDaemonError('exporter: no answer')

    base(house, OTHER)
    monkeypatch.setattr(house.exporter, 'withdraw_idle', away)
    house.endpoints.report_holdings({}, 'one', report(IMAGE))
    house.upkeep.once()
    house.restart()
    assert house.needs.hosts(IMAGE) == ['one']


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
    house.manager.jobs._jobs[IMAGE] = object()
    house.upkeep.keep_needed(house.store.manifests())
    assert house.exporter.idle == []
    house.manager.jobs._jobs.clear()
