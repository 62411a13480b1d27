"""What the benchmark of the service's RPC calls, and what it makes of answers and usages."""

import collections
import uuid

import pytest

from bench.service import __main__ as bench
from bench.service import figures, measuring, methods
from bench.service.figures import Run
from bench.service.player import UNANSWERED, Played
from bench.service.stage import Usage
from bootcache.rpc.messages import MESSAGES

IMAGES = [str(uuid.UUID(int=number)) for number in range(1, 6)]
HOSTS = ['host-1', 'host-2', 'host-3', 'host-4']


def made(count=100, seconds=2.0, services=(1.0,), broker=0.1, database=0.2, machine=1.5, **kinds):
    return Run(Played(seconds, [number / 1000 for number in range(count)],
                      collections.Counter({'cold': count, **kinds})),
               Usage(5.0, (7.0,) * len(services), 3.0, 1.0, 9.0),
               Usage(5.0 + seconds, tuple(7.0 + used for used in services), 3.0 + broker,
                     1.0 + database, 9.0 + machine))


def line(run, **more):
    return figures.line('plan_boot', run, database='sqlite', images=10, hosts=4, cpus=2, **more)


@pytest.mark.parametrize('work', [methods.Empty(9), methods.Boots(9, IMAGES),
                                  methods.Reports(IMAGES, 3, 1e9, 120.0, 60.0, knows=False)])
def test_the_service_takes_what_is_called(work):
    calls = list(work.calls(HOSTS))
    for call in calls:
        message = MESSAGES[call.method].parse(call.arguments)
        report = getattr(message, 'report', None)
        assert report is None or (len(report.images) == 3 and not report.left_out)
    assert {call.sender for call in calls} == set(range(4))


def test_hosts_report_once_a_period_each_in_its_turn():
    calls = list(methods.Reports(IMAGES, 3, 1e9, 120.0, 60.0, knows=False).calls(HOSTS))
    assert [(call.sender, call.due) for call in calls] == [
        (0, 0), (1, 15), (2, 30), (3, 45), (0, 60), (1, 75), (2, 90), (3, 105)]
    assert [call.arguments['report'] is not None for call in calls] == [
        True, True, True, True, True, False, False, False]


def test_a_hosts_reports_are_numbered_through_all_plays():
    calls = [call for turn, periods in ((0, 1), (1, 3), (4, 141)) for call in methods.Reports(
        IMAGES, 3, 1e9, periods * 60.0, 60.0, knows=turn > 0, turn=turn).calls(HOSTS)]
    assert len(calls) == 145 * 4
    for sender in range(4):
        mine = [call.arguments for call in calls if call.sender == sender]
        told = [arguments['number'] for arguments in mine if arguments['report'] is not None]
        # The first one, and one that has changed.
        assert len(told) == 2 and sorted(set(told)) == told
        # That nothing has changed is said of the last one that was told.
        numbers = [arguments['number'] for arguments in mine]
        assert numbers == sorted(numbers) and set(numbers) == set(told)


def test_each_play_of_reports_begins_at_once():
    calls = list(methods.Reports(IMAGES, 3, 1e9, 120.0, 60.0, turn=7).calls(HOSTS))
    assert [call.due for call in calls] == [0, 15, 30, 45, 60, 75, 90, 105]


def test_a_host_that_is_asked_to_reports_again():
    work = methods.Reports(IMAGES, 3, 1e9, 60.0)
    call = list(work.calls(HOSTS))[2]
    assert work.follow_up(call, {'drop': [], 'resend': False}, 0.5) is None
    again = work.follow_up(call, {'drop': [], 'resend': True}, 0.5)
    # At once, and it is another question.
    assert (again.due, again.waited) == (0, 0)
    assert again.sender == 2 and len(again.arguments['report']['images']) == 3
    assert again.arguments['number'] == call.arguments['number']


def test_storage_nodes_that_are_away_do_not_work():
    assert methods.working([{'name': 'one', 'state': 'up'}, {'name': 'other', 'state': 'away'},
                            {'name': 'third', 'state': 'up'}]) == {'one', 'third'}


def test_several_nodes_are_measured_once_and_with_mariadb():
    full = list(bench.plan(['sqlite', 'mariadb'], (1, 3), is_quick=False))
    assert [(database, nodes) for database, nodes, _size in full] == [
        ('sqlite', 1), ('mariadb', 1), ('mariadb', 3)]
    assert {size for _database, _nodes, size in full} == {measuring.FULL}
    assert [(database, nodes) for database, nodes, _size in bench.plan(
        ['sqlite'], (3,), is_quick=True)] == [('mariadb', 3)]


def test_a_quick_run_of_several_nodes_has_as_many_reports_a_second():
    (_one, _count, alone), (_other, _nodes, several) = bench.plan(
        ['sqlite'], (1, 3), is_quick=True)
    assert several.hosts / several.period == alone.hosts / alone.period
    assert several.images < alone.images


def test_a_host_that_is_to_wait_asks_again_after_a_second_but_not_for_ever():
    work = methods.Boots(2, IMAGES)
    call = list(work.calls(HOSTS))[1]
    assert work.follow_up(call, {'action': 'cold'}, 0.5) is None
    again = work.follow_up(call, {'action': 'wait', 'reason': 'so many'}, 0.5)
    assert (again.sender, again.arguments) == (call.sender, call.arguments)
    assert (again.due, again.waited) == (1.0, 1.5)
    for _time in range(100):
        call, again = again, work.follow_up(again, {'action': 'wait'}, 3.0)
        if again is None:
            break
        assert again.waited == call.waited + 4.0
    assert again is None


def test_answers_are_counted_by_kind():
    assert [methods.kind(*answer) for answer in [
        ({'action': 'cold'}, None), ({'drop': []}, None), (None, None), ([], None),
        (None, 'TooManyMessages'), (None, 'MessageRefused')]] == [
            'cold', 'answer', 'answer', 'answer', 'refused', 'MessageRefused']


def test_figures_are_of_what_was_used_meanwhile():
    found = line(made(refused=3, wait=4, **{UNANSWERED: 2}))
    assert found | {'answers': None} == {
        'what': 'plan_boot', 'database': 'sqlite', 'nodes': 1, 'images': 10, 'hosts': 4,
        'calls': 109, 'calls_per_second': 54.5, 'cpu_ms_per_call': 9.174,
        'empty_call_cpu_ms': None, 'p99_seconds': 0.099,
        'cores': 0.5, 'database_cores': 0.1, 'broker_cores': 0.05, 'machine_cores': 0.75,
        'full': 'nothing',
        'refused': 3, 'unanswered': 2, 'told_to_wait': 4,
        'answers': None}


@pytest.mark.parametrize(('used', 'full'), [
    ({}, 'nothing'), ({'machine': 3.7}, 'machine'), ({'broker': 1.9}, 'broker (one CPU)'),
    ({'services': (1.9,), 'machine': 4.0}, 'service (one CPU)'),
    ({'services': (0.7, 0.7, 0.7)}, 'nothing'),
    ({'services': (0.7, 0.7, 0.7), 'machine': 3.9}, 'machine'),
    ({'services': (0.1, 1.9, 0.1)}, 'service (one CPU)')])
def test_it_is_told_what_was_full(used, full):
    assert line(made(**used))['full'] == full


def test_repeats_are_one_run_without_the_time_between_them():
    run = figures.joined([made(), made(services=(3.0,))])
    assert (run.calls, run.seconds, run.played.seconds) == (200, 4.0, 4.0)
    assert run.cpu_ms_per_call == 20.0


def test_figures_of_several_nodes_are_those_of_all_services():
    run = figures.joined([made(services=(0.5, 0.2, 0.1)), made(services=(0.1, 0.1, 0.2))])
    assert run.after.services == pytest.approx((0.6, 0.3, 0.3))
    found = line(run)
    assert (found['nodes'], found['cores'], found['cpu_ms_per_call']) == (3, 0.3, 6.0)
    assert line(made())['nodes'] == 1


def test_a_run_without_answers_has_no_p99():
    assert figures.percentile([], 0.99) is None
    assert line(Run(Played(1.0, [], collections.Counter({UNANSWERED: 1})),
                    Usage(0, (0,), 0, 0, 0), Usage(1, (0,), 0, 0, 0)))['p99_seconds'] is None


def test_the_table_has_a_line_for_each_run():
    lines = figures.table([line(made()), line(made(services=(1.0, 1.0)), phase='steady')])
    assert len(lines) == 3 and lines[2].split()[-1] == 'steady'
    assert [row.split()[:3] for row in lines] == [
        ['what', 'database', 'nodes'], ['plan_boot', 'sqlite', '1'], ['plan_boot', 'sqlite', '2']]
