"""What boots from a snapshot tell, and what its server has written."""

import random

import pytest

from bench.snapshots import bootfigures
from bench.snapshots.bootfigures import ARRIVES, BLOCK, FETCHED, MADE, MADE_EXPANDED, STOCK
from bootcache import workingset
from bootcache.workingset import Extent, total_bytes

MIB = 1 << 20
SIZE = 64 * MIB
READ = [Extent(20 * MIB, MIB), Extent(0, 3 * MIB), Extent(40 * MIB, BLOCK)]


def run(way=MADE, sent=109, link=1_000_000_000, chain=1.0, booted=2.0, differing=100, servers=1):
    """Servers of which the first is slower than the others."""
    sizes = {'differing': differing, 'changed': 700, 'data': 1800, 'cache': 1400,
             'difference': 105, 'image': 16000}
    return bootfigures.line(
        way, link, chains=[chain, *[chain / 2] * (servers - 1)],
        booted=[booted, *[booted / 2] * (servers - 1)], sent=sent, sent_until_booted=sent,
        sizes=[sizes] * servers, building=[{'cache': 1.234, 'difference': 0.5}] * servers,
        load=1.04)


def test_a_run_has_all_that_was_counted():
    assert run() == {
        'what': 'boot from a snapshot', 'servers': 1, 'way': 'made of its parent\'s',
        'link_mbit': 1000, 'seconds_to_chain': 1.0, 'seconds_to_booted': 2.0,
        'median_seconds_to_booted': 2.0, 'network_bytes': 109, 'network_until_booted_bytes': 109,
        'differing_bytes': 100, 'changed_bytes': 700, 'data_bytes': 1800, 'cache_bytes': 1400,
        'difference_bytes': 105, 'image_bytes': 16000, 'cache_build_seconds': 1.23,
        'difference_build_seconds': 0.5, 'load': 1.0}


def test_many_servers_have_booted_with_the_last_and_their_bytes_are_added_up():
    many = run(servers=3, sent=330)
    assert (many['servers'], many['seconds_to_chain'], many['seconds_to_booted'],
            many['median_seconds_to_booted']) == (3, 1.0, 2.0, 1.0)
    assert (many['differing_bytes'], many['image_bytes']) == (300, 48000)
    assert many['cache_build_seconds'] == 3.7
    # They are no repeat of one that differs as much.
    lines = bootfigures.ratios([many, run(differing=300, sent=3000)])
    assert [one['network_over_differing'] for one in lines] == [1.1, 10.0]


def test_bytes_are_over_those_that_differ_and_times_over_other_ways():
    lines = bootfigures.ratios([run(), run(ARRIVES, 1500, chain=0.5, booted=4.0),
                                run(STOCK, 16100, chain=10.0, booted=11.0)])
    assert lines[0] == {
        'what': bootfigures.WHAT, 'servers': 1, 'way': MADE, 'differing_bytes': 100,
        'link_mbit': 1000, 'network_over_differing': 1.09, 'network_over_arrives': 0.073,
        'chain_over_arrives': 2.0, 'booted_over_arrives': 0.5, 'network_over_stock': 0.007,
        'chain_over_stock': 0.1, 'booted_over_stock': 0.182}
    assert not [name for name in lines[2] if name.endswith('over_stock')]


def test_a_ratio_is_one_of_medians_of_the_same_link_and_snapshot():
    runs = [run(chain=chain) for chain in (1.0, 9.0, 2.0)]
    runs += [run(FETCHED, chain=4.0), run(FETCHED, chain=100.0, link=10_000_000_000),
             run(FETCHED, chain=100.0, differing=50)]
    line = bootfigures.ratios(runs)[0]
    assert line['chain_over_fetched'] == 0.5
    assert bootfigures.medians(runs)[0]['runs'] == 3 and len(bootfigures.medians(runs)) == 4


@pytest.mark.parametrize('way', [MADE, MADE_EXPANDED])
def test_the_target_is_met_at_its_bound_and_not_beyond(way):
    assert [one['met'] for one in bootfigures.judged([run(way, 110)])] == [True]
    [over] = bootfigures.judged([run(way, 111)])
    assert over['met'] is False and over['value'] == 1.11 and over['target'] == 1.1
    assert over['what'] == 'boot from a snapshot, 1 servers, 100 bytes differ, 1000 Mbit/s,' \
        f' {way}: network_over_differing'


def test_what_stock_moves_is_told_and_other_ways_are_no_promise():
    [told] = bootfigures.judged([run(STOCK, 16000), run(ARRIVES, 1500), run(FETCHED, 1500)])
    assert (told['value'], told['target'], told['met']) == (160.0, None, None)


def test_the_table_has_a_line_for_each_way():
    assert len(bootfigures.table([run(), run(), run(STOCK)])) == 3


@pytest.mark.parametrize('within, changed', [(BLOCK, BLOCK), (2 * MIB, 2 * MIB),
                                             (MIB, 7 * MIB), (total_bytes(READ), 5 * MIB)])
def test_a_server_has_written_as_much_as_it_is_to(within, changed):
    wrote = bootfigures.written(READ, SIZE, within, changed, 5)
    assert total_bytes(wrote) == changed
    assert changed - workingset.uncovered(wrote, workingset.align(READ, BLOCK, SIZE)) == within
    assert all(not extent.offset % BLOCK and extent.end <= SIZE for extent in wrote)
    assert wrote == bootfigures.written(READ, SIZE, within, changed, 5)
    if within < total_bytes(READ):
        assert wrote != bootfigures.written(READ, SIZE, within, changed, 6)


def test_more_than_boots_read_cannot_be_written_of_it():
    with pytest.raises(ValueError, match='boots read'):
        bootfigures.written(READ, SIZE, 5 * MIB, 5 * MIB, 5)


def test_what_differs_is_counted_in_whole_clusters_of_the_cache_image():
    cluster = 16 * BLOCK
    # Beside what is read, in the same cluster; far from it; and within it.
    wrote = [Extent(40 * MIB + BLOCK, BLOCK), Extent(60 * MIB, MIB), Extent(BLOCK, 3 * BLOCK)]
    assert bootfigures.differing(wrote, READ, cluster, SIZE) == 4 * BLOCK
    assert bootfigures.differing(wrote, READ, BLOCK, SIZE) == 3 * BLOCK


def test_what_differs_is_what_a_comparison_finds():
    source = random.Random(1)
    for seed in range(20):
        cluster = BLOCK * source.choice([1, 4, 16])
        wrote = bootfigures.written(READ, SIZE, MIB, 4 * MIB, seed)
        held = {place for extent in READ
                for place in range(extent.offset // cluster, -(-extent.end // cluster))}
        blocks = [place for extent in wrote for place in range(extent.offset, extent.end, BLOCK)]
        assert bootfigures.differing(wrote, READ, cluster, SIZE) \
            == BLOCK * sum(place // cluster in held for place in blocks)
