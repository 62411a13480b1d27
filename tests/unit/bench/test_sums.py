"""The report's arithmetic: everything is a ratio within a round."""

import json

import pytest

from bench.replay import check, report, sums, tap
from bench.replay.rows import manyhosts
from bench.replay.trace import Event

HEAD = {'row': 'many-hosts', 'run': 'many-hosts today', 'cpus': 2, 'setting': {
    'repeats': 3, 'rate': 10 ** 8, 'scale': 1.0, 'dilation': 10.0, 'stands_for': 'a cloud'}}


def run(label, repeat, seconds, hosts=1, base=0, digests=()):
    traffic = {'base': {'requests': base // 100, 'bytes': base}} if base else {}
    return {'label': label, 'repeat': repeat, 'image': 'small', 'seconds': seconds, 'hosts': hosts,
            'traffic': traffic, 'copied_bytes': 0, 'host_bytes': 1, 'disk_seconds': 0.1,
            'player_cpu_seconds': 0.2, 'chain_cpu_seconds': 0.2, 'host_cpu_seconds': 0.4,
            'machine_busy': hosts / 10, 'digests': list(digests)}


def rounds(label, *seconds, **more):
    return [run(label, repeat, value, **more) for repeat, value in enumerate(seconds)]


def chosen(label):
    return lambda one: one['label'] == label


def test_ratios_are_of_one_round():
    runs = rounds('local raw', 10, 20, 30) + rounds('on demand', 11, 24, 30)
    assert sums.ratios(runs, chosen('on demand'), chosen('local raw')) == pytest.approx(
        [1.1, 1.2, 1.0])
    assert sums.median_spread([1.1, 1.2, 1.0]) == (1.1, 0.2)


def test_a_round_without_its_reference_does_not_count():
    runs = rounds('local raw', 10) + rounds('on demand', 11, 50)
    assert sums.ratios(runs, chosen('on demand'), chosen('local raw')) == pytest.approx([1.1])


def test_rows_have_medians_of_what_was_measured():
    runs = rounds('local raw', 10, 10, 10) + rounds('on demand', 11, 13, 12, hosts=4, base=4000)
    first, second = manyhosts.rows(HEAD, runs)
    assert (first['peer'], first['ratio'], first['spread']) == ('local raw', 1, 0)
    assert (second['peer'], second['hosts'], second['ratio'], second['spread']) == (
        'on demand', 4, 1.2, 0.2)
    assert (second['base_bytes'], second['base_requests'], second['run']) == (4000, 40,
                                                                              'many-hosts today')


def test_a_missed_target_stays_missed():
    runs = (rounds('local raw', 10, 10) + rounds('local raw', 10, 10, hosts=8)
            + rounds('on demand', 12, 12) + rounds('on demand', 20, 22, hosts=8)
            + rounds('bootcache cold', 11, 11) + rounds('bootcache cold', 26, 25, hosts=8)
            + rounds('bootcache warm', 10.1, 10.1, digests=[7])
            + rounds('bootcache warm', 10.2, 10.6, hosts=8, base=100, digests=[8]))
    judged = {one['name']: one for one in manyhosts.targets(HEAD, runs)}
    assert judged['warm over full local raw, one host']['met']
    many = judged['warm over full local raw, 8 hosts']
    assert not many['met'] and 'local raw: 10.00 s, of them 0.10 s until' in many['reason']
    alone = judged['warm on 8 hosts over warm on one']
    assert not alone['met'] and '10% busy with one warm host, and 80% with 8' in alone['reason']
    assert judged['bytes of the base read by warm boots']['value'] == 200
    assert not judged['contents that boots of one image have read']['met']
    assert judged['bootcache warm over on demand, at worst']['met']
    cold = judged['bootcache cold over on demand, at worst']
    assert not cold['met'] and cold['value'] == pytest.approx((1.3 + 25 / 22) / 2, abs=1e-4)
    assert 'at 8 hosts' in cold['reason']
    # Where the time goes, of both.
    assert 'on demand: 21.00 s, of them 0.10 s until the disk was made' in cold['reason']


def test_two_ways_that_are_nearly_as_fast_are_as_fast():
    runs = rounds('a', 10.19, 10.19) + rounds('b', 10, 10)
    assert sums.never_slower(HEAD, runs, 'a', 'b')['met']
    assert not sums.never_slower(HEAD, rounds('a', 10.3, 10.3) + rounds('b', 10, 10), 'a',
                                 'b')['met']


def test_what_was_not_measured_is_not_met():
    judged = sums.ratio_target(HEAD, 'x', 1.02, [], chosen('a'), chosen('b'))
    assert not judged['met'] and 'not measured' in judged['reason']


def test_a_report_is_made_of_journals(tmp_path):
    runs = (rounds('local raw', 10, 10) + rounds('bootcache warm', 10.1, 10.1)
            + rounds('bootcache cold', 11, 11) + rounds('on demand', 12, 12, base=500))
    lines = [json.dumps(one) for one in (HEAD, *runs)]
    (tmp_path / 'many-hosts.jsonl').write_text('\n'.join(lines) + '\n')
    pytest.importorskip('matplotlib')
    report.assemble(tmp_path, [manyhosts])
    document = json.loads((tmp_path / 'report.json').read_text())
    assert {row['run'] for row in document['rows']} == {'many-hosts today'}
    page = (tmp_path / 'report.md').read_text()
    assert 'many-hosts-small.svg' in page and '1.2' in page
    assert (tmp_path / 'many-hosts-small.svg').stat().st_size < 100_000


TAP = b"""\
2026-01-02 03:04:05.100000 connection=1 Connect export=base-7a5c tls=0 size=0x100000
2026-01-02 03:04:05.100000 connection=2 Connect export="cache-7a5c-0" tls=0 size=0x100000
2026-01-02 03:04:05.200000 connection=1 Read id=1 offset=0x200 count=0x400 ...
2026-01-02 03:04:05.300000 connection=1 ...Read id=1 return=0
2026-01-02 03:04:05.300000 connection=1 Extents id=2 offset=0x200 count=0x400 req_one=0 ...
"""


def test_the_tap_knows_connections_of_earlier_looks(tmp_path):
    log = tmp_path / 'log'
    log.write_bytes(TAP + b'2026-01-02 03:04:05.3 connection=2 Read id=1 offset=0x0 cou')
    follower = tap.Tap(log)
    assert tap.traffic(follower.read()) == {'base': tap.Traffic(1, 1024)}
    with open(log, 'ab') as stream:
        stream.write(b'nt=0x100 ...\n')
    assert tap.traffic(follower.read()) == {'cache': tap.Traffic(1, 256)}
    assert follower.read() == []


def test_what_hosts_read_to_know_that_a_base_has_an_answer_is_no_boot_s():
    seen = [tap.Seen('base-x', 8192, 4096), tap.Seen('base-x', 8192, 512),
            tap.Seen('base-y', 8192, 4096), tap.Seen('cache-x', 8192, 4096)]
    assert tap.traffic(seen, {seen[0]}) == {'base': tap.Traffic(2, 4608),
                                            'cache': tap.Traffic(1, 4096)}


def events(*spans):
    return [Event('r', offset, 512, *times) for offset, times in spans]


def test_the_same_requests_agree():
    guest = events((0, (1, 2)), (512, (3, 4)))
    found = check.compare(guest, events((0, (11, 12)), (512, (13.5, 14))), 0, 10, 0.01)
    assert found.exact and (found.worst_lag, found.boot_error) == (0.5, 0.01)


def test_neighbours_in_flight_may_be_noted_the_other_way_round_and_nothing_else():
    flying = events((0, (1, 5)), (512, (1.1, 4)), (1024, (6, 7)))
    swapped = [flying[1], flying[0], flying[2]]
    found = check.compare(flying, swapped, 0, 0, 0)
    assert found.exact and found.swapped == 1
    apart = events((0, (1, 2)), (512, (3, 4)), (1024, (6, 7)))
    assert not check.compare(apart, [apart[1], apart[0], apart[2]], 0, 0, 0).exact


def test_a_missing_request_is_told():
    guest = events((0, (1, 2)), (512, (3, 4)))
    found = check.compare(guest, guest[:1], 0, 0, 0)
    assert not found.exact and (found.missing, found.bytes_differ) == (1, 512)


def told(runs):
    return {one['name']: one for one in sums.compressed(
        HEAD, runs, lambda one: one['hosts'], lambda one: f'{one["hosts"]} hosts')}


def test_each_compressed_way_has_its_twin():
    assert [sums.uncompressed(label) for label in (
        'bootcache zstd cold', 'bootcache zstd expanded', 'bootcache zstd in memory warm')] == [
            'bootcache cold', 'bootcache warm', 'bootcache in memory warm']


def fetched(runs, bytes_):
    for one in runs:
        one['traffic'] = {'cache': {'requests': 1, 'bytes': bytes_}}
    return runs


def test_what_compression_changes_is_told_where_it_costs_most():
    runs = (fetched(rounds('bootcache cold', 10, 10), 100)
            + fetched(rounds('bootcache zstd cold', 11, 12), 50)
            + fetched(rounds('bootcache cold', 20, 20, hosts=4), 400)
            + fetched(rounds('bootcache zstd cold', 15, 15, hosts=4), 260))
    found = told(runs)
    time = found['bootcache zstd cold over bootcache cold, at worst']
    assert (time['target'], time['value']) == (None, 1.15)
    assert time['reason'] == '1 hosts: 1.15 (spread 0.1); 4 hosts: 0.75 (spread 0.0)'
    size = found['bytes of cache images that were fetched, bootcache zstd cold over bootcache'
                 ' cold, at worst']
    assert (size['target'], size['value']) == (None, 0.65)


def test_what_is_expanded_loses_nothing():
    plain = rounds('bootcache warm', 10, 10)
    name = 'bootcache zstd expanded over bootcache warm, at worst'
    assert told(plain + rounds('bootcache zstd expanded', 10.1, 10.1))[name]['met']
    assert not told(plain + rounds('bootcache zstd expanded', 10.3, 10.3))[name]['met']
    # Of one round the noise is not known.
    assert told(rounds('bootcache warm', 10) + rounds('bootcache zstd expanded', 10.9))[name]['met']
    assert told(rounds('bootcache zstd expanded', 10, 10)) == {}


def test_rows_of_hosts_judge_what_was_measured():
    runs = (rounds('local raw', 10, 10) + rounds('on demand', 12, 12)
            + rounds('bootcache zstd cold', 11, 11) + rounds('bootcache zstd warm', 10.5, 10.5)
            + rounds('bootcache zstd expanded', 10.1, 10.1, base=1))
    judged = {one['name']: one for one in manyhosts.targets(HEAD, runs)}
    assert judged['bootcache zstd expanded over full local raw, one host']['met']
    assert judged['bootcache zstd cold over on demand, at worst']['met']
    assert judged['bytes of the base read by warm boots']['value'] == 2
    assert not any(name.startswith(('warm over', 'bootcache warm')) for name in judged)
