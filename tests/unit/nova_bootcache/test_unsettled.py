"""Servers that depend on bootcache: which, why, and what ends it."""

import dataclasses

import pytest

from bootcache.rpc.report import UnsettledServer, UnsettledServers
from nova_bootcache.settling import unsettled
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.settling.unsettled import SEES_ERRORS, SOON, YOUNG, Unsettled

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def server(name, settles=True, state='active'):
    """A server of this host."""
    return LocalServer(name, IMAGE, settles, 100.0, f'/instances/{name}', 'vda', state)


def why(*arguments, is_off=False, is_unwanted=False, has_failed=False):
    """As unsettled.why, with all well."""
    return unsettled.why(*arguments, is_off=is_off, is_unwanted=is_unwanted, has_failed=has_failed)


@pytest.mark.parametrize('state, cure', [
    ('suspended', 'resume it'), ('rescued', 'unrescue it'),
    ('resized', 'confirm or revert its resize'), ('error', 'mend or delete it')])
def test_states_that_last_have_a_cure(state, cure):
    # Whatever else is so: that is what has to be ended first.
    for more in ({}, {'is_off': True}, {'is_unwanted': True}, {'has_failed': True}):
        assert why(server('a', False, state), **more) == f'it is {state}: {cure}'


def test_what_nova_is_doing_passes():
    assert 'at work on it: resize_migrating' in why(server('a', False, 'resize_migrating'))


def test_a_host_that_waits_for_its_turn_is_told():
    seen = Unsettled(is_off=False)
    seen.note([server('a')], set())
    seen.queued.add(IMAGE)
    assert 'settle_slots' in seen.report().named[0].why
    seen.queued.clear()
    assert seen.report().named == (UnsettledServer('a', SOON),)


def test_one_that_was_started_just_now_is_not_settled_soon():
    seen = Unsettled(is_off=False, delay=100.5)
    seen.note([server('a'), server('b', False, 'suspended')], set())
    seen.queued.add(IMAGE)
    # Nobody has to do anything about it.
    assert seen.report().named == (UnsettledServer('b', 'it is suspended: resume it'),
                                   UnsettledServer('a', YOUNG))
    seen = Unsettled(is_off=False, delay=100.0)
    seen.note([server('a')], set())
    assert seen.report().named == (UnsettledServer('a', SOON),)


def test_a_host_an_image_and_a_failure_are_told():
    assert why(server('a')) == SOON
    assert 'settle_bandwidth' in why(server('a'), is_off=True, is_unwanted=True, has_failed=True)
    assert 'bootcache_settle=no' in why(server('a'), is_unwanted=True, has_failed=True)
    assert 'log' in why(server('a'), has_failed=True)


def test_nothing_is_reported_before_somebody_has_looked():
    seen = Unsettled(is_off=False)
    assert seen.report() is None
    seen.note([], {})
    assert seen.report() == UnsettledServers(0, ())


def test_those_that_need_somebody_come_first_and_not_all_are_named(monkeypatch):
    monkeypatch.setattr(unsettled, 'MOST_NAMED', 3)
    seen = Unsettled(is_off=False)
    seen.note([server('a'), server('b'), server('c', False, 'suspended'), server('d')], {})
    assert seen.report() == UnsettledServers(4, (
        UnsettledServer('c', 'it is suspended: resume it'), UnsettledServer('a', SOON),
        UnsettledServer('b', SOON)))


def test_a_suspended_server_is_logged_once(caplog):
    caplog.set_level('INFO')
    seen = Unsettled(is_off=False)
    for _again in range(3):
        seen.note([server('a'), server('c', False, 'suspended'), server('d', False, 'spawning')],
                  {})
    (record,) = caplog.records
    assert 'server c' in record.getMessage() and 'resume it' in record.getMessage()
    # Resumed and suspended again: it is said again.
    seen.note([server('c')], {})
    seen.note([server('c', False, 'suspended')], {})
    assert len(caplog.records) == 2


def test_those_whose_guests_do_not_wait_are_told_of_first():
    """What ends that is not to settle them."""
    seen = Unsettled(is_off=False)
    seen.note([server('a'), server('b'), server('c', False, 'suspended')], {}, {'b', 'c'})
    assert seen.report().named == (
        UnsettledServer('b', SOON + SEES_ERRORS),
        UnsettledServer('c', 'it is suspended: resume it' + SEES_ERRORS),
        UnsettledServer('a', SOON))
    # The storage service takes so much of it.
    assert len(why(server('a'), is_unwanted=True) + SEES_ERRORS) < 255
    seen.note([server('b')], {})
    assert seen.report().named == (UnsettledServer('b', SOON),)


def test_the_oldest_is_one_that_is_to_be_settled():
    seen = Unsettled(is_off=False)
    assert seen.oldest() == 0, 'nobody has looked'
    young, old = server('a'), dataclasses.replace(server('b'), age=90_000.0)
    seen.note([young, old, dataclasses.replace(server('c', False, 'suspended'), age=1e9)], set())
    assert seen.oldest() == 90_000
    seen.unwanted.add(IMAGE)
    assert seen.oldest() == 0
    off = Unsettled(is_off=True)
    off.note([old], set())
    assert off.oldest() == 0
