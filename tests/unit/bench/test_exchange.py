"""What a run of the exchange tells."""

import pytest

from bench.exchange import figures


def run(hosts=8, seconds=(2.0, 1.5), sent=110, way='exchange', what=figures.CACHE_IMAGE, stalls=0):
    return figures.line(what, hosts, way, 100_000_000, 100, seconds, sent, 1.0, stalls)


def test_a_run_is_over_when_the_last_host_has_all_of_it():
    told = run()
    assert told['time_over_limit'] == 2.0 and told['storage_copies'] == 1.1
    assert told['link_mbit'] == 100.0 and told['stalls'] == 0 and told['finished'] == 2


@pytest.mark.parametrize('hosts, seconds, sent, met', [
    (8, 1.4, 900, [True]), (8, 1.41, 100, [False]), (32, 1.6, 130, [True, True]),
    (32, 1.7, 131, [False, False])])
def test_targets_are_those_of_their_number_of_hosts(hosts, seconds, sent, met):
    assert [target['met'] for target in figures.judged(
        [run(hosts, (seconds,), sent)])] == met


def test_where_nobody_got_it_there_is_no_time_and_no_target_is_met():
    told = run(seconds=(), stalls=8)
    assert told['time_over_limit'] is None and told['finished'] == 0 and told['stalls'] == 8
    assert [target['met'] for target in figures.judged([told])] == [False]


@pytest.mark.parametrize('change', [{'way': 'copy'}, {'what': 'a slow host'}, {'hosts': 4}])
def test_nothing_else_is_judged(change):
    assert figures.judged([run(**change)]) == []
