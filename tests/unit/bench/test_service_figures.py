"""What the benchmark of the service's RPC calls, and what it makes of answers and usages."""

import collections
import uuid

import pytest

from bench.service import figures, methods
from bench.service.figures import Run
from bench.service.player import UNANSWERED, Played
from bench.service.stage import Usage
from bootcache.rpc.messages import MESSAGES

IMAGES = [str(uuid.UUID(int=number)) for number in range(1, 6)]
HOSTS = ['host-1', 'host-2', 'host-3', 'host-4']


def made(count=100, seconds=2.0, service=1.0, broker=0.1, database=0.2, machine=1.5, **kinds):
    return Run(Played(seconds, [number / 1000 for number in range(count)],
                      collections.Counter({'cold': count, **kinds})),
               Usage(5.0, 7.0, 3.0, 1.0, 9.0),
               Usage(5.0 + seconds, 7.0 + service, 3.0 + broker, 1.0 + database,
                     9.0 + machine))


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


def test_a_host_that_is_asked_to_reports_again():
    work = methods.Reports(IMAGES, 3, 1e9, 60.0)
    call = list(work.calls(HOSTS))[2]
    assert work.follow_up(call, {'drop': [], 'resend': False}) is None
    again = work.follow_up(call, {'drop': [], 'resend': True})
    assert again.sender == 2 and len(again.arguments['report']['images']) == 3


def test_answers_are_counted_by_kind():
    assert [methods.kind(*answer) for answer in [
        ({'action': 'cold'}, None), ({'drop': []}, None), (None, None), ([], None),
        (None, 'TooManyMessages'), (None, 'MessageRefused')]] == [
            'cold', 'answer', 'answer', 'answer', 'refused', 'MessageRefused']


def test_figures_are_of_what_was_used_meanwhile():
    found = line(made(refused=3, **{UNANSWERED: 2}))
    assert found | {'answers': None} == {
        'what': 'plan_boot', 'database': 'sqlite', 'nodes': 1, 'images': 10, 'hosts': 4,
        'calls': 105, 'calls_per_second': 52.5, 'cpu_ms_per_call': 9.524,
        'empty_call_cpu_ms': None, 'p99_seconds': 0.099,
        'cores': 0.5, 'database_cores': 0.1, 'broker_cores': 0.05, 'full': 'nothing',
        'refused': 3, 'unanswered': 2,
        'answers': None}


@pytest.mark.parametrize(('used', 'full'), [
    ({}, 'nothing'), ({'machine': 3.7}, 'machine'), ({'broker': 1.9}, 'broker (one CPU)'),
    ({'service': 1.9, 'machine': 4.0}, 'service (one CPU)')])
def test_it_is_told_what_was_full(used, full):
    assert line(made(**used))['full'] == full


def test_repeats_are_one_run_without_the_time_between_them():
    run = figures.joined([made(), made(service=3.0)])
    assert (run.calls, run.seconds, run.played.seconds) == (200, 4.0, 4.0)
    assert run.cpu_ms_per_call == 20.0


def test_a_run_without_answers_has_no_p99():
    assert figures.percentile([], 0.99) is None
    assert line(Run(Played(1.0, [], collections.Counter({UNANSWERED: 1})),
                    Usage(0, 0, 0, 0, 0), Usage(1, 0, 0, 0, 0)))['p99_seconds'] is None


def test_the_table_has_a_line_for_each_run():
    lines = figures.table([line(made()), line(made(), phase='steady')])
    assert len(lines) == 3 and lines[2].endswith('steady')
