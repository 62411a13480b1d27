"""The rules of warming: what becomes of hosts, when Nova is asked again, and whose turn it is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import WarmOutcome
from glance_bootcache.warming import warmjobs
from glance_bootcache.warming.warmjobs import HostOutcome, WarmJob, WarmPhase

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CACHE = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
WARM = ('cached', 'existing')


def asked(*hosts, now=100.0):
    job = WarmJob(IMAGE, 'racks', now)
    job.ask(hosts or ('one', 'two'), now)
    return job


def outcomes(job):
    return {name: host.outcome for name, host in job.hosts.items()}


# Hosts.

@pytest.mark.parametrize('before, told', itertools.product(
    WarmOutcome, set(WarmOutcome) - {WarmOutcome.WAITING}))
def test_a_warm_host_stays_what_it_is(before, told):
    after = HostOutcome(before, 'of before', 1)
    after.report(told, 'of now')
    assert after.attempts == 1
    if before in WARM:
        assert (after.outcome, after.reason) == (before, 'of before')
    else:
        assert (after.outcome, after.reason) == (told, '' if told in WARM else 'of now')


def test_reasons_have_an_end():
    host = HostOutcome()
    host.report('error', 'x' * 10_000)
    assert len(host.reason) == 500


@pytest.mark.parametrize('outcome, final', [
    ('waiting', False), ('error', False), ('cached', True), ('existing', True),
    ('unsupported', True)])
def test_what_another_attempt_would_not_change(outcome, final):
    assert HostOutcome(outcome).is_final is final


# Attempts.

def test_it_is_over_when_all_hosts_have_reported():
    job = asked()
    job.report('one', 'cached', '', 110.0)
    assert job.close(111.0, 60, 3, {}) == [] and job.phase is WarmPhase.ASKED
    job.report('two', 'existing', '', 112.0)
    assert job.close(113.0, 60, 3, {}) == [] and job.phase is WarmPhase.DONE
    assert outcomes(job) == {'one': 'cached', 'two': 'existing'} and job.reason == ''


def test_a_host_without_a_report_is_waited_for_as_long_as_others_report():
    """Nova lets a few hosts of an aggregate fetch at a time."""
    job = asked('one', 'two', 'three')
    job.report('one', 'cached', '', 150.0)
    assert job.close(209.0, 60, 1, {}) == []
    job.report('two', 'cached', '', 209.0)
    assert job.close(268.0, 60, 1, {}) == [] and job.phase is WarmPhase.ASKED
    assert job.close(269.0, 60, 1, {}) == ['three'] and job.phase is WarmPhase.DONE
    assert job.hosts['three'].outcome == 'error' and '60 s' in job.hosts['three'].reason


def test_a_host_that_fails_is_asked_again_and_the_others_stay_warm():
    job = asked()
    job.report('one', 'cached', '', 101.0)
    job.report('two', 'error', 'no room', 102.0)
    assert job.close(103.0, 60, 3, {}) == ['two']
    assert (job.phase, job.due, outcomes(job)['two']) == (WarmPhase.WAITING, 133.0, 'error')
    job.ask(('one', 'two'), 133.0)
    assert outcomes(job) == {'one': 'cached', 'two': 'waiting'}
    job.report('one', 'existing', '', 134.0)
    job.report('two', 'cached', '', 135.0)
    assert job.close(136.0, 60, 3, {}) == [] and job.phase is WarmPhase.DONE
    assert job.describe() == {
        'aggregate': 'racks', 'done': True, 'reason': '', 'hosts': {
            'one': {'outcome': 'cached', 'reason': '', 'attempts': 1},
            'two': {'outcome': 'cached', 'reason': '', 'attempts': 2}}}


@pytest.mark.parametrize('attempts', [1, 2, 5])
def test_no_more_attempts_than_allowed(attempts):
    job, now, asks = WarmJob(IMAGE, 'racks', 0.0), 0.0, 0
    while job.phase is not WarmPhase.DONE:
        now = max(now, job.due)
        job.ask(('one',), now)
        asks += 1
        now += 60
        assert job.close(now, 60, attempts, {}) == ['one']
    assert asks == attempts == job.hosts['one'].attempts
    assert job.hosts['one'].outcome == 'error'


def test_a_host_that_cannot_is_not_asked_again():
    job = asked('one')
    job.report('one', 'unsupported', 'the driver cannot', 101.0)
    assert job.close(102.0, 60, 3, {}) == ['one'] and job.phase is WarmPhase.DONE
    assert job.hosts['one'].outcome == 'unsupported'


def test_a_report_of_another_host_is_none():
    job = asked('one')
    assert job.report('two', 'cached', '', 150.0) is False
    assert job.heard_at == 100.0 and outcomes(job) == {'one': 'waiting'}


def test_hosts_that_come_and_go_between_attempts():
    job = asked('one', 'two')
    job.report('one', 'error', 'x', 101.0)
    job.report('two', 'error', 'x', 101.0)
    job.close(102.0, 60, 3, {})
    job.ask(('two', 'three'), 140.0)
    assert {name: host.attempts for name, host in job.hosts.items()} == {'two': 2, 'three': 1}


def test_an_aggregate_without_hosts():
    job = WarmJob(IMAGE, 'racks', 0.0)
    job.ask((), 1.0)
    assert job.close(1.0, 60, 3, {}) == [] and job.phase is WarmPhase.DONE
    assert 'no hosts' in job.reason


@pytest.mark.parametrize('holding, outcome', [
    ({'one': 2}, 'cached'), ({'one': 3}, 'cached'), ({'one': 1}, 'waiting'), ({}, 'waiting'),
    ({'two': 2}, 'waiting')])
def test_what_a_host_holds_tells_that_it_is_warm(holding, outcome):
    job = asked('one')
    job.look(holding, 2, 101.0)
    assert outcomes(job) == {'one': outcome}


def test_a_report_that_comes_late_changes_nothing():
    job = asked('one', 'two')
    job.look({'one': 0}, 0, 101.0)
    job.report('one', 'existing', '', 102.0)
    assert outcomes(job) == {'one': 'cached', 'two': 'waiting'}


def test_a_host_that_got_warm_meanwhile_needs_no_further_attempt():
    job = asked('one')
    job.report('one', 'error', 'x', 101.0)
    job.close(102.0, 60, 3, {})
    assert job.phase is WarmPhase.WAITING
    job.look({'one': 0}, 0, 110.0)
    assert job.close(110.0, 60, 3, {}) == [] and job.phase is WarmPhase.DONE
    assert job.hosts['one'].reason == ''


# Nova.

def test_a_job_that_waits_is_looked_at_when_a_host_reports_and_now_and_then():
    job = asked('one', 'two')
    assert job.is_to_be_looked_at(100)
    job.report('one', WarmOutcome.ERROR, 'full', 110)
    job.report('two', WarmOutcome.CACHED, '', 110)
    job.look({}, 0, 111)
    assert job.is_to_be_looked_at(111), 'until it is not asked any more'
    assert job.close(111, 60, 3, {}) == ['one'] and job.phase is WarmPhase.WAITING
    assert not job.is_to_be_looked_at(112)
    job.report('one', WarmOutcome.CACHED, '', 113)
    assert job.is_to_be_looked_at(113)
    job.look({}, 0, 114)
    assert not job.is_to_be_looked_at(143) and job.is_to_be_looked_at(144)
    job.end(150, '')
    assert not job.is_to_be_looked_at(200)


def test_a_refusal_counts_as_an_attempt():
    job = WarmJob(IMAGE, 'racks', 0.0)
    job.refused('no such aggregate', 1.0, 2)
    assert (job.phase, job.due, job.reason) == (WarmPhase.WAITING, 31.0, 'no such aggregate')
    job.refused('no such aggregate', 31.0, 2)
    assert job.phase is WarmPhase.DONE and job.describe()['reason'] == 'no such aggregate'


def test_no_answer_counts_as_none():
    job = WarmJob(IMAGE, 'racks', 0.0)
    for number in range(20):
        job.not_answered('refused', 0.0)
        assert job.phase is WarmPhase.WAITING and job.due == warmjobs.backoff(number + 1)
    job.ask(('one',), 5.0)
    job.not_answered('timeout', 6.0)
    assert job.attempts == 0 and job.hosts['one'].attempts == 0
    assert 'Nova does not answer: timeout' in job.reason
    job.ask(('one',), 7.0)
    assert (job.attempts, job.hosts['one'].attempts, job.reason) == (1, 1, '')


def test_the_waiting_for_nova_begins_anew_once_it_has_answered():
    job = WarmJob(IMAGE, 'racks', 0.0)
    for _ in range(4):
        job.not_answered('refused', 0.0)
    job.ask(('one',), 500.0)
    job.report('one', 'error', 'x', 501.0)
    job.close(502.0, 60, 3, {})
    job.not_answered('refused', 600.0)
    assert job.due == 630.0


def test_a_refusal_of_the_request_itself_counts_once():
    job = asked('one')
    job.refused('image not found', 101.0, 1)
    assert job.attempts == 1 and job.phase is WarmPhase.DONE
    assert job.hosts['one'] == HostOutcome('error', 'image not found', 0)


def test_waiting_grows_and_has_an_end():
    waits = [warmjobs.backoff(times) for times in range(1, 30)]
    assert waits[:5] == [30, 60, 120, 240, 480] and set(waits[5:]) == {600}
    assert warmjobs.backoff(10 ** 6) == 600


# Turns.

def job(aggregate, phase, due=0.0):
    return WarmJob(IMAGE, aggregate, due, phase)


def test_the_longest_waiting_is_next():
    jobs = [job('a', WarmPhase.WAITING, 5.0), job('b', WarmPhase.WAITING, 3.0),
            job('c', WarmPhase.DONE), job('d', WarmPhase.WAITING, 50.0), job('e', WarmPhase.ASKED)]

    def turn(concurrency, now=10.0):
        return [one.aggregate for one in warmjobs.may_start(jobs, now, concurrency)]

    assert turn(1) == [] and turn(2) == ['b'] and turn(9) == ['b', 'a']
    assert turn(9, 2.0) == [] and turn(9, 60.0) == ['b', 'a', 'd']


@given(st.lists(st.tuples(st.sampled_from(WarmPhase), st.floats(0, 100))), st.integers(1, 5),
       st.floats(0, 100))
def test_never_more_at_once_than_allowed(jobs, concurrency, now):
    jobs = [job(str(number), *one) for number, one in enumerate(jobs)]
    under_way = sum(one.phase is WarmPhase.ASKED for one in jobs)
    started = warmjobs.may_start(jobs, now, concurrency)
    assert not started or under_way + len(started) <= concurrency
    assert all(one.phase is WarmPhase.WAITING and one.due <= now for one in started)


# Images that hosts cannot be warmed for.

@pytest.mark.parametrize('standing, cure', [
    (Standing.WANTED, '--wait'), (Standing.DONE, 'image build'), (Standing.FAILED, 'image build'),
    (Standing.SKIPPED, 'opted out')])
def test_an_image_without_a_cache_image_is_named_with_state_and_cure(standing, cure):
    manifest = Manifest(IMAGE, standing, 'it is opted out')
    why = warmjobs.why_not_warm(IMAGE, manifest)
    assert IMAGE in why and manifest.state.value in why and cure in why


@pytest.mark.parametrize('standing', [Standing.DONE, Standing.WANTED])
def test_an_older_cache_image_warms_as_well(standing):
    manifest = Manifest(IMAGE, standing, made=Made(cache_image=CACHE))
    assert warmjobs.why_not_warm(IMAGE, manifest) == ''


def test_one_of_another_content_does_not():
    manifest = Manifest(IMAGE, Standing.FAILED, Cause(Reason.FAILED, 'why'), 'sha512:11', made=Made(
        '/base', 'sha512:00', cache_image=CACHE))
    assert 'why' in warmjobs.why_not_warm(IMAGE, manifest)


def test_an_unknown_image_is_named():
    assert IMAGE in warmjobs.why_not_warm(IMAGE, None)


def test_a_host_that_is_silent_is_not_waited_for():
    """Its timeout may be an hour, and other images wait for their turn meanwhile."""
    job = WarmJob('image', 'rack', 0.0)
    job.ask(['busy', 'dead'], 100.0)
    seen = {'busy': 260.0, 'dead': 40.0}
    assert job.close(279.0, 3600, 3, seen) == [] and job.phase is WarmPhase.ASKED
    assert job.hosts['dead'].outcome == WarmOutcome.WAITING
    assert job.close(280.0, 3600, 3, seen) == [] and job.phase is WarmPhase.ASKED
    assert job.hosts['dead'].outcome == WarmOutcome.ERROR
    assert 'not heard of for 180 s' in job.hosts['dead'].reason
    # Now only the one that is heard of is waited for.
    assert job.close(400.0, 3600, 3, {'busy': 395.0}) == []
    job.report('busy', WarmOutcome.CACHED, '', 401.0)
    assert job.close(401.0, 3600, 3, {'busy': 395.0}) == ['dead'] and job.phase is WarmPhase.WAITING
