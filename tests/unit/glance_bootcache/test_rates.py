"""How much one sender may ask for, and that the others do not come to it."""

import contextlib
import json
import types

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from hypothesis import given, settings
from hypothesis import strategies as st
from oslo_config import cfg

from bootcache.exception import MessageRefused, TooManyMessages
from bootcache.rpc.fields import plain
from bootcache.rpc.messages import VERSION, ReportBoot
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes.membership import AWAY_SECONDS
from glance_bootcache.rpc import messagesize, ratelimit, validation
from glance_bootcache.rpc.ratelimit import RateLimiter
from glance_bootcache.rpc.rejected import RejectedMessages
from glance_bootcache.rpc.validation import ValidatingDispatcher

MIB = 1 << 20


def sends(known, sender, count=1, cost=1.0):
    """Return how many of a sender's messages are read."""
    taken = 0
    for _message in range(count):
        with contextlib.suppress(TooManyMessages), known.admitted(sender, cost):
            taken += 1
    return taken


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def known(clock):
    return RateLimiter(clock)


def test_one_sender_is_bounded_at_once_and_by_the_second(known, clock):
    assert sends(known, 'liar', 10_000) == ratelimit.BURST
    clock.now += 5
    assert sends(known, 'liar', 10_000) == 5 * ratelimit.RATE


@pytest.mark.parametrize('hosts', [0, 1000, 20_000])
def test_all_known_hosts_report_twice_in_the_minute_after_a_start(clock, hosts):
    """They are new to the process, which asks each for its report anew."""
    limiter = RateLimiter(clock, hosts=hosts)
    for number in range(hosts):
        clock.now += 60 / hosts
        assert sends(limiter, f'process {number}', 2) == 2


def test_known_hosts_raise_the_bound_and_do_not_take_it_away(clock):
    limiter = RateLimiter(clock, hosts=10_000)
    assert sum(sends(limiter, f'made up {number}') for number in range(10_000)) \
        == ratelimit.NEW_BURST
    clock.now += 1
    assert sum(sends(limiter, f'other {number}') for number in range(10_000)) \
        == ratelimit.NEW_RATE + 10_000 * ratelimit.KNOWN_RATE


def test_a_flood_costs_the_others_nothing(known, clock):
    for _second in range(60):
        sends(known, 'liar', 2000)
        assert sends(known, 'honest', 10) == 10
        clock.now += 1


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 30)), max_size=5))
def test_no_flood_ever_costs_one_that_keeps_to_its_share(floods):
    clock = Clock()
    known = RateLimiter(clock)
    assert sends(known, 'honest') == 1
    clock.now += ratelimit.ESTABLISHED_SECONDS
    assert sends(known, 'honest') == 1
    for number, (count, seconds) in enumerate(floods):
        # All of it by one, and each message by another one.
        sends(known, 'liar', count)
        for name in range(count):
            sends(known, f'made-up-{number}-{name}')
        clock.now += seconds
        # At most what it may.
        honest = int(min(seconds * ratelimit.RATE, ratelimit.BURST))
        assert sends(known, 'honest', honest) == honest


def test_names_that_are_made_up_share_what_new_ones_may(known, clock):
    taken = sum(sends(known, f'made-up-{number}') for number in range(10_000))
    assert taken == ratelimit.NEW_BURST
    clock.now += 1
    assert sum(sends(known, f'other-{number}') for number in range(10_000)) == ratelimit.NEW_RATE


def test_one_that_was_heard_of_for_long_does_not_come_to_that(clock, monkeypatch):
    monkeypatch.setattr(ratelimit, '_MOST_SENDERS', 100)
    known = RateLimiter(clock)
    assert sends(known, 'honest') == 1
    clock.now += ratelimit.ESTABLISHED_SECONDS
    assert sends(known, 'honest') == 1
    for number in range(300):
        sends(known, f'made-up-{number}')
    assert sends(known, 'honest', 100) == 100
    # Nor is its place taken, whoever stays for how long.
    for _round in range(4):
        clock.now += ratelimit.ESTABLISHED_SECONDS
        for number in range(300):
            sends(known, f'made-up-{number}')
        assert sends(known, 'honest', 50) == 50
    assert len(known._new) <= ratelimit._MOST_SENDERS
    assert len(known._established) <= ratelimit._MOST_SENDERS


def test_the_threads_that_answer_are_not_all_one_senders(known):
    with contextlib.ExitStack() as stack:
        for _call in range(ratelimit.MOST_AT_ONCE):
            stack.enter_context(known.admitted('liar'))
        with pytest.raises(TooManyMessages, match='this sender'):
            stack.enter_context(known.admitted('liar'))
        assert sends(known, 'honest') == 1
    assert sends(known, 'liar') == 1, 'they are answered now'


def test_nor_all_of_those_that_have_just_come(known, clock):
    assert sends(known, 'honest') == 1
    clock.now += ratelimit.ESTABLISHED_SECONDS
    assert sends(known, 'honest') == 1
    with contextlib.ExitStack() as stack:
        for number in range(ratelimit.MOST_NEW_AT_ONCE):
            stack.enter_context(known.admitted(f'made-up-{number}'))
        with pytest.raises(TooManyMessages, match='just come'):
            stack.enter_context(known.admitted('made-up'))
        assert sends(known, 'honest') == 1


def test_nor_all_of_a_few_that_were_heard_of_for_long(known, clock):
    """Who has nothing in hand gets one of those that are left."""
    names = 'honest', 'liar', 'another', 'third'
    for _time in range(2):
        assert [sends(known, name) for name in names] == [1] * 4
        clock.now += ratelimit.ESTABLISHED_SECONDS
    with contextlib.ExitStack() as stack:
        held = 0
        for name in names[1:]:
            with contextlib.suppress(TooManyMessages):
                while True:
                    stack.enter_context(known.admitted(name))
                    held += 1
        assert held == ratelimit.MOST_OF_ALL < 64
        with known.admitted('honest'), pytest.raises(TooManyMessages, match='nothing in hand'):
            stack.enter_context(known.admitted('honest'))
    assert sends(known, 'third') == 1, 'they are answered now'


def test_a_million_extents_are_more_work_than_a_message(known):
    assert sends(known, 'liar', 100, cost=1 + 1_000_000 / validation.EXTENTS_OF_ONE) == 3
    # One that is more than all that it may is read once that has come together.
    assert sends(RateLimiter(Clock()), 'other', 1, cost=10 * ratelimit.BURST) == 1


LIAR, HONEST = 'ab' * 16, 'cd' * 16


class Dispatcher:
    """Stands for oslo.messaging's, which calls the endpoints."""

    def dispatch(self, incoming):
        return incoming.message['method']


@pytest.fixture
def door(clock):
    rejected = RejectedMessages(clock)
    dispatcher = ValidatingDispatcher(Dispatcher(), rejected, RateLimiter(clock), ServiceMetrics())

    def ask(secret, host='liar', method='report_holdings', count=1, queue=None, **said):
        answered = []
        for _message in range(count):
            incoming = types.SimpleNamespace(
                message={'version': VERSION, 'method': method, 'args': said or {'host': host,
                    'report': None}},
                ctxt={} if secret is None else {'sender': secret}, client_timeout=None,
                reply_q=queue)
            try:
                answered.append(dispatcher.dispatch(incoming))
            except messaging.ExpectedException as expected:
                assert isinstance(expected.exc_info[1], MessageRefused)
        return len(answered)

    return types.SimpleNamespace(ask=ask, counts=rejected.counts)


def test_who_speaks_in_anothers_name_takes_nothing_from_it(door, caplog):
    assert door.ask(LIAR, host='honest', count=2000) == ratelimit.BURST
    assert door.ask(HONEST, host='honest') == 1
    assert door.counts() == {('report_holdings', 'message'): 2000 - ratelimit.BURST}
    assert caplog.text.count('too many of this sender') == 1, 'told once'


def test_a_name_of_a_queue_that_can_be_guessed_takes_nothing_from_who_has_it(door, clock):
    """oslo.messaging's queue manager makes it of host, process and a number."""
    guessed = 'reply_compute-1:nova-compute:1'
    for _second in range(1200):
        door.ask(LIAR, count=25, queue=guessed)
        assert door.ask(HONEST, host='compute-1', queue=guessed) == 1
        clock.now += 1


@pytest.mark.parametrize('secret', [None, '', 'ab' * 15, 'AB' * 16, 'x' * 100_000, ['ab' * 16], 7])
def test_what_has_no_secret_is_counted_by_the_host_that_it_names(door, secret):
    assert door.ask(secret, host='liar', count=2000) == ratelimit.BURST
    assert door.ask(secret, host='honest') == 1
    # What names none is of one sender, and processes of ours have a secret.
    image = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    assert door.ask(secret, method='promote_image', count=600, image_id=image) == ratelimit.BURST
    assert door.ask(HONEST, method='promote_image', image_id=image) == 1


def test_options_of_rabbitmq_that_are_not_set_suit_the_service():
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    transport = messaging.get_rpc_transport(conf, url='rabbit://nobody@127.0.0.1:1/')
    try:
        validation.get_server(transport, 'here', object(), RejectedMessages(), ServiceMetrics())
        group = conf.oslo_messaging_rabbit
        assert group.rabbit_qos_prefetch_count == validation.MOST_AHEAD
        # A node that is silent gets no messages when the others take its images over.
        assert 2 * group.heartbeat_timeout_threshold <= AWAY_SECONDS
        assert group.heartbeat_rate >= 2
    finally:
        transport.cleanup()


def test_of_long_messages_so_much_is_read(clock):
    read = messagesize.BoundedReader(clock).read
    long, usual = b' ' * (8 * MIB - 2) + b'[]', b'[1]'
    most = messagesize.LONG_BURST // len(long)
    assert [read(long) for _message in range(most)] == [[]] * most
    assert messagesize.TOO_MANY_LONG in read(long)['oslo.message']
    # The others are read meanwhile.
    assert read(usual) == [1]
    clock.now += len(long) / messagesize.LONG_RATE
    assert read(long) == []
    assert messagesize.TOO_MANY_LONG in read(long)['oslo.message']


def test_the_longest_report_of_a_boot_is_read():
    """2 GiB in pieces of 4 KiB, of an image of 900 GiB; as oslo.messaging sends it."""
    # As the recorder rounds, for a boot that takes minutes.
    extents = [[(900 << 30) - number * 4096, 4096, 900.123]
               for number in range(1, (2 << 30) // 4096 + 1)]
    message = ReportBoot('0' * 36, 'sha512:' + '0' * 128, 'x' * 255, 4096, extents, 'timeout',
                         999.9,
                         server_id='0' * 36)
    body = json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(
        {'method': message.method, 'args': plain(message), 'version': VERSION})})
    assert messagesize.LONGEST_BYTES * 0.9 < len(body) + MIB / 16 < messagesize.LONGEST_BYTES
