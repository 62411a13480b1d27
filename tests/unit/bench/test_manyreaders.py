"""Many hosts read one image: what is asked for, and what follows from it."""

import pytest

from bench.replay.rows import manyreaders, reading
from bench.replay.rows.reading import ON_DEMAND, OURS

MIB = 1 << 20
HEAD = {'row': 'many-readers', 'run': 'many-readers today', 'cpus': 2, 'setting': {
    'repeats': 2, 'rate': 5 * 10 ** 8, 'length': 8 * MIB, 'paper_bytes': 512_000_000}}


def run(way, repeat, average, hosts=1, servers=1, shuffled=False, base=8 * MIB):
    return {'label': way, 'repeat': repeat, 'image': 'noise', 'hosts': hosts, 'servers': servers,
            'shuffled': shuffled, 'length': 8 * MIB, 'average': average, 'fastest': average * 1.5,
            'slowest': average / 2, 'seconds': 8 * MIB / average, 'reader_cpu_seconds': 0.1,
            'chain_cpu_seconds': 0.1, 'gateway_cpu_seconds': 0.0,
            'traffic': {'base': {'requests': 8, 'bytes': base}}}


def test_every_host_reads_all_in_its_order():
    straight = reading.order(4 * MIB, False, 3)
    assert straight == [0, MIB, 2 * MIB, 3 * MIB]
    orders = [reading.order(64 * MIB, True, host) for host in range(3)]
    assert all(sorted(one) == reading.order(64 * MIB, False, 0) for one in orders)
    assert orders[0] != orders[1] != orders[2]
    assert orders[1] == reading.order(64 * MIB, True, 1)


def test_the_digest_is_of_data_and_place(tmp_path):
    digest = reading.make_image(tmp_path / 'image', 3 * MIB)
    data = (tmp_path / 'image').read_bytes()
    parts = [(offset, data[offset:offset + MIB]) for offset in (2 * MIB, 0, MIB)]
    assert sum(reading.digest_of(*part) for part in parts) == digest
    swapped = [(0, parts[0][1]), (2 * MIB, parts[1][1]), parts[2]]
    assert sum(reading.digest_of(*part) for part in swapped) != digest


@pytest.mark.parametrize('full', [False, True])
def test_both_ways_are_measured_at_each_point(full):
    setting = manyreaders.FULL if full else manyreaders.QUICK
    points = list(manyreaders.points(full, setting.hosts))
    assert len(points) == len(set(points))
    by_way = [{(one.hosts, one.servers, one.shuffled) for one in points if one.way == way}
              for way in (ON_DEMAND, OURS)]
    assert by_way[0] == by_way[1]
    assert {one.hosts for one in points} == set(setting.hosts)
    assert {one.shuffled for one in points} == {False, True}


def test_throughput_is_over_that_of_one_host_on_demand_in_the_round():
    runs = [run(ON_DEMAND, 0, 100), run(ON_DEMAND, 1, 50), run(OURS, 0, 30, hosts=4, servers=4),
            run(OURS, 1, 20, hosts=4, servers=4)]
    reference, ours = manyreaders.rows(HEAD, runs)
    assert (reference['ratio'], reference['spread'], reference['fastest']) == (1, 0, 1.5)
    assert (ours['ratio'], ours['spread']) == (pytest.approx(0.35), pytest.approx(0.1))
    assert (ours['hosts'], ours['servers'], ours['order']) == (4, 4, 'the same')
    assert ours['base_bytes'] == 8 * MIB and ours['run'] == 'many-readers today'


def test_slower_than_on_demand_is_missed_where_it_is_more_than_noise():
    runs = [run(ON_DEMAND, 0, 100), run(ON_DEMAND, 1, 102), run(OURS, 0, 99), run(OURS, 1, 101),
            run(ON_DEMAND, 0, 10, hosts=4), run(ON_DEMAND, 1, 10.1, hosts=4),
            run(OURS, 0, 8, hosts=4, base=40 * MIB), run(OURS, 1, 8, hosts=4, base=32 * MIB)]
    time, slowest, shared = manyreaders.targets(HEAD, runs)
    assert slowest['value'] == time['value']
    assert not time['met'] and 'at 4 hosts' in time['reason']
    assert time['value'] == pytest.approx((10 / 8 + 10.1 / 8) / 2, abs=1e-4)
    assert (shared['met'], shared['value']) == (False, 1.25)
    time, _slowest, shared = manyreaders.targets(HEAD, runs[:4])
    assert time['met'] and shared['met']
    assert time['target'] >= 1.02 - 1e-3


def test_figures_and_page(tmp_path):
    pytest.importorskip('matplotlib')
    runs = [run(way, 0, 100 / hosts, hosts=hosts, servers=servers)
            for way in (ON_DEMAND, OURS) for hosts in (1, 4) for servers in (1, 4)]
    rows = manyreaders.rows(HEAD, runs)
    names = [name for name, _caption in manyreaders.draw(HEAD, rows, tmp_path)]
    assert names == ['many-readers-order.svg', 'many-readers-bytes.svg']
    assert all((tmp_path / name).stat().st_size < 100_000 for name in names)
    columns, lines = manyreaders.table(rows)
    assert {len(line) for line in lines} == {len(columns)}
    assert '500 Mbit/s' in manyreaders.intro(HEAD)
