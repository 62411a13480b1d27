"""Faults at every step: what is run, what counts, and what a guest takes for wrong."""

import json
import os
import threading
import time

import pytest
from oslo_utils import timeutils

from bench.faults import __main__ as command
from bench.faults import clock, cloudplan, gate, guestside, images, kinds, nodeplan, plan, report
from bench.faults.cloudplan import Moment
from bench.faults.kinds import FAULTS, Act
from bench.faults.plan import READING, Life
from bench.faults.report import Outcome
from bench.replay import trace
from bootcache import conf as bootcache_conf
from bootcache import steps
from nova_bootcache.chains import chainstores

ROWS = plan.rows()
QUICK = plan.quick()
# Others are of several storage nodes.
STEPS = [step for step in steps.TABLE if not step.name.startswith(plan._OF_SEVERAL)]
NAMES = {step.name for step in STEPS}


@pytest.mark.parametrize('step', STEPS, ids=lambda step: step.name)
def test_at_each_step_its_process_is_killed_and_others_fail(step):
    there = {row.fault for row in ROWS if row.step == step.name}
    assert {'kill', 'kill-all', 'bus-away', 'bus-frozen', 'kill-exporter', 'clock-forward',
            'clock-back'} <= there
    assert there & {'token-expired', 'read-errors'}
    [row] = [row for row in ROWS if (row.step, row.fault) == (step.name, 'kill')]
    [strike] = row.strikes
    assert strike.targets == (plan._AT[step.process],) == (strike.process,)


def test_each_step_is_struck_in_the_short_run_and_each_fault_in_the_full_one():
    struck = {strike.step for row in QUICK for strike in row.strikes}
    assert struck - {READING} == NAMES
    killed = {strike.step for row in QUICK for strike in row.strikes
              if strike.fault.act is Act.KILL and strike.fault.name == 'kill'}
    assert NAMES - killed == {'arrive: begun'}
    assert {row.fault for row in ROWS} == set(FAULTS) - set(kinds.LONG)
    assert {row.fault for row in plan.long()} == set(kinds.LONG)
    assert {strike.fault.act for row in QUICK for strike in row.strikes} >= {
        Act.KILL, Act.CORRUPT, Act.FULL, Act.LINK, Act.BUS, Act.GLANCE}


def test_steps_of_several_storage_nodes_are_in_the_runs_of_these():
    left = {step.name for step in steps.TABLE} - NAMES
    assert len(left) == 2 and left <= nodeplan.STEPS.keys()


def test_the_full_run_has_a_thousand_boots():
    assert len(ROWS) * plan.FULL_REPEATS >= 1000


def test_no_row_is_there_twice():
    keys = [(row.step, row.fault, row.life) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_what_is_named_elsewhere_is_there():
    assert plan._CHECKED | set(plan._WRITES) | set(plan._NOTES) <= NAMES
    assert all(any(name.startswith(key) for name in NAMES)
               for key in (*plan._LIVES, *plan._AFTER_DELETION))
    assert NAMES | {READING} >= {step for _life, script in plan._QUICK for step in script}


def test_while_the_guest_reads_faults_come_in_each_way_of_reading():
    reading = {(row.fault, row.life) for row in ROWS if row.step == READING}
    assert {life for _fault, life in reading} == {
        Life.ARRIVE, Life.FETCH, Life.COLD, Life.CEPH}
    assert {('kill-gateway', Life.COLD), ('link-slow', Life.ARRIVE),
            ('key-taken', Life.CEPH)} <= reading


@pytest.mark.parametrize('fault', [one.name for one in FAULTS.values() if one.act is Act.CEPH])
def test_what_happens_to_ceph_happens_where_a_base_is_read_there(fault):
    assert {(row.step, row.life) for row in ROWS if row.fault == fault} == {
        (step, Life.CEPH) for step in (READING, 'clone: made', 'gateway: nodes', 'chain: made',
                                       'settle: piece')}


@pytest.mark.parametrize(('step', 'life'), [
    ('arrive: landing', Life.ARRIVE), ('fetch: copied', Life.FETCH), ('grow: made', Life.COLD),
    ('evict: file gone', Life.EVICT), ('evict: base gone', Life.FETCH),
    ('register: noted', Life.FETCH), ('clone: made', Life.CEPH), ('connector: linked', Life.MOVE),
    ('arrive: exchanged', Life.EXCHANGE), ('arrive: come', Life.ARRIVE)])
def test_a_life_on_whose_way_a_step_is(step, life):
    assert plan.life_of(step) is life


def test_without_a_name_all_are_chosen():
    assert plan.chosen(ROWS, []) == ROWS


def test_names_choose_steps_and_faults():
    assert {row.step for row in plan.chosen(ROWS, ['chain: made'])} == {'chain: made'}
    places = {row.step for row in plan.chosen(ROWS, ['place'])}
    assert places == {'place: entry gone', 'place: file there'}
    assert {row.step for row in plan.chosen(ROWS, ['guest reads'])} == {READING}
    assert {row.fault for row in plan.chosen(ROWS, ['link-down'])} == {'link-down'}
    [row] = plan.chosen(ROWS, ['chain: made', 'kill'])
    assert (row.step, row.fault) == ('chain: made', 'kill')
    with pytest.raises(ValueError, match=r'chian: neither a step .*chain: made.* nor a .*kill'):
        plan.chosen(ROWS, ['chian'])


def test_faults_that_pass_say_after_how_long():
    for fault in FAULTS.values():
        assert bool(fault.seconds) == (fault.act in kinds.PASSING)


def test_long_faults_outlast_the_limits_of_the_product_and_have_their_time():
    options = {option.name: option.default for option in bootcache_conf.opts}
    shorter, longer = sorted(kinds.LONG_SECONDS)
    assert options['rpc_timeout'] < shorter and longer > chainstores.CHAIN_SECONDS
    for row in plan.long():
        [strike] = row.strikes
        assert strike.fault.seconds == row.grace in kinds.LONG_SECONDS
    # Short ones have no more than before.
    assert not any(row.grace for row in (*ROWS, *QUICK))


def test_what_was_run_is_left_out_when_it_goes_on():
    planned = [*ROWS[:3], *ROWS[:3]]
    done = [Outcome(ROWS[1].step, ROWS[1].fault, ROWS[1].life.value, 1.0),
            *[Outcome(ROWS[2].step, ROWS[2].fault, ROWS[2].life.value, 1.0, trouble='no')] * 2]
    assert command.left_of(planned, []) == [0, 1, 2, 3, 4, 5]
    assert command.left_of(planned, done) == [0, 3, 4]
    there = cloudplan.ROWS[1]
    assert command.left_of(cloudplan.ROWS[:3], [
        Outcome(there.moment.value, there.fault.name, 'cloud', 1.0)]) == [0, 2]


@pytest.mark.parametrize('words, here, there', [
    ([], len(QUICK), 0), (['--quick'], len(QUICK), 0), (['chain: made', 'kill'], 1, 0),
    (['--full'], 2 * len(ROWS), len(cloudplan.ROWS)), (['--cloud'], 0, len(cloudplan.ROWS)),
    (['--full', 'chain: made', 'kill'], 1, 0), (['--full', '--repeats', '1'], len(ROWS),
                                                len(cloudplan.ROWS)),
    (['--repeats', '3', 'chain: made', 'kill'], 3, 0),
    (['--cloud', 'boots', 'kill-gateway'], 0, 1), (['--long'], len(plan.long()), 0),
    (['--long', 'bus-away-200s', 'chain: made'], 1, 0)])
def test_what_is_planned(words, here, there):
    wanted, in_cloud = command.planned(command.parser().parse_args(words))
    assert (len(wanted), len(in_cloud)) == (here, there)


GOOD = Outcome('chain: made', 'kill', 'fetch', 2.5)


@pytest.mark.parametrize(('bad', 'sums'), [
    ({'guest_errors': 2}, {'guest_errors': 2}), ({'wrong_bytes': 512}, {'wrong_bytes': 512}),
    ({'leftovers': ('a file', 'a node')}, {'leftovers': 2}),
    ({'trouble': 'no answer'}, {'failed_boots': 1}),
    # What was not tried does not count as tried.
    ({'unreached': ('a: b',)}, {'failed_boots': 1})])
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


def test_what_was_noted_is_read_back_without_what_a_crash_left_half(tmp_path):
    outcomes = [GOOD, Outcome('a: b', 'kill', 'cold', 1.0, 2.0, 1, 2, ('a file', 'a node'), 3, 4,
                              ('a: b',), 'trouble')]
    assert report.noted(tmp_path) == []
    for outcome in outcomes:
        report.note(tmp_path / 'new', outcome)
    with open(tmp_path / 'new' / report.JOURNAL, 'a') as stream:
        stream.write('{"step": "a: b", "fa')
    assert report.noted(tmp_path / 'new') == outcomes


def test_a_process_stands_still_at_each_of_its_steps_once():
    made = gate.Gate(['chain: made', 'settle: marked'])
    assert made.reached() is None
    for step in ('settle: marked', 'chain: made'):
        thread = threading.Thread(target=made, args=(step,))
        thread.start()
        while (found := made.reached()) is None:
            pass
        assert found == step and thread.is_alive()
        made.go_on()
        thread.join()
        made(step)
    made('evict: file gone')
    assert made.reached() is None
    made.close()


def test_a_clock_that_is_set(monkeypatch, tmp_path):
    for module, name in ((time, 'time'), (os, 'utime'), (timeutils, 'utcnow')):
        monkeypatch.setattr(module, name, getattr(module, name))
    real, made = time.time, clock.Clock()
    made.install()
    assert abs(time.time() - real()) < 60
    made.move(3600)
    assert 3540 < time.time() - real() < 3660
    path = tmp_path / 'file'
    path.touch()
    os.utime(path)
    assert 3540 < path.stat().st_mtime - real() < 3660
    os.utime(path, (5.0, 5.0))
    assert path.stat().st_mtime == 5.0
    os.utime(path, ns=(7 * 10 ** 9, 7 * 10 ** 9))
    assert path.stat().st_mtime == 7.0
    made.move(-7200)
    found = timeutils.utcnow(with_timezone=True).timestamp()
    assert -3660 < found - real() < -3540
    assert timeutils.utcnow().tzinfo is None


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


def test_a_row_is_asked_for_by_its_name():
    assert list(cloudplan.BY_NAME.values()) == list(cloudplan.ROWS)


def test_in_a_cloud_what_was_run_is_not_run_again(monkeypatch, tmp_path):
    run = []
    first, *others = cloudplan.chosen(['moves'])

    def outcomes(rows):
        run.extend(rows)
        for row in rows:
            yield Outcome(row.moment.value, row.fault.name, 'cloud', 1.0)

    monkeypatch.setattr(command.incloud, 'run', outcomes)
    report.note(tmp_path, Outcome(first.moment.value, first.fault.name, 'cloud', 1.0))
    options = command.parser().parse_args(['--cloud', 'moves', '--report', str(tmp_path)])
    assert command.run(options, None, True, True) == 0
    assert run == others
    assert command.run(options, None, True, False) == 0
    assert run == [*others, first, *others]


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
