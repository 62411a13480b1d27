"""Hosts that give one image to each other: what follows from its runs."""

import pytest

from bench.replay.rows import exchanged
from bench.replay.rows.reading import COLD, EXCHANGED, ON_DEMAND, WAITED

HEAD = {'row': 'exchanged', 'run': 'exchanged today', 'cpus': 2, 'setting': {
    'repeats': 1, 'rate': 10 ** 8, 'length': 8 << 20, 'dilation': 10.0}}


def run(label, hosts, seconds, copies=1.0, asked=0):
    return {'label': label, 'repeat': 0, 'image': 'noise' if 'read, ' in label else 'small',
            'hosts': hosts, 'seconds': seconds, 'copied_bytes': 0, 'host_bytes': 0,
            'traffic': {'cache': {'bytes': asked}} if asked else {}, 'disk_seconds': 0,
            'player_cpu_seconds': 0, 'chain_cpu_seconds': 0, 'host_cpu_seconds': 0,
            'machine_busy': 0.5, 'storage_bytes': copies * 100, 'file_bytes': 100, 'load': 5.0}


RUNS = [run(exchanged.FIRST, 1, 20), run(exchanged.FIRST, 64, 80, 64), run(COLD, 64, 60, 64),
        run(exchanged.WARM, 64, 20, 0), run(EXCHANGED, 64, 25, 2, 90), run(WAITED, 64, 30, 1),
        run(f'read, {ON_DEMAND}', 1, 1), run(f'read, {ON_DEMAND}', 32, 32, 32),
        run(f'read, {EXCHANGED}', 32, 16, 20), run(f'read, {WAITED}', 32, 4, 1.2)]


def test_times_are_over_that_of_one_host_and_copies_over_the_file():
    rows = {(row['peer'], row['hosts']): row for row in exchanged.rows(HEAD, RUNS)}
    assert rows[EXCHANGED, 64]['ratio'] == 1.25 and rows[EXCHANGED, 64]['copies'] == 2
    assert rows[f'read, {ON_DEMAND}', 32]['ratio'] == 32
    assert rows[f'read, {WAITED}', 32]['copies'] == 1.2


def test_targets_are_judged_where_there_are_as_many_hosts():
    found = {target['name']: target for target in exchanged.targets(HEAD, RUNS)}
    cold = found[f'{EXCHANGED} over warm, 64 hosts']
    assert cold['met'] and cold['value'] == 1.25
    # One goes to the host that is the first, and the other to all by exchange.
    assert 'of 2.0 copies 0.9 not by exchange' in cold['reason']
    assert not found[f'reading, {EXCHANGED} over on demand, 32 hosts']['met']
    # No way of the product.
    assert found[f'reading, {WAITED} over on demand, 32 hosts']['target'] is None
    # 20 s for the first, 10 s to build, 25 s for the others; 80 s where all begin at once.
    bound = found['first host, then the others by exchange, over all 64 at once from the storage'
                  ' node']
    assert bound['value'] == pytest.approx(55 / 80, abs=1e-3) and '20.00' in bound['reason']


def test_figures_and_page(tmp_path):
    pytest.importorskip('matplotlib')
    rows = exchanged.rows(HEAD, RUNS)
    names = [name for name, _caption in exchanged.draw(HEAD, rows, tmp_path)]
    assert names == ['exchanged-boots.svg', 'exchanged-readers.svg']
    columns, lines = exchanged.table(rows)
    assert {len(line) for line in lines} == {len(columns)}
    assert '100 Mbit/s' in exchanged.intro(HEAD)
