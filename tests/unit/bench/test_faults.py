"""Faults at every step: what is run, what counts, and what a guest takes for wrong."""

import json

import pytest

from bench.faults import cloudplan, guestside, images, plan, report
from bench.faults.cloudplan import Moment
from bench.faults.plan import FAULTS, Act, Life
from bench.faults.report import Outcome
from bench.replay import trace
from bootcache import steps

ROWS = plan.rows()


@pytest.mark.parametrize('step', steps.TABLE, ids=lambda step: step.name)
def test_at_each_step_its_process_is_killed_and_others_fail(step):
    there = {row.fault.name for row in ROWS if row.step == step.name}
    assert {'kill', 'kill-all', 'bus-away', 'kill-exporter'} <= there
    [row] = [row for row in ROWS if (row.step, row.fault.name) == (step.name, 'kill')]
    assert row.targets == (plan._AT[step.process],) == (row.process,)


def test_no_row_is_there_twice():
    keys = [(row.step, row.fault.name, row.life) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_what_is_named_for_the_short_run_and_elsewhere_is_there():
    known = {(row.fault.name, row.step) for row in ROWS}
    assert known >= plan._QUICK
    names = {step.name for step in steps.TABLE}
    assert names >= plan._CHECKED | set(plan._WRITES)
    assert all(any(name.startswith(key) for name in names) for key in plan._LIVES)


def test_while_the_guest_reads_faults_come_in_each_way_of_reading():
    reading = {(row.fault.name, row.life) for row in ROWS if row.step == plan.READING}
    assert {life for _fault, life in reading} == {Life.ARRIVE, Life.FETCH, Life.COLD}
    assert ('kill-gateway', Life.COLD) in reading


@pytest.mark.parametrize(('step', 'life'), [
    ('arrive: landing', Life.ARRIVE), ('fetch: copied', Life.FETCH), ('grow: made', Life.COLD),
    ('evict: file gone', Life.EVICT), ('evict: base gone', Life.FETCH),
    ('register: noted', Life.FETCH)])
def test_a_life_on_whose_way_a_step_is(step, life):
    assert plan.life_of(step) is life


def test_without_a_name_all_or_the_short_run_is_chosen():
    assert plan.chosen(ROWS, [], quick=False) == ROWS
    short = plan.chosen(ROWS, [], quick=True)
    assert {(row.fault.name, row.step) for row in short} == plan._QUICK
    assert len(short) == len(plan._QUICK)


def test_names_choose_steps_and_faults():
    assert {row.step for row in plan.chosen(ROWS, ['chain: made'], quick=True)} == {'chain: made'}
    places = {row.step for row in plan.chosen(ROWS, ['place'], quick=True)}
    assert places == {'place: entry gone', 'place: file there'}
    assert {row.fault.name for row in plan.chosen(ROWS, ['link-down'], quick=True)} == {'link-down'}
    [row] = plan.chosen(ROWS, ['chain: made', 'kill'], quick=True)
    assert (row.step, row.fault.name) == ('chain: made', 'kill')
    with pytest.raises(ValueError, match=r'chian: neither a step .*chain: made.* nor a .*kill'):
        plan.chosen(ROWS, ['chian'], quick=True)


def test_faults_that_pass_say_after_how_long():
    for fault in FAULTS.values():
        assert bool(fault.seconds) == (fault.act in (Act.FREEZE, Act.LINK, Act.FULL, Act.BUS))


GOOD = Outcome('chain: made', 'kill', 'fetch', 2.5)


@pytest.mark.parametrize(('bad', 'sums'), [
    ({'guest_errors': 2}, {'guest_errors': 2}), ({'wrong_bytes': 512}, {'wrong_bytes': 512}),
    ({'leftovers': ('a file', 'a node')}, {'leftovers': 2}),
    ({'trouble': 'no answer'}, {'failed_boots': 1}),
    # What was not tried does not count as tried.
    ({'was_reached': False}, {'failed_boots': 1})])
def test_whatever_is_not_zero_fails_all(bad, sums):
    outcomes = [GOOD, Outcome('a: b', 'kill', 'cold', 1.0, **bad)]
    found = report.summary(outcomes)
    assert found == {'runs': 2, 'failed_boots': 0, 'guest_errors': 0, 'wrong_bytes': 0,
                     'leftovers': 0, **sums}
    assert not report.holds(found)
    assert [one.ok for one in outcomes] == [True, False]


def test_zeros_hold_and_no_run_does_not():
    assert report.holds(report.summary([GOOD]))
    assert not report.holds(report.summary([]))


def test_the_report_has_runs_and_their_sums(tmp_path):
    outcome = Outcome('chain: made', 'kill', 'fetch', 2.5, seconds_waited=1.5,
                      leftovers=('a file',))
    report.write(tmp_path / 'new', [outcome], cpus=2)
    document = json.loads((tmp_path / 'new' / 'report.json').read_text())
    [run] = document['runs']
    assert {key: run[key] for key in ('step', 'fault', 'ok', 'seconds_waited', 'guest_errors',
                                      'wrong_bytes', 'leftovers', 'left')} == {
        'step': 'chain: made', 'fault': 'kill', 'ok': False, 'seconds_waited': 1.5,
        'guest_errors': 0, 'wrong_bytes': 0, 'leftovers': 1, 'left': ['a file']}
    assert document['summary']['leftovers'] == 1
    assert 'FAILED chain: made' in report.line(outcome)
    assert 'left: a file' in report.line(outcome)


def test_a_boot_reads_what_it_wrote_and_what_was_not_recorded():
    for life in Life:
        requests = images.boot(life)
        assert requests == images.boot(life)
        written = [one for one in requests if one.op == trace.WRITE]
        assert any(one.length % 4096 for one in written)
        assert any((one.offset, one.length) in {(two.offset, two.length) for two in written}
                   for one in requests if one.op == trace.READ)
        assert any(images._is_missed(one) for one in requests if one.op == trace.READ)
        assert all(one.end <= images._SIZE for one in requests)


@pytest.fixture
def guest():
    made = guestside.GuestSide.__new__(guestside.GuestSide)
    made._content, made._unknown, made._wrong = bytearray(b'abcdefgh'), [], 0
    return made


def test_a_guest_counts_each_byte_that_is_another(guest):
    guest._compare(2, b'cdef')
    assert guest._wrong == 0
    guest._compare(2, b'cXeX')
    assert guest._wrong == 2


def test_what_was_written_and_not_flushed_before_a_crash_may_be_either(guest):
    guest._unknown = [(3, 5)]
    guest._compare(2, b'cXXf')
    assert guest._wrong == 0
    guest._compare(2, b'cXXX')
    assert guest._wrong == 1


# In a real cloud.

def test_no_row_of_the_cloud_is_there_twice():
    assert len(set(cloudplan.ROWS)) == len(cloudplan.ROWS) >= 30
    assert {row.moment for row in cloudplan.ROWS} == set(Moment)
    assert {row.fault for row in cloudplan.ROWS} == set(cloudplan.FAULTS.values())


def test_nothing_is_tried_that_stock_nova_does_not_bear():
    asked = {name for row in cloudplan.ROWS if row.moment is Moment.ASKED
             for name in row.fault.kill}
    assert not asked & {cloudplan.COMPUTE, cloudplan.LIBVIRT, cloudplan.BUS}


def test_names_choose_moments_and_faults():
    assert cloudplan.chosen([]) == list(cloudplan.ROWS)
    assert {row.moment for row in cloudplan.chosen(['boots'])} == {Moment.BOOTS}
    [row] = cloudplan.chosen(['boots', 'kill-gateway'])
    assert (row.moment, row.fault.name) == (Moment.BOOTS, 'kill-gateway')
    with pytest.raises(ValueError, match=r'boot: neither a moment .*boots.* nor a fault .*kill'):
        cloudplan.chosen(['boot'])


def test_an_outcome_comes_back_from_its_line():
    one = Outcome('boots', 'kill-gateway', 'cloud', 9.5, 1.0, 1, 2, ('a file',), 3, 4, trouble='x')
    assert Outcome.from_json(json.loads(json.dumps(one.to_json()))) == one
