"""Compute hosts that lie in the form of what they say: each method, each argument.

What has the right form and is not true is in test_untrue_reports.py; what comes by a real message
bus in tests/functional/test_lying_host.py.
"""

import inspect
import json
import math
import typing

import pytest
from fakes_clock import Clock
from fakes_hosts import IMAGE, ready
from hypothesis import given
from hypothesis import strategies as st

from bootcache import exception
from bootcache.exception import MessageRefused
from bootcache.quoting import one_line, quoted
from bootcache.rpc import fields
from bootcache.rpc.messages import (
    MESSAGES,
    VERSION,
    ExchangeOffer,
    HoldingsAnswer,
    SnapshotProgress,
    StoredExport,
)
from bootcache.workingset import MAX_EXTENTS
from glance_bootcache.rpc import rejected
from glance_bootcache.rpc.endpoints import Endpoints
from glance_bootcache.rpc.messagesize import TOO_LONG
from glance_bootcache.rpc.rejected import RejectedMessages

RIGHT = {
    'image_id': IMAGE, 'host': 'one', 'server_id': 'server', 'profile_token': 'f' * 32, 'owner': '',
    'recorded_bytes': 5, 'image_hash': 'sha512:ab', 'granularity': 4096, 'extents': [[0, 4096]],
    'ended_by': 'marker', 'boot_seconds': 1.5, 'line': '', 'report': None, 'outcome': 'cached',
    'reason': '', 'pinned': True, 'hosts': ['one'], 'aggregates': ['racks'],
    'certificate': 'CN=one', 'sha256': 'ab' * 32,
    'address': '192.0.2.21', 'port': 10811, 'rack': 'a', 'file': 'sha512:ab', 'way': 'stalled',
    'got': [['192.0.2.22', 5]], 'copied': 5, 'gives': False, 'holds': False,
    'snapshot_id': IMAGE, 'token': 'f' * 32, 'virtual_bytes': 1 << 30, 'marker': None,
    'number': 1, 'name': 'storage-1', 'wish': 'drained'}
MEGABYTE = 'x' * (1 << 20)
FORGED = 'one\n2026-01-01 00:00:00.000 1 ERROR glance_bootcache.service forged\x1b[2J'
NUMBERS = [-1, 1 << 63, 10 ** 400, math.nan, math.inf, -math.inf, True]
TEXTS = ['', '../../etc/passwd', 'x' * 256, MEGABYTE, FORGED, '\ud800', '\0']
OTHERS = [None, [], {}, [[]], {'a': {'b': {}}}, [MEGABYTE] * 3, 1.5, 7]
# What is wrong for each argument; what is not here is wrong for it as well if it is in WRONG_TYPES.
NAMES = {'host', 'rack', 'file', 'server_id', 'owner', 'image_hash', 'profile_token'}
LIES = {
    'image_id': [*TEXTS, IMAGE + '\n', IMAGE[:-1], '{' + IMAGE + '}', *NUMBERS, *OTHERS],
    'host': [*TEXTS, 'two words', *NUMBERS, *OTHERS],
    **{name: [*TEXTS[2:], *NUMBERS, *OTHERS] for name in NAMES - {'host', 'profile_token'}},
    'profile_token': [*TEXTS[2:], *NUMBERS, *OTHERS[1:]],
    'certificate': ['CN=*', 'CN=on?', 'x' * 1025, *TEXTS[3:], *NUMBERS, *OTHERS],
    'ended_by': [*TEXTS, *NUMBERS, *OTHERS, 'magic'],
    'recorded_bytes': [*NUMBERS, *TEXTS, *OTHERS[:-1], '5'],
    'granularity': [*NUMBERS, *TEXTS, *OTHERS, 0, 511, 3000, 1 << 22, '4096'],
    'extents': [None, MEGABYTE, {}, 7, [[0, 1]] * (MAX_EXTENTS + 1)],
    'boot_seconds': [*NUMBERS, *TEXTS, *OTHERS[:-2]],
    'line': [MEGABYTE, *NUMBERS, *OTHERS], 'reason': [MEGABYTE, *NUMBERS, *OTHERS],
    'report': [MEGABYTE, 7, [], {str(number): 1 for number in range(101)},
               {'images': MEGABYTE}, {'images': [IMAGE]}, {'quotas': 7},
               {'images': dict.fromkeys(range(100_000), 1)},
               {'needs': 'all'}, {'needs': [IMAGE] * 100_000}],
    'outcome': [*TEXTS, *NUMBERS, *OTHERS, 'waiting'],
    'sha256': [*TEXTS, *NUMBERS, *OTHERS, 'AB' * 32, 'ab' * 31, 'ab' * 32 + '\n'],
    'address': [*TEXTS, *NUMBERS, *OTHERS, 'host', '192.0.2', '192.0.2.0/24', '[::1]'],
    'port': [*NUMBERS, *TEXTS, *OTHERS[:-1], 0, 65536, '10811'],
    'pinned': [*NUMBERS[:-1], *TEXTS, *OTHERS, 1, 0, 'yes'],
    'way': [*TEXTS, *NUMBERS, *OTHERS, 'warmed'],
    'got': [None, MEGABYTE, 7, {}, [FORGED], [['192.0.2.22']], [['192.0.2.22', -1]], [['one', 1]],
            [['192.0.2.22', 5, 6]], [['192.0.2.22', 5]] * 65],
    'copied': [*NUMBERS, *TEXTS, *OTHERS[:-1], '5'],
    'gives': [*NUMBERS[:-1], *TEXTS, *OTHERS, 1, 0],
    'holds': [*NUMBERS[:-1], *TEXTS, *OTHERS, 1, 0],
    'marker': [*TEXTS, *NUMBERS, *OTHERS[1:]],
    'snapshot_id': [*TEXTS, IMAGE + '\n', IMAGE[:-1], '{' + IMAGE + '}', *NUMBERS, *OTHERS],
    'token': [*TEXTS, *NUMBERS, *OTHERS, 'F' * 32, 'f' * 31, 'f' * 32 + '\n'],
    'virtual_bytes': [*NUMBERS, *TEXTS, *OTHERS, 0, 511, '512'],
    'number': [*NUMBERS, *TEXTS, *OTHERS[:-1], '5'],
    'name': [*TEXTS, 'two words', *NUMBERS, *OTHERS],
    'wish': [*TEXTS, *NUMBERS, *OTHERS[1:], 'up', 'DRAINED'],
    'hosts': [MEGABYTE, 7, {}, [FORGED], ['one', None], ['one'] * 20_001],
    'aggregates': [None, MEGABYTE, 7, {}, [FORGED], [None], ['racks'] * 1001]}


def taken(method):
    """The fields that a method takes."""
    return fields.bounds(MESSAGES[method])


def right(method):
    return {name: RIGHT[name] for name in taken(method)}


def label(value):
    return quoted(value)[:30]


def test_each_message_has_an_endpoint_that_takes_it_and_the_reverse():
    endpoints = {name: endpoint for name, endpoint in inspect.getmembers(
        Endpoints, inspect.isfunction) if not name.startswith('_')}
    assert {name: typing.get_type_hints(endpoint)['message']
            for name, endpoint in endpoints.items()} == MESSAGES


def test_each_field_of_each_message_is_tried_below():
    assert {field for method in MESSAGES for field in taken(method)} == set(LIES) == set(RIGHT)


def test_messages_are_of_a_version_that_is_spoken():
    for message in MESSAGES.values():
        assert message.since.split('.')[0] == VERSION.split('.')[0]
        assert int(message.since.split('.')[1]) <= int(VERSION.split('.')[1])


@pytest.mark.parametrize('method', sorted(MESSAGES))
def test_a_message_is_read_as_it_was_sent(method):
    message = MESSAGES[method].parse(right(method))
    assert MESSAGES[method].parse(fields.plain(message)) == message


@pytest.mark.parametrize('method, answer', [
    ('report_holdings', HoldingsAnswer()),
    ('report_holdings', HoldingsAnswer((IMAGE,), True, (IMAGE,))),
    ('serve_stored', None), ('serve_stored', StoredExport(settle=False)),
    ('serve_stored', StoredExport(True, ('192.0.2.1', 1), True, 'a', 'b', 1, 'c', 'raw', 'd')),
    ('begin_snapshot', SnapshotProgress()), ('finish_snapshot', SnapshotProgress(url='rbd://x')),
    ('exchange_cache', None), ('exchange_base', ExchangeOffer(again=1.5)),
    ('exchange_base', ExchangeOffer(b'torrent', (('a', 1), ('::1', 2)), (('a', 1),), True))],
    ids=str)
def test_an_answer_is_read_as_it_was_sent_and_what_is_new_is_ignored(method, answer):
    sent = json.loads(json.dumps(fields.plain(answer)))
    assert MESSAGES[method].read_answer(sent) == answer
    if answer is not None:
        assert MESSAGES[method].read_answer({**sent, 'new': 1}) == answer


@pytest.mark.parametrize('method, wrong', [
    ('report_holdings', None), ('report_holdings', [IMAGE]), ('report_holdings', {'drop': ['x']}),
    ('report_holdings', {'resend': 1}), ('report_holdings', {'moved': ['x']}),
    ('serve_stored', {}), ('serve_stored', 'no'),
    ('serve_stored', {'settle': True, 'server': ['a']}),
    ('serve_stored', {'settle': True, 'stored_bytes': -1}),
    ('finish_snapshot', {'url': 'x'}), ('finish_snapshot', {'url': 'a://' + 'x' * 1001}),
    ('upload_snapshot', {'uploaded': 1}), ('exchange_cache', {'torrent': '%'}), ('exchange_cache',
        {'peers': [['a', 0]]})], ids=str)
def test_an_answer_that_cannot_be_is_one_error(method, wrong):
    with pytest.raises(exception.AnswerInvalid, match=f'^{method}: ') as invalid:
        MESSAGES[method].read_answer(wrong)
    assert len(str(invalid.value)) < 400 and str(invalid.value).isprintable()


@pytest.mark.parametrize('method, field', [
    (method, field) for method in sorted(MESSAGES) for field in taken(method)])
def test_what_cannot_be_is_refused_by_its_field(house, caplog, method, field):
    for lie in LIES[field]:
        with pytest.raises(MessageRefused) as refused:
            house.endpoints.say(method, **{**right(method), field: lie})
        assert refused.value.field.split('.')[0] == field, label(lie)
        assert len(str(refused.value)) < 400 and str(refused.value).isprintable(), label(lie)
    counted = house.rejected.counts()
    assert {known for known, _field in counted} == {method}
    assert sum(counted.values()) == len(LIES[field])
    # Parts of a report are told of one by one.
    told = [record.getMessage() for record in caplog.records
            if f'{method} is refused' in record.getMessage()]
    senders = {'', 'one'} if field == 'host' else {''}
    assert 1 <= len(told) <= len(counted) * len(senders)
    assert all(line.isprintable() and len(line) < 600 for line in told)
    assert not house.store.manifests() and not house.table.describe()


@pytest.mark.parametrize('method', sorted(MESSAGES))
def test_what_is_missing_or_not_known_is_refused(house, method):
    said = right(method)
    for name in fields.needed(MESSAGES[method]):
        with pytest.raises(MessageRefused, match=rf'^{name}: is missing'):
            house.endpoints.say(method, **{key: said[key] for key in said if key != name})
    for strange in ('self', 'ctxt', MEGABYTE, FORGED):
        with pytest.raises(MessageRefused, match=r'^arguments: .* is not known') as refused:
            house.endpoints.say(method, **said, **{strange: 1})
        assert len(str(refused.value)) < 300 and str(refused.value).isprintable()


@pytest.mark.parametrize('message, error', [
    ({}, 'NoSuchMethod'), ({'method': None}, 'NoSuchMethod'), ({'method': 5}, 'NoSuchMethod'),
    ({'method': ['plan_boot']}, 'NoSuchMethod'), ({'method': '_unasked'}, 'NoSuchMethod'),
    ({'method': 'target'}, 'NoSuchMethod'), ({'method': '__init__'}, 'NoSuchMethod'),
    ({'method': 'report_use', 'args': {'host': 'old', 'images': {}}}, 'NoSuchMethod'),
    ({'method': MEGABYTE}, 'NoSuchMethod'), ({'method': FORGED}, 'NoSuchMethod'),
    ({'method': TOO_LONG}, 'MessageRefused'),
    ({'method': 'list_hosts', 'args': 'all'}, 'MessageRefused'),
    ({'method': 'list_hosts', 'args': [1]}, 'MessageRefused'),
    ({'method': 'list_hosts', 'args': dict.fromkeys(map(str, range(101)))}, 'MessageRefused'),
    ({'method': 'list_hosts', 'namespace': FORGED}, 'MessageRefused'),
    ({'method': 'list_hosts', 'version': FORGED}, 'MessageRefused'),
    ({'method': 'list_hosts', 'version': 2.0}, 'MessageRefused'),
    ({'method': 'list_hosts', 'version': '2.' + '9' * 5000}, 'MessageRefused'),
    ({'method': 'list_hosts', 'version': None}, 'MessageRefused'),
    *(({'method': 'list_hosts', 'version': other}, 'UnsupportedVersion')
      for other in ('1.16', '2.9999', '3.0'))],
    ids=lambda value: label(value))
def test_a_message_that_is_none_is_refused(house, caplog, message, error):
    with pytest.raises(Exception) as refused:
        house.endpoints.send(dict(message))
    assert type(refused.value).__name__ == error
    assert len(str(refused.value)) < 400 and str(refused.value).isprintable()
    assert all(record.getMessage().isprintable() and len(record.getMessage()) < 600
               for record in caplog.records)
    assert error == 'UnsupportedVersion' or sum(house.rejected.counts().values()) == 1


def test_nobody_gets_a_thread_to_be_called_back(house):
    for timeout in (5, MEGABYTE, -1):
        with pytest.raises(MessageRefused, match=r'^timeout: '):
            house.endpoints.send({'method': 'list_hosts'}, client_timeout=timeout)
    assert house.endpoints.say('list_hosts') == []


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
    | st.sampled_from([IMAGE, 'disk', 'one', FORGED, *NUMBERS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text(max_size=3) | st.sampled_from(['images', 'needs', 'quotas', 'unsettled', IMAGE]),
        inner, max_size=4), max_leaves=12)


@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_whatever_is_said_is_read_or_refused(method, data):
    said = {**right(method), **data.draw(st.dictionaries(
        st.sampled_from([*taken(method), 'odd']), anything, max_size=3))}
    try:
        read = MESSAGES[method].parse(said)
    except MessageRefused as refusal:
        assert len(str(refusal)) < 400 and str(refusal).isprintable()
    else:
        assert all(value.isprintable() for value in vars(read).values() if isinstance(value, str))


def test_what_makes_sense_is_taken_beside_what_does_not(house):
    """Of a report's entries each counts for itself: a host is not forgotten for one."""
    ready(house)
    held = {'last_use': 1000.5, 'medium': 'disk', 'generation': 0, 'bytes': 7}
    report = {'images': {IMAGE: held, FORGED: held,
                         IMAGE.replace('7', '8', 1): {**held, 'last_use': math.nan}},
              'needs': [IMAGE, MEGABYTE], 'quotas': {'disk': 5, 'tape': 5},
              'unsettled': {'servers': 1, 'named': [{'server': FORGED, 'why': MEGABYTE[:999]}]},
              'rpc': FORGED}
    assert house.endpoints.say('report_holdings', host='one', report=report) \
        == {'drop': [], 'resend': False, 'moved': []}
    host, = house.table.describe()
    assert (host['images'], host['quotas'], host['rpc']) == (1, {'disk': 5}, None)
    assert all(text.isprintable() and len(text) <= 255
               for text in host['unsettled']['named'][0].values())
    assert house.needs.hosts(IMAGE) == ['one']
    assert house.rejected.counts() == {
        ('report_holdings', 'report.images'): 2, ('report_holdings', 'report.needs'): 1,
        ('report_holdings', 'report.quotas'): 1, ('report_holdings', 'report.rpc'): 1}


def test_arguments_that_have_defaults_may_be_left_out(house):
    ready(house)
    said = {name: RIGHT[name] for name in fields.needed(MESSAGES['plan_boot'])}
    assert house.endpoints.say('plan_boot', **said)['action'] == 'cache'


# The place that counts.

REFUSAL = MessageRefused('host', 'is none')


def test_the_same_is_told_once_an_hour_and_counted_each_time(caplog):
    clock = Clock()
    known = RejectedMessages(clock)
    for _time in range(5):
        known.record('report_warm', REFUSAL, 'one')
    assert len(caplog.records) == 1 and known.counts() == {('report_warm', 'host'): 5}
    clock.now += 3599
    known.record('report_warm', REFUSAL, 'one')
    assert len(caplog.records) == 1
    clock.now += 2
    known.record('report_warm', REFUSAL, 'one')
    known.record('report_warm', REFUSAL, 'two')
    known.record('report_boot', REFUSAL, 'one')
    assert [record.getMessage().partition(' is ')[0] for record in caplog.records[1:]] == [
        'host one: report_warm', 'host two: report_warm', 'host one: report_boot']
    assert 'number 7 since' in caplog.records[1].getMessage()


def test_names_that_are_made_up_fill_neither_memory_nor_log(caplog, monkeypatch):
    monkeypatch.setattr(rejected, '_MOST_LOGGED', 20)
    known = RejectedMessages(Clock())
    for number in range(500):
        known.record('report_warm', REFUSAL, f'host-{number}')
    assert known.counts() == {('report_warm', 'host'): 500}
    assert len(caplog.records) == 21 and len(known._logged) == 20
    assert 'password of [bootcache]transport_url' in caplog.records[-1].getMessage()


@given(st.one_of(anything, st.binary(), st.text(min_size=200)))
def test_a_quotation_is_short_and_one_line(value):
    assert len(quoted(value)) <= 200 and quoted(value).isprintable()


def test_a_text_becomes_one_line():
    assert one_line(FORGED).isprintable() and '\n' not in one_line(FORGED)
    assert one_line(None) == '' and one_line(' a  b\t') == 'a b'


def test_an_operators_wish_that_cannot_be_is_no_lie(house):
    with pytest.raises(exception.RequestRefused):
        house.endpoints.say('evict_image', image_id=IMAGE, hosts=None)
    assert house.rejected.counts() == {}


def test_an_id_without_dashes_is_one():
    assert fields.IMAGE_ID(IMAGE.replace('-', '').upper()) == IMAGE
