"""What runs with snapshots tell."""

import pytest

from bench.snapshots import figures


def run(store=figures.RBD, servers=8, way=figures.OURS, seconds=1.0, network=150, stored=120):
    sent = {'hosts': 100, 'storage': network - 100, 'osds': 0}
    return figures.line(store, servers, way, seconds=seconds, after=0.5, sent=sent, stored=stored,
                        changed=100, base=1000, load=1.0)


def stock(store=figures.RBD, servers=8, seconds=4.0, network=3000, stored=2400):
    return run(store, servers, figures.STOCK, seconds, network, stored)


def met(*runs):
    return {target['what'].split(': ')[1]: target['met'] for target in figures.judged(runs)}


def test_bytes_are_over_those_that_changed_and_over_stocks():
    [_stock, ours] = figures.ratios([stock(), run()])
    assert ours == {
        'store': 'rbd', 'servers': 8, 'way': 'bootcache', 'network_over_changed': 1.5,
        'hosts_sent_over_changed': 1.0, 'stored_over_changed': 1.2, 'network_over_stock': 0.05,
        'stored_over_stock': 0.05, 'stored_with_base_over_stock': 0.329, 'seconds_over_stock': 0.25}


def test_a_ratio_is_one_of_medians():
    slow = [run(seconds=seconds) for seconds in (1.0, 9.0, 2.0)]
    [_stock, ours] = figures.ratios([stock(seconds=4.0), *slow])
    assert ours['seconds_over_stock'] == 0.5
    [line] = [line for line in figures.medians([stock(), *slow]) if line['way'] == figures.OURS]
    assert line['seconds_to_active'] == 2.0 and line['runs'] == 3


def test_all_targets_are_met_at_their_bounds_and_none_beyond():
    assert set(met(stock(), run(network=150, stored=120)).values()) == {True}
    over = met(stock(), run(network=161, stored=131, seconds=1.1))
    assert over == dict.fromkeys(over, False) and len(over) == 5


@pytest.mark.parametrize('store, network, stored, expected', [
    (figures.RBD, 160, 130, (True, True)), (figures.RAW, 110, 150, (True, True)),
    (figures.RAW, 111, 151, (False, False)), (figures.QCOW2, 110, 900, (True, None))])
def test_each_store_has_bounds_of_its_own(store, network, stored, expected):
    told = met(run(store=store, network=network, stored=stored))
    assert (told['network_over_changed'], told['stored_over_changed']) == expected


def test_other_ways_and_what_has_no_stock_beside_it_are_not_judged_by_that():
    assert figures.judged([run(way='uploaded, shared'), stock(servers=1)]) == []
    assert 'seconds_over_stock' not in met(run(), stock(servers=1))


def test_the_table_has_a_line_for_each_run():
    assert len(figures.table([stock(), run(), run()])) == 3
