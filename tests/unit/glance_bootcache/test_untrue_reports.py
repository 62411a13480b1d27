"""Compute hosts that lie in what they say, in the right form: what follows, and for whom.

What has a wrong form is in test_lies.py.
"""

import dataclasses

import pytest
from fakes_clock import Clock
from fakes_hosts import IMAGE, OTHER, holding, ready
from fakes_manager import SIZE

from bootcache import exception
from bootcache.exception import InvalidWorkingSet, MessageRefused
from bootcache.rpc.fields import plain
from bootcache.rpc.report import HeldImage, HostReport
from bootcache.tier import Medium
from glance_bootcache.hosts import holdings
from glance_bootcache.images import reportedboots

TOKEN = 'f' * 32


@pytest.fixture
def later(house, monkeypatch):
    """Two images that were recorded, long after the service's start."""
    clock = Clock()
    monkeypatch.setattr(reportedboots, 'time', clock)
    house.restart()
    ready(house, IMAGE, OTHER)
    clock.now += house.hosts._patience
    house.before = house.store.manifests()
    return house


def say_booted(house, extents, host='liar', image=IMAGE, **more):
    said = {'image_hash': house.store.load(image).image_hash, 'granularity': 65536,
            'ended_by': 'marker', 'boot_seconds': 1.0, 'server_id': 'server', **more}
    house.endpoints.say('report_boot', image_id=image, host=host, extents=extents, **said)
    house.settle()


def is_as_before(house):
    return house.store.manifests() == house.before and len(house.qemu.builds) == 2


@pytest.mark.parametrize('lie', [
    {}, {'server_id': ''}, {'host': 'victim'}, {'image_hash': 'sha512:00'}, {'image_hash': ''},
    {'image': OTHER}, {'profile_token': TOKEN}, {'profile_token': ''}], ids=str)
def test_boots_that_nobody_watches_change_nothing(later, caplog, lie):
    later.endpoints.say('plan_boot', image_id=IMAGE, host='victim', server_id='other',
                        profile_token=None)
    for _time in range(3):
        say_booted(later, [[0, 65536], [131072, 65536]], **lie)
    assert is_as_before(later)
    field = 'profile_token' if 'profile_token' in lie else 'image_id'
    assert later.rejected.counts() == {('report_boot', field): 3}
    # The one that was asked for is taken.
    assert later.hosts._expected.hosts(IMAGE) == {'victim'}


@pytest.mark.parametrize('extents', [
    [[SIZE, 65536]], [[0, SIZE + 1]], [[-65536, 65536]], [[0, 0]], [[0, -1]], [[0, 1 << 80]],
    [[0, 65536], [0, 65536]], [[0, 65536], [65535, 2]], [[0, 65536, -1]], [[0, 65536, 1e300]],
    [[0, 65536, float('nan')]], [[0.0, 65536]], [[True, 65536]], [['0', '65536']], [{}], [[0]],
    [['x' * 99999, 'y\n' * 9999]]], ids=lambda extents: repr(extents)[:40])
@pytest.mark.parametrize('granularity', [4096, 65536])
def test_extents_that_cannot_be_are_refused_and_counted(later, caplog, extents, granularity):
    later.endpoints.say('plan_boot', image_id=IMAGE, host='liar', server_id='server',
                        profile_token=None)
    with pytest.raises(InvalidWorkingSet) as refused:
        say_booted(later, extents, granularity=granularity)
    assert len(str(refused.value)) < 400 and str(refused.value).isprintable()
    assert is_as_before(later)
    assert later.rejected.counts() == {('report_boot', 'extents'): 1}
    assert 'host liar: report_boot is refused: extents: ' in caplog.text


def test_a_base_that_is_gone_is_one_line_to_a_host_that_asks_for_it(later, caplog, monkeypatch):
    def gone(manifest, certificate=''):
        raise exception.StorageDaemonError(f'exporter: no file of {manifest.image_id}')

    monkeypatch.setattr(later.exporter, 'ensure_stored', gone)
    with pytest.raises(exception.StorageDaemonError):
        later.endpoints.say('serve_stored', image_id=IMAGE, host='one')
    said, = (record for record in caplog.records if 'serve_stored' in record.message)
    assert said.message == ('serve_stored of one is answered with an error:'
                            f' exporter: no file of {IMAGE}')
    assert said.exc_info is None


def test_images_that_are_not_there_are_neither_booted_nor_served_nor_warm(house):
    for image in (IMAGE, OTHER):
        for method, more in (('serve_stored', {'host': 'liar'}), ('promote_image', {}),
                             ('report_progress', {'profile_token': TOKEN, 'recorded_bytes': 5}),
                             ('report_warm', {'host': 'liar', 'outcome': 'cached', 'reason': ''})):
            assert house.endpoints.say(method, image_id=image, **more) is None
        house.endpoints.say('report_boot', image_id=image, image_hash='sha512:ab', host='liar',
                            granularity=4096, extents=[[0, 4096]], ended_by='marker',
                            boot_seconds=1.0)
    assert house.store.manifests() == [] and house.tiers.promoted == []
    assert house.rejected.counts() == {
        ('report_warm', 'host'): 2, ('report_boot', 'image_id'): 2,
        ('report_progress', 'profile_token'): 2}


def test_a_host_is_warm_only_where_it_was_asked_to_be(later, caplog):
    later.nova.hosts = {'racks': ('one', 'two')}
    later.endpoints.say('warm_image', image_id=IMAGE, aggregates=['racks'])
    later.warming.step()
    for host, image in (('liar', IMAGE), ('one', OTHER), ('x.example', IMAGE)):
        later.endpoints.say('report_warm', image_id=image, host=host, outcome='cached', reason='')
    job, = later.endpoints.say('get_warming', image_id=IMAGE)
    assert {known['outcome'] for known in job['hosts'].values()} == {'waiting'}
    assert later.endpoints.say('get_warming', image_id=OTHER) == []
    assert later.rejected.counts() == {('report_warm', 'host'): 3}
    # A reason is text for people.
    later.endpoints.say('report_warm', image_id=IMAGE, host='one', outcome='error',
                        reason='a\nb\x1b[2J' + 'x' * 9999)
    later.warming.step()
    job, = later.endpoints.say('get_warming', image_id=IMAGE)
    assert job['hosts']['one']['reason'].startswith('a b?[2Jxxx')
    assert len(job['hosts']['one']['reason']) == 500


@pytest.mark.parametrize('used, is_told', [(2e9 * 10, True), (1e300, True), (0, False)])
def test_a_use_in_the_future_counts_as_now_and_is_told(later, caplog, monkeypatch, used, is_told):
    later.endpoints.say('report_holdings', host='liar', report=holding(IMAGE, used=used))
    noted = dict(later.tiers.noted)[IMAGE]
    assert noted <= holdings.time.time()
    assert later.rejected.counts() == (
        {('report_holdings', 'report.images.used'): 1} if is_told else {})
    assert ('is the host\'s clock right?' in caplog.text) is is_told


def test_holdings_without_end_are_refused_and_the_ones_before_stay(later):
    later.endpoints.say('report_holdings', host='liar', report=holding(IMAGE))
    many = holding(*(f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(100_000)))
    with pytest.raises(MessageRefused, match='100000 entries are more than 10000'):
        later.endpoints.say('report_holdings', host='liar', report=many)
    assert [entry['host'] for entry in later.table.holders(IMAGE)] == ['liar']
    assert later.table._held == 1


def test_what_cannot_be_in_a_report_is_counted_and_not_kept(later):
    """A host's name is made up easily, and each report may have ten thousands of lies.

    Needs are kept by who bounds them.
    """
    later.endpoints.say('report_holdings', host='liar', report={
        'images': {IMAGE: plain(holding(IMAGE).images[IMAGE]), 'x' * 99: 0},
        'needs': ['y' * 99, OTHER]})
    assert later.rejected.counts() == {
        ('report_holdings', 'report.images'): 1, ('report_holdings', 'report.needs'): 1}
    kept = later.table._hosts['liar'].holdings
    assert (kept.left_out, kept.needs, list(kept.images)) == ((), None, [IMAGE])
    assert later.needs.hosts(OTHER) == ['liar']


def test_names_that_one_sender_makes_up_push_no_host_out(later, caplog, monkeypatch):
    monkeypatch.setattr(holdings, 'MOST_HOSTS', 50)
    later.endpoints.say('report_holdings', host='honest',
                        report=dataclasses.replace(holding(IMAGE), needs=frozenset([IMAGE])))
    refused = 0
    for number in range(2000):
        later.seconds.now += 0.1
        try:
            later.endpoints.say('report_holdings', host=f'made-up-{number}', report=holding(OTHER))
        except MessageRefused:
            refused += 1
    assert refused == 2000 - 49
    assert later.rejected.counts() == {('report_holdings', 'host'): refused}
    assert len(later.table.describe()) == 50 and later.table._held == 50
    assert later.endpoints.say('report_holdings', host='honest', report=None) \
        == {'drop': [], 'resend': False, 'moved': []}
    assert [entry['host'] for entry in later.table.holders(IMAGE)] == ['honest']
    assert later.needs.hosts(IMAGE) == ['honest']
    assert len(caplog.text) < 1 << 20


def test_an_image_that_a_host_only_says_to_hold_changes_nothing_for_others(later):
    """Neither what is told to go from other hosts, nor the image's state."""
    later.endpoints.say('report_holdings', host='honest', report=holding(IMAGE))
    lies = HostReport({IMAGE: HeldImage(0.0, Medium.MEMORY, 1 << 62, 1 << 62)},
                      {Medium.DISK: 1 << 62}, frozenset())
    later.endpoints.say('report_holdings', host='liar', report=lies)
    assert later.endpoints.say('report_holdings', host='honest', report=None)['drop'] == []
    assert later.store.manifests() == later.before
    held = {entry['host']: entry for entry in later.table.holders(IMAGE)}
    assert (held['honest']['medium'], held['honest']['bytes']) == ('disk', 7)


def test_that_nothing_is_new_confirms_no_lie_in_the_host_s_name(later):
    """The host says it of its own report. It is asked for that again, and the lie is over."""
    def say(secret, report):
        later.endpoints.secret = secret
        return later.endpoints.say('report_holdings', host='victim', report=report)

    own = dataclasses.replace(holding(IMAGE), needs=frozenset([IMAGE]))
    say('ab' * 16, own)
    assert not say('ab' * 16, None)['resend']
    say('cd' * 16, HostReport(needs=frozenset()))
    said = later.needs._hosts['victim'].seen
    assert say('ab' * 16, None) == {'drop': [], 'resend': True, 'moved': []}
    assert later.needs._hosts['victim'].seen == said
    assert say('cd' * 16, None)['resend'] is False
    say('ab' * 16, own)
    assert not say('ab' * 16, None)['resend']
    assert later.needs.hosts(IMAGE) == ['victim']
    assert [entry['host'] for entry in later.table.holders(IMAGE)] == ['victim']


def test_whatever_hosts_one_sender_names_it_has_one_place_for_a_slot(later):
    """And it gives back no other's, in whoever's name."""
    def say(secret, method, **said):
        later.endpoints.secret = secret
        return later.endpoints.say(method, **said)

    liar, honest = 'ab' * 16, 'cd' * 16
    assert say(honest, 'take_slot', host='honest') == 0
    for number in range(300):
        say(liar, 'take_slot', host=f'made-up-{number}')
    assert say('ef' * 16, 'take_slot', host='another') == 0
    for number in range(later.conf.bootcache.settle_slots - 3):
        assert say(f'{number:032x}', 'take_slot', host=f'host-{number}') == 0
    assert say('01' * 16, 'take_slot', host='late') > 0
    say(liar, 'hold_slot', host='honest', holds=False)
    assert say('01' * 16, 'take_slot', host='late') == 0, 'its own it gives back'
    say(liar, 'hold_slot', host='honest', holds=False)
    assert say('23' * 16, 'take_slot', host='later') > 0


def test_boots_of_servers_that_are_made_up_are_bounded(later):
    """A host may ask for any server. What waits for its reports is bounded; nothing is built."""
    for number in range(300):
        later.endpoints.say('plan_boot', image_id=IMAGE, host='liar', server_id=f'made-up-{number}',
                            profile_token=None, owner='nobody')
    assert len(later.hosts._expected._boots[IMAGE, 'liar']) == 100
    assert is_as_before(later)


def test_what_is_built_is_of_the_images_own_bytes_whatever_is_said(later):
    """A host that lies well: it asks, and says what another one confirms."""
    for host in ('liar', 'accomplice'):
        later.table.report(host, HostReport())
        later.endpoints.say('plan_boot', image_id=IMAGE, host=host, server_id=f'on-{host}',
                            profile_token=None)
        say_booted(later, [[0, 65536], [131072, 65536]], host, server_id=f'on-{host}')
    known = later.operators.get_working_set(IMAGE)
    assert later.store.load(IMAGE).made.working_set.version == 2
    assert known['image_hash'] == later.store.load(IMAGE).image_hash
    assert all(offset >= 0 and offset + length <= SIZE
               for offset, length, *_seconds in known['extents'])
    # The base is the service's, and what was cached before comes first.
    built, _quota = later.qemu.builds[-1]
    assert [extent.offset for extent in built][:2] == [65536, 0]
