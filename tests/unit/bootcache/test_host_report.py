"""What hosts report, as it is read: what cannot be is left out, and the rest counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache.rpc.fields import MOST_IMAGES, MOST_NAMED, OutOfBounds, plain
from bootcache.rpc.report import (
    BaseRead,
    BasesRead,
    HeldImage,
    HostReport,
    PausedGuest,
    PausedGuests,
    UnsettledServer,
    UnsettledServers,
)
from bootcache.tier import Medium

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
HELD = {'last_use': 5.0, 'medium': 'disk', 'generation': 0, 'bytes': 7}
WHOLE = HostReport(
    {IMAGE: HeldImage(5.0, Medium.MEMORY, 2, 9)}, {Medium.DISK: 10}, frozenset([OTHER]),
    UnsettledServers(2, (UnsettledServer('a', 'why'),)),
    PausedGuests(1, (PausedGuest('b', 'no space', 7.0),)),
    BasesRead(2, (BaseRead(IMAGE, '10.0.0.5:10810', 'a-0', 900.0, None),
                  BaseRead(OTHER, '', '', 900.0, 0.0))), '2.0', 2e9)


def left_out(report):
    return [refusal.field for refusal in report.left_out]


def test_a_report_is_read_as_it_was_sent():
    assert HostReport.read(plain(WHOLE)) == WHOLE
    assert HostReport.read(plain(WHOLE)).left_out == ()


def test_ids_are_read_in_their_canonical_form_and_what_is_new_is_ignored():
    assert HostReport.read({'images': {IMAGE.upper(): {**HELD, 'new': 1}}, 'later': 5,
                            'needs': [IMAGE.upper()]}) \
        == HostReport({IMAGE: HeldImage(5.0, Medium.DISK, 0, 7)}, needs=frozenset([IMAGE]))


@pytest.mark.parametrize('report', [
    {}, {'images': None, 'quotas': None, 'needs': None},
    {'quotas': {'tape': 5, 'disk': 'all', 'memory': None}}])
def test_a_report_without_sense_is_an_empty_one(report):
    assert HostReport.read(report) == HostReport()


@pytest.mark.parametrize('report', [
    [], 'all', 5, {'images': [IMAGE]}, {'images': 'x'}, {'needs': 'all'}, {'needs': {IMAGE: 1}},
    {'quotas': 7}, dict.fromkeys(map(str, range(101)))], ids=lambda report: str(report)[:20])
def test_what_is_no_report_is_refused(report):
    with pytest.raises(OutOfBounds):
        HostReport.read(report)


@pytest.mark.parametrize('entry', [
    None, [], 5, 'disk', [5.0, 'disk', 0, 7], {}, *({**HELD, **wrong} for wrong in (
        {'medium': 'tape'}, {'medium': ['disk']}, {'medium': None}, {'last_use': None},
        {'last_use': 'x'}, {'last_use': math.nan}, {'last_use': math.inf}, {'last_use': -5},
        {'last_use': '5'}, {'last_use': True}, {'last_use': 10 ** 400, 'bytes': 'x' * 9999},
        {'generation': None}, {'generation': math.inf}, {'generation': -1}, {'bytes': []},
        {'bytes': -7}, {'bytes': 7.0}, {'bytes': 1 << 63})),
    *({key: HELD[key] for key in HELD if key != missing} for missing in HELD)])
def test_an_entry_without_sense_is_left_out_alone(entry):
    report = HostReport.read({'images': {OTHER: entry, IMAGE: HELD}})
    assert report.images == {IMAGE: HeldImage(5.0, Medium.DISK, 0, 7)}
    assert left_out(report) == ['report.images'] and len(str(report.left_out[0])) < 300


@pytest.mark.parametrize('image', ['', 'x', '../../etc', None, 5, 5.0, ()])
def test_only_image_ids_are_images(image):
    report = HostReport.read({'images': {image: HELD}, 'needs': [image, IMAGE]})
    assert report.images == {} and report.needs == {IMAGE}
    assert left_out(report) == ['report.images', 'report.needs']


def test_a_report_has_an_end():
    many = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(MOST_IMAGES + 1)]
    assert len(HostReport.read({'images': dict.fromkeys(many[1:], HELD)}).images) == MOST_IMAGES
    assert len(HostReport.read({'needs': many[1:]}).needs) == MOST_IMAGES
    for part in {'images': dict.fromkeys(many, HELD)}, {'needs': many}:
        with pytest.raises(OutOfBounds, match='10001 entries are more than 10000') as refused:
            HostReport.read(part)
        assert refused.value.part in part


def test_of_many_lies_in_a_report_some_are_told_of_each_field():
    lies = [f'{number:x}' for number in range(MOST_IMAGES)]
    report = HostReport.read({'images': dict.fromkeys(lies, HELD), 'needs': lies, 'rpc': 2.0})
    assert left_out(report) == ['report.images'] * MOST_NAMED + ['report.needs'] * MOST_NAMED \
        + ['report.rpc']


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([IMAGE, 'disk', 'memory', 'images', 'quotas', HELD]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(
        st.text(max_size=3) | st.sampled_from([IMAGE, OTHER, *plain(WHOLE), *HELD, 'disk',
                                               'servers', 'named']), inner,
        max_size=4), max_leaves=20)


@given(anything)
def test_whatever_a_host_says_it_is_read_or_refused(told):
    try:
        report = HostReport.read(told)
    except OutOfBounds:
        return
    for held in report.images.values():
        assert 0 <= held.last_use < math.inf
        assert held.generation >= 0 and held.bytes >= 0 and held.medium in Medium
    assert all(len(str(refusal)) < 400 and str(refusal).isprintable()
               for refusal in report.left_out)


def named(count, *entries):
    return {'servers': count, 'named': list(entries)}


SERVER = {'server': 'a', 'why': 'why'}
GUEST = {'server': 'a', 'waits_for': 'why', 'since': 900}


@pytest.mark.parametrize('told, known', [
    (named(2, SERVER, {'server': 'b', 'why': 'x' * 999}),
     UnsettledServers(2, (UnsettledServer('a', 'why'), UnsettledServer('b', 'x' * 255)))),
    (named(100, *[SERVER] * 100), UnsettledServers(100, (UnsettledServer('a', 'why'),) * 50)),
    (None, None), *((wrong, None) for wrong in (
        {}, named('x'), named(1, 'abc'), {'servers': 1, 'named': 7}, named(-5), named(1, {})))],
    ids=lambda told: str(told)[:30])
def test_servers_that_depend_on_bootcache(told, known):
    report = HostReport.read({'unsettled': told, 'rpc': '2.0'})
    assert (report.unsettled, report.rpc) == (known, '2.0'), 'the rest is understood'
    assert left_out(report) == ['report.unsettled'] * (known is None and told is not None)


@pytest.mark.parametrize('told, known', [
    (named(2, GUEST, {**GUEST, 'server': 'b', 'waits_for': 'x' * 999, 'since': 2000.5}),
     PausedGuests(2, (PausedGuest('a', 'why', 900.0), PausedGuest('b', 'x' * 255, 2000.5)))),
    (named(100, *[GUEST] * 100), PausedGuests(100, (PausedGuest('a', 'why', 900.0),) * 50)),
    (None, None), *((wrong, None) for wrong in (
        {}, named('x'), named(1, SERVER), named(1, {**GUEST, 'since': 'then'}),
        named(1, {**GUEST, 'since': math.inf}), named(-5)))], ids=lambda told: str(told)[:30])
def test_paused_guests(told, known):
    report = HostReport.read({'paused': told, 'unsettled': named(3, SERVER)})
    assert (report.paused, report.unsettled.servers) == (known, 3), 'the rest is understood'
    assert left_out(report) == ['report.paused'] * (known is None and told is not None)


READ = {'image_id': IMAGE, 'way': '10.0.0.5:10810', 'connector': 'a-0', 'since': 900.0,
        'answered': None}
KNOWN = BaseRead(IMAGE, '10.0.0.5:10810', 'a-0', 900.0, None)


@pytest.mark.parametrize('told, known', [
    ([READ], (KNOWN,)), ([], ()), ([READ] * 99, (KNOWN,) * 50), *((wrong, None) for wrong in (
        [{key: READ[key] for key in READ if key != 'answered'}], [{**READ, 'image_id': '../x'}],
        [{**READ, 'since': 'x'}], [{**READ, 'answered': math.nan}], [{**READ, 'way': 7}], 'x',
        None))], ids=lambda told: str(told)[:30])
def test_how_a_host_reads_bases(told, known):
    report = HostReport.read({'bases': {'bases': 99, 'named': told}})
    assert report.bases == (None if known is None else BasesRead(99, known))


@pytest.mark.parametrize('told, known', [
    ('2.1', '2.1'),
    ('x' * 999, None), ('2.0\n', None), (None, None), (2.0, None), (['2.0'], None)], ids=str)
def test_what_a_host_tells_of_its_version(told, known):
    assert HostReport.read({'rpc': told}).rpc == known


@pytest.mark.parametrize('told, known', [
    (2e9, 2e9), (1, 1.0), (None, None), (-1, None), (1e300, None), (math.nan, None),
    ('2e9', None), (True, None), ([2e9], None)], ids=str)
def test_what_a_host_tells_of_its_certificates(told, known):
    report = HostReport.read({'certificates_end': told})
    assert report.certificates_end == known
    assert left_out(report) == ([] if known == told else ['report.certificates_end'])
