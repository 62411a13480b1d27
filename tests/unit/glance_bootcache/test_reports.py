"""Which reports of servers' boots are looked at. The neighbours are stand-ins: test_controller.py.

A compute host that lies can make a cache image useless, never wrong; but each new version of a
working set is built here and fetched by every host, so none comes of a report that nobody wanted.
"""

import pytest
from fakes_clock import Clock

from bootcache import exception
from bootcache.reasons import Reason
from bootcache.rpc.messages import PlanBoot
from bootcache.rpc.report import HostReport
from glance_bootcache.images import reportedboots

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def cold(house, monkeypatch):
    """Two images with a base and nothing else; time stands still, a while after the start."""
    house.clock = Clock()
    monkeypatch.setattr(reportedboots, 'time', house.clock)
    house.restart()
    for image in (IMAGE, OTHER):
        house.images.put(image)
        house.hosts.plan_boot(PlanBoot(image, 'host', 'server'))
        house.settle()
    house.clock.now += house.hosts._patience
    return house


def ask(house, host='host', image=IMAGE, server='server', owner=''):
    return house.hosts.plan_boot(PlanBoot(image, host, server, None, owner))


def report(house, extents, host='host', image=IMAGE, ended_by='marker', server=''):
    """A host reports; the version of the image's working set afterwards.

    :param server: empty as of a host of an earlier version, which does not tell it.
    """
    house.endpoints.report_boot(
        {}, image, house.store.load(image).image_hash, host, 65536, extents, ended_by, 1.0,
        server_id=server)
    house.settle()
    working_set = house.store.load(image).made.working_set
    return working_set and working_set.version


def test_a_report_that_nobody_asked_for_is_not_looked_at(cold, caplog):
    # The host asked while the base was not there: it was told to wait, and nothing else.
    with caplog.at_level('INFO'):
        assert report(cold, [[0, 65536]]) is None
    assert cold.state(IMAGE) == 'served' and cold.qemu.builds == []
    report(cold, [[0, 65536]])
    assert cold.rejected.counts() == {('report_boot', 'image_id'): 2}
    assert caplog.text.count('no report of that server\'s boot was asked for') == 1, 'once an hour'
    # It reads like no attack: after a restart of this service honest hosts come to it.
    assert 'report_boot is not looked at, as a restart of this service, or' in caplog.text
    assert 'refused' not in caplog.text


def test_it_is_not_even_read(cold):
    """Reading one of a million extents takes its time."""
    assert report(cold, ['no extent']) is None


def test_a_report_that_was_asked_for_counts_once(cold):
    assert ask(cold)['watch']
    assert report(cold, [[0, 65536]]) == 1
    assert report(cold, [[0, 65536], [131072, 65536]]) == 1
    for number in range(2):
        assert ask(cold, server=f'later-{number}')['watch']
        assert report(cold, [[0, 65536], [131072, 65536]]) == 1 + number
    assert len(cold.qemu.builds) == 2


@pytest.mark.parametrize('host, image', [('elsewhere', IMAGE), ('host', OTHER)])
def test_it_counts_for_the_host_and_the_image_that_were_asked_for(cold, host, image):
    ask(cold)
    assert report(cold, [[0, 65536]], host, image) is None
    assert report(cold, [[0, 65536]]) == 1


def test_servers_that_start_together_report_each(cold):
    for host in ('one', 'two', 'three'):
        cold.table.report(host, HostReport())
        assert ask(cold, host, server=f'on-{host}')['watch']
    assert report(cold, [[0, 65536]], 'one') == 1
    assert report(cold, [[0, 65536], [131072, 65536]], 'two') == 1
    assert report(cold, [[0, 65536], [131072, 65536]], 'three') == 2
    assert report(cold, [[0, 65536], [262144, 65536]], 'one') == 2


# Growing needs two.

KNOWN, NEW, MORE = [0, 65536], [131072, 65536], [262144, 65536]


def learned(house):
    """The offsets of the working set, in its order."""
    return [extent[0] for extent in house.operators.get_working_set(IMAGE)['extents']]


def boot(house, extents, host='host', server='server', ended_by='marker', owner=''):
    ask(house, host, server=server, owner=owner)
    return report(house, extents, host, ended_by=ended_by)


def test_one_server_alone_never_makes_a_working_set_larger(cold, caplog):
    """Its tenant reads all of the disk right after login, and again after each reboot."""
    assert boot(cold, [KNOWN]) == 1
    with caplog.at_level('INFO'):
        for _again in range(3):
            assert boot(cold, [KNOWN, NEW, MORE], server='greedy') == 1
    assert 'server greedy on host read 131072 bytes beyond the working set' in caplog.text
    # Another one that reads something else confirms only what both read.
    assert boot(cold, [NEW], server='other') == 2
    assert learned(cold) == [0, 131072] and len(cold.qemu.builds) == 2


def test_two_servers_of_one_host_do_not_confirm_each_other_where_there_are_more(cold, caplog):
    """Their reads are in one growing store."""
    for host in ('host', 'elsewhere'):
        cold.table.report(host, HostReport())
    assert boot(cold, [KNOWN]) == 1
    with caplog.at_level('INFO'):
        for number in range(3):
            assert boot(cold, [NEW], server=f'server-{number}') == 1
    assert 'the boot of another server on another host reads them, too' in caplog.text
    assert boot(cold, [NEW], 'elsewhere', 'server-0') == 2, 'by one of the others'


def test_on_the_only_host_boots_at_the_same_time_do_not_confirm_each_other(cold):
    assert boot(cold, [KNOWN]) == 1
    for server in ('one', 'two'):
        ask(cold, server=server)
        cold.clock.now += 1
    assert report(cold, [NEW]) == 1
    assert report(cold, [NEW]) == 1
    cold.clock.now += 1
    assert boot(cold, [NEW], server='three') == 2


@pytest.mark.parametrize('ended_by', ['timeout', 'quota', 'shutdown'])
def test_only_boots_that_came_to_their_end_make_a_working_set_larger(cold, ended_by):
    assert boot(cold, [KNOWN]) == 1
    for number in range(2):
        assert boot(cold, [NEW], server=f'server-{number}', ended_by=ended_by) == 1
    assert boot(cold, [NEW], server='good') == 1
    assert 'watch' in ask(cold)


@pytest.mark.parametrize('ended_by', ['timeout', 'quota', 'shutdown'])
def test_boots_that_did_not_come_to_their_end_do_not_end_the_refinement(cold, ended_by):
    """Three servers that somebody deleted while they booted: no set was refined any more."""
    assert boot(cold, [KNOWN]) == 1
    for number in range(reportedboots._ENOUGH_BOOTS):
        assert boot(cold, [], server=f'server-{number}', ended_by=ended_by) == 1
    assert 'watch' in ask(cold)
    assert boot(cold, [NEW], server='one') == 1
    assert boot(cold, [NEW], server='two') == 2


def test_images_whose_boots_never_come_to_their_end_are_not_watched_for_ever(cold, monkeypatch):
    monkeypatch.setattr(reportedboots, '_ENOUGH_IN_VAIN', 10)
    assert boot(cold, [KNOWN]) == 1
    for number in range(reportedboots._ENOUGH_IN_VAIN):
        assert boot(cold, [NEW], server=f'server-{number}', ended_by='timeout') == 1
    assert 'watch' not in ask(cold)


def test_a_set_of_a_boot_that_was_cut_short_is_completed_by_the_next_one(cold):
    assert boot(cold, [KNOWN], ended_by='shutdown') == 1
    assert boot(cold, [NEW], server='short', ended_by='shutdown') == 1
    assert boot(cold, [KNOWN, MORE], server='whole') == 2
    assert learned(cold) == [0, 262144]
    assert cold.store.load(IMAGE).made.working_set.ended_by == 'marker'
    assert boot(cold, [NEW], server='later') == 2, 'from now on it takes two'


def test_what_was_read_beyond_one_version_is_not_held_against_the_next(cold):
    assert boot(cold, [KNOWN]) == 1
    assert boot(cold, [NEW, MORE], server='one') == 1
    assert boot(cold, [NEW], server='two') == 2
    assert boot(cold, [MORE], server='three') == 2
    assert boot(cold, [MORE], server='four') == 3


def test_many_boots_that_nobody_confirms_do_not_end_the_refinement(cold):
    """The oldest of them are forgotten; and fewer hosts are asked than before."""
    assert boot(cold, [KNOWN]) == 1
    assert boot(cold, [MORE], server='oldest') == 1
    for number in range(reportedboots.MOST_UNCONFIRMED):
        assert boot(cold, [[(number + 5) * 65536, 65536]], server=f'server-{number}') == 1
    assert boot(cold, [MORE], server='another') == 1, 'of the oldest nothing is known'
    assert 'watch' in ask(cold, host='one') and 'watch' not in ask(cold, host='two')
    assert boot(cold, [MORE], server='and another', host='one') == 2


def test_an_image_whose_boots_read_at_random_is_not_watched_for_ever(cold, monkeypatch):
    monkeypatch.setattr(reportedboots, '_ENOUGH_IN_VAIN', 10)
    assert boot(cold, [KNOWN]) == 1
    for number in range(reportedboots._ENOUGH_IN_VAIN):
        assert 'watch' in ask(cold, server=f'server-{number}')
        assert report(cold, [[(number + 5) * 65536, 65536]]) == 1
    assert 'watch' not in ask(cold)
    # What was asked for meanwhile makes no difference either.
    cold.restart()
    assert 'watch' in ask(cold), 'until a restart'


@pytest.mark.parametrize('kind', ['nothing new', 'in vain', 'cut short'])
def test_one_owner_does_not_end_the_refinement_for_others(cold, kind):
    """Of an image that is everybody's; it need not mean any harm."""
    assert boot(cold, [KNOWN]) == 1
    for number in range(100):
        server, read = f'server-{number}', [[(number % 11 + 5) * 65536, 65536]]
        if 'watch' not in ask(cold, server=server, owner='bad'):
            break
        assert report(cold, [] if kind == 'nothing new' else read,
                      ended_by='shutdown' if kind == 'cut short' else 'marker') == 1
    assert number == {'nothing new': 2}.get(kind, reportedboots._ENOUGH_IN_VAIN // 2)
    assert 'watch' not in ask(cold, owner='bad'), 'nor does it go on for ever'
    assert boot(cold, [NEW], server='one', owner='good') == 1
    assert boot(cold, [NEW], server='two', owner='other') == 2
    # Of the new version no boot was in vain.
    assert 'watch' in ask(cold, owner='bad')


def test_one_owner_does_not_have_forgotten_what_others_read(cold):
    assert boot(cold, [KNOWN]) == 1
    assert boot(cold, [NEW], server='one', owner='good') == 1
    for number in range(2 * reportedboots.MOST_UNCONFIRMED):
        assert boot(cold, [[(number % 11 + 5) * 65536, 65536]], server=f'server-{number}',
                    owner='bad') == 1
    assert boot(cold, [NEW], server='two', owner='other') == 2


def test_a_boot_that_is_confirmed_ends_the_count(cold):
    assert boot(cold, [KNOWN]) == 1
    assert boot(cold, [NEW], server='one') == 1 and list(cold.hosts._in_vain.values()) == [{'': 1}]
    assert boot(cold, [NEW], server='two') == 2
    assert reportedboots._known(cold.store.load(IMAGE)) not in cold.hosts._in_vain


def test_asking_for_no_server_asks_for_no_report(cold):
    """As hosts do for their upkeep."""
    assert 'watch' not in ask(cold, server='')
    assert report(cold, [[0, 65536]]) is None


def test_a_report_is_expected_as_long_as_a_boot_may_take(cold):
    ask(cold)
    cold.clock.now += cold.conf.bootcache.profile_timeout + reportedboots._LATE_SECONDS - 1
    assert report(cold, [[0, 65536]], ended_by='shutdown') == 1
    ask(cold)
    cold.clock.now += cold.conf.bootcache.profile_timeout + reportedboots._LATE_SECONDS
    assert report(cold, [[0, 65536], [131072, 65536]]) == 1


def test_what_is_expected_in_vain_is_forgotten(cold):
    for number in range(100):
        ask(cold, f'host-{number}')
    cold.clock.now += 10_000
    ask(cold)
    assert list(cold.hosts._expected._boots) == [(IMAGE, 'host')]


def test_what_is_expected_is_bounded(monkeypatch):
    """Whoever can write to the message bus can ask for any server on any host."""
    monkeypatch.setattr(reportedboots, '_MOST_BOOTS', 200)
    clock = Clock()
    reports = reportedboots.ExpectedReports(clock.monotonic)
    for number in range(1000):
        reports.expect(IMAGE, 'host', f'{number}', 60)
        reports.expect(OTHER, f'host-{number}', 'server', 60)
    boots = reports._boots
    assert sum(map(len, boots.values())) == 200 and len(boots[IMAGE, 'host']) == 100
    # The last ones count.
    assert reports.take(OTHER, 'host-999') is not None
    assert reports.take(OTHER, 'host-0') is None


def test_hosts_are_known_of_which_reports_about_an_image_are_expected():
    clock = Clock()
    reports = reportedboots.ExpectedReports(clock.monotonic)
    reports.expect(IMAGE, 'one', 'server-1', 60)
    clock.sleep(30)
    reports.expect(IMAGE, 'two', 'server-2', 60)
    reports.expect(OTHER, 'one', 'server-3', 60)
    assert reports.hosts(IMAGE) == {'one', 'two'} and reports.hosts(OTHER) == {'one'}
    clock.sleep(30)
    assert reports.hosts(IMAGE) == {'two'}, 'that was too long ago'
    boot = reports.take(IMAGE, 'two')
    assert boot.server_id == 'server-2' and reports.hosts(IMAGE) == set()
    reports.put_back(IMAGE, 'two', boot)
    assert reports.hosts(IMAGE) == {'two'}
    reports.expect(OTHER, 'three', 'server-4', 60)
    assert reports.take(IMAGE, 'one') is None and reports.take(OTHER, 'one') is not None


def test_one_that_is_put_back_is_expected_for_as_long_as_before():
    """Also where another server of its host, which was asked earlier, never reports."""
    clock = Clock()
    reports = reportedboots.ExpectedReports(clock.monotonic)
    reports.expect(IMAGE, 'host', 'lost', 60)
    clock.sleep(30)
    reports.expect(IMAGE, 'host', 'late', 60)
    reports.put_back(IMAGE, 'host', reports.take(IMAGE, 'host', 'late'))
    clock.sleep(40)
    reports.expect(OTHER, 'host', 'server', 60)
    assert reports.take(IMAGE, 'host', 'late') is not None


def test_it_takes_as_long_to_expect_one_of_many_as_the_first():
    class Image(str):
        hashed = 0

        def __hash__(self):
            Image.hashed += 1
            return super().__hash__()

    reports, steps = reportedboots.ExpectedReports(Clock().monotonic), []
    for number in range(2000):
        Image.hashed = 0
        reports.expect(Image(number % 100), f'host-{number}', 'server', 60)
        steps.append(Image.hashed)
    assert max(steps) < 20 and len(reports.hosts('7')) == 20


def test_a_new_service_takes_what_was_asked_for_before_where_nothing_is_known(cold):
    """Else the image was not learned from that host: its growing store has what boots read."""
    ask(cold)
    cold.restart()
    assert report(cold, [[0, 65536]]) == 1
    assert cold.state(IMAGE) == 'ready'


def test_of_what_is_known_a_new_service_takes_nothing_that_it_has_not_asked_for(cold):
    """The next boot is asked for."""
    assert boot(cold, [KNOWN]) == 1
    assert boot(cold, [NEW], server='one') == 1
    ask(cold, server='two')
    cold.restart()
    assert report(cold, [NEW]) == 1
    assert not cold.hosts._unconfirmed
    for server, version in (('three', 1), ('four', 2)):
        assert boot(cold, [NEW], server=server) == version


def test_a_new_service_takes_it_for_as_long_as_one_is_expected(cold):
    cold.restart()
    cold.clock.now += cold.hosts._patience
    assert report(cold, [[0, 65536]]) is None
    ask(cold)
    assert report(cold, [[0, 65536]]) == 1


@pytest.mark.parametrize('extents', [['no extent'], [[-1, 65536]], [[1 << 40, 65536]]])
def test_what_was_not_asked_for_is_checked_like_all_else(cold, extents):
    cold.restart()
    with pytest.raises(exception.InvalidWorkingSet):
        report(cold, extents)
    assert cold.store.load(IMAGE).made.working_set is None


def test_who_was_not_asked_gains_nothing_that_asking_would_not_give(cold):
    """A host that lies asks for made-up servers, and reports what it likes."""
    cold.restart()
    for number in range(16):
        report(cold, [[number * 65536, 65536]], f'host-{number}')
    assert cold.store.load(IMAGE).made.working_set.version == 1
    assert learned(cold) == [0] and len(cold.qemu.builds) == 1
    hash_of = cold.store.load(OTHER).image_hash
    for wrong in ('', 'sha512:11', hash_of.upper()):
        cold.endpoints.report_boot({}, OTHER, wrong, 'host', 65536, [[0, 65536]], 'marker', 1.0)
    assert cold.store.load(OTHER).made.working_set is None


def test_a_host_that_lies_ends_with_the_last_version(cold):
    """It may ask for servers that there are not, and for hosts."""
    for number in range(16):
        for twice in range(2):
            ask(cold, f'host-{twice}', server=f'made-up-{number}-{twice}')
            report(cold, [[number * 65536, 65536]], f'host-{twice}')
    assert cold.store.load(IMAGE).made.working_set.version == cold.conf.bootcache.refine_boots + 1
    assert 'watch' not in ask(cold)


@pytest.mark.parametrize('ended_by, version', [
    ('shutdown', None), ('silence', None), ('marker', 1), ('timeout', 1)])
def test_a_guest_that_switches_itself_off_is_no_boot_of_a_server_either(house, ended_by, version):
    """Its profile boot has failed for it; a server that does the same tells nothing new. On a host
    its silence comes first: it waits a minute for its disk."""
    house.boots.fails = exception.ProfileBootFailed('it did', Reason.SWITCHED_OFF)
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'failed'
    answer = ask(house)
    assert answer['action'] == 'cold' and 'watch' in answer
    house.endpoints.report_boot({}, IMAGE, answer['image_hash'], 'host', 65536, [[0, 65536]],
                                ended_by, 1.0)
    house.settle()
    working_set = house.store.load(IMAGE).made.working_set
    assert (working_set and working_set.version) == version
    assert house.state(IMAGE) == ('failed' if version is None else 'ready')


def test_an_image_that_was_deleted_is_not_prepared_again_and_again(house):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    del house.images.images[IMAGE]
    house.deleted(IMAGE)
    assert house.store.load(IMAGE) is None
    assert ask(house)['action'] == 'stock'


@pytest.mark.parametrize('ends', ['before its building', 'while it is built'])
def test_a_set_that_was_refined_is_built_from_after_a_restart(cold, monkeypatch, ends):
    """Nobody remembered: hosts went on with the older one, and further boots had nothing new."""
    assert boot(cold, [KNOWN], ended_by='shutdown') == 1
    before = cold.store.load(IMAGE).made
    assert before.built_from == before.working_set.sha256

    def stop():
        cold.controller.stop(wait=False)
        raise exception.Cancelled('the service ends')

    if ends == 'before its building':
        monkeypatch.setattr(cold.controller.queue, 'add', lambda image_id: True)
    else:
        cold.qemu.building = stop
    assert boot(cold, [KNOWN, MORE], server='whole') == 2
    assert cold.store.load(IMAGE).made.cache_image == before.cache_image
    cold.qemu.building = lambda: None
    cold.restart()
    cold.recover()
    cold.settle()
    made = cold.store.load(IMAGE).made
    assert made.cache_image.file != before.cache_image.file and not made.is_behind
    assert [extent.offset for extent in cold.qemu.builds[-1][0]] == [0, 262144]
    assert len(cold.boots.jobs) == 0, 'no profile boot'
