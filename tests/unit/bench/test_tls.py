"""What TLS costs: what is measured, and what follows from it."""

import pytest

from bench.replay.rows import tls
from bench.replay.rows.tls import BOOT, PLAIN, READ, TLS

HEAD = {'row': 'tls', 'run': 'tls today', 'cpus': 2, 'load_before': 0.5, 'setting': {
    'repeats': 2, 'rate': 10 ** 9, 'scale': 0.25, 'length': 100_000_000}}


def run(what, way, repeat, seconds, exporter=0.1, gateway=0.2):
    return {'what': what, 'label': way, 'repeat': repeat, 'image': 'noise', 'hosts': 1,
            'seconds': seconds, 'exporter_cpu_seconds': exporter, 'gateway_cpu_seconds': gateway}


RUNS = [run(READ, PLAIN, 0, 1.0), run(READ, TLS, 0, 1.5, 0.4), run(READ, TLS, 1, 2.6, 0.6),
        run(READ, PLAIN, 1, 2.0, 0.3), run(BOOT, PLAIN, 0, 4.0), run(BOOT, TLS, 0, 4.4)]


def test_both_ways_take_turns_at_being_first():
    assert tls._rounds(3) == [(0, PLAIN), (0, TLS), (1, TLS), (1, PLAIN), (2, PLAIN),
                                    (2, TLS)]


def test_seconds_are_over_those_without_tls_in_the_round():
    plain, by_tls, boot, boot_by_tls = tls.rows(HEAD, RUNS)
    assert (plain['ratio'], plain['spread']) == (1, 0)
    assert (by_tls['ratio'], by_tls['spread']) == (pytest.approx(1.4), pytest.approx(0.2))
    assert by_tls['bytes_per_second'] == round(1e8 / 2.05)
    assert (by_tls['exporter_cpu_seconds'], by_tls['exporter_cpu_seconds_spread']) == (0.5, 0.2)
    assert (boot['bytes_per_second'], boot_by_tls['ratio']) == (None, 1.1)


def test_a_round_without_its_other_half_does_not_count():
    plain, by_tls = tls.rows(HEAD, [*RUNS[:2], run(READ, TLS, 1, 9.0)])
    assert (by_tls['ratio'], by_tls['seconds'], plain['seconds']) == (1.5, 1.5, 1.0)


def test_what_it_costs_is_told():
    assert [(one['value'], one['met'], one['target']) for one in tls.targets(HEAD, RUNS)] \
        == [(1.4, True, None), (1.1, True, None)]


def test_page(tmp_path):
    columns, lines = tls.table(tls.rows(HEAD, RUNS))
    assert {len(line) for line in lines} == {len(columns)} and len(lines) == 4
    assert '1000 Mbit/s' in tls.intro(HEAD) and 'load before was 0.5' in tls.intro(HEAD)
    assert tls.draw(HEAD, [], tmp_path) == []
