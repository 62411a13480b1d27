"""Ways that fail: what is run, and what counts as failed."""

import random

import pytest

from bench.faults import __main__ as command
from bench.faults import wayguest, wayplan
from bench.faults.wayplan import CASES, WAYS, Event, Figures, WayOutcome

FROZEN = next(case for case in CASES if case.name == 'exporter-frozen-200s')
GOOD = Figures(reads=100, unanswered=24.9, paused=30.0, pauses=1, until_on=4.9)


def test_each_way_has_its_cases():
    of = {way: {case.name for case in cases} for way, cases in wayplan.chosen([], False)}
    assert set(of) == set(WAYS)
    common = {'exporter-frozen-35s', 'exporter-frozen-200s', 'disk-hangs', 'packets-dropped',
              'idle-flow-dropped', 'mtu-black-hole', 'kill-supervisor', 'kill-connector',
              'kill-gateway', 'kill-compute', 'reopen-under-a-read'}
    assert of == {'nbd': common | {'name-unresolved'},
                  'tls': common | {'name-unresolved', 'certificate-renewed'},
                  'ceph': common | {'ceph-away'},
                  'database': {'database-away', 'database-away-600s', 'database-empty',
                               'database-restored', 'database-restored-restart',
                               'database-corrupt', 'node-rebooted', 'two-services'}}


def test_the_short_run_lacks_what_lasts_for_200_seconds_and_takes_ten_minutes():
    for _way, cases in wayplan.chosen([], True):
        assert {'exporter-frozen-200s', 'database-away-600s'}.isdisjoint(
            case.name for case in cases)
        # Beside each other, and beside what else there is to do.
        assert sum(case.seconds for case in cases) < 400
    assert len({case.name for case in CASES}) == len(CASES)


def test_names_choose_ways_and_cases():
    assert [(way, [case.name for case in cases]) for way, cases in wayplan.chosen(
        ['tls', 'frozen'], True)] == [('tls', ['exporter-frozen-35s', 'exporter-frozen-200s'])]
    assert [way for way, _cases in wayplan.chosen(['ceph-away'], False)] == ['ceph']
    with pytest.raises(ValueError, match=r'frosen: neither a way .*nbd.* nor a case .*disk-hangs'):
        wayplan.chosen(['frosen'], False)


@pytest.mark.parametrize(('figures', 'starts', 'said'), [
    ({}, (24.0, 24.0), []), ({'unanswered': 25.1}, (0.0, 0.0), ['a read waited for 25.1 s']),
    ({'until_on': 5.1}, (0.0, 0.0), ['a guest went on 5.1 s']),
    ({'until_on': None}, (0.0, 0.0), ['a guest does not go on']),
    ({}, (25.1, 0.0), ['another image took 25.1 s']),
    ({}, (0.0, 25.1), ['the same image took 25.1 s'])])
def test_what_is_not_as_it_has_to_be_is_told(figures, starts, said):
    bad = Figures(**{**vars(GOOD), **figures})
    found = wayplan.faults_of(FROZEN, [GOOD, bad], *starts)
    assert len(found) == len(said)
    assert all(part in one for part, one in zip(said, found, strict=True))


def test_a_fault_that_reached_nobody_is_told():
    quiet = Figures(reads=100, until_on=0.1)
    of_bases = {case.name for case in CASES if 'database' not in case.ways}
    told = {case.name for case in CASES if wayplan.faults_of(case, [quiet, quiet], 0.0, 0.0)}
    assert told == of_bases - {
        'kill-supervisor', 'kill-connector', 'kill-gateway', 'kill-compute', wayplan.RENEWED}


def test_a_database_that_is_away_keeps_no_guest_paused():
    waits = Figures(reads=100, paused=25.1, pauses=1, until_on=0.1)
    found, = wayplan.faults_of(CASES[-1], [waits, waits], 0.0, 0.0)
    assert 'was paused for 25.1 s, and its base was there' in found


def test_what_a_guest_waits_for_is_counted_while_it_runs():
    events = [(1.0, Event.BEGUN), (1.5, Event.ENDED), (2.0, Event.BEGUN), (50.0, Event.RESUMED),
              (50.5, Event.ENDED), (51.0, Event.BEGUN),
              # Told late.
              (20.0, Event.STOPPED)]
    assert wayplan.figures_of(events, 54.0, 40.0) == Figures(
        reads=2, unanswered=18.0, paused=30.0, pauses=1, until_on=10.5)
    assert wayplan.figures_of(events, 99.0, 60.0).until_on is None
    assert wayplan.figures_of(events, 99.0, 60.0).unanswered == 48.0


def test_the_report_has_the_way():
    one = WayOutcome('a', 'b', 'fetch', 1.0, way='tls', seconds_unanswered=2.0)
    assert one.ok and one.to_json().items() >= {
        'way': 'tls', 'ok': True, 'seconds_unanswered': 2.0, 'leftovers': 0}.items()
    assert 'tls: unanswered 2.0 s' in wayplan.line(one)


def test_ways_are_listed(capsys):
    assert command.main(['--ways', '--list', 'kill-gateway']) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ['kill-gateway', way] for way in ('nbd', 'tls', 'ceph')]


def test_a_sum_tells_of_each_byte_and_its_place():
    block = bytearray(random.Random(1).randbytes(4096))
    before = wayguest.sum_of(bytes(block))
    for place in (0, 1, 2048, 4095):
        block[place] ^= 1
        assert wayguest.sum_of(bytes(block)) != before
        block[place] ^= 1
    assert wayguest.sum_of(bytes(4092) + (7).to_bytes(4, 'little')) == 7
