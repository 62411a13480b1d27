"""What a quota costs: what follows from what was measured."""

import pytest

from bench.replay import report
from bench.replay.rows import quota

HEAD = {'row': 'quota', 'run': 'quota today', 'cpus': 2, 'setting': {
    'repeats': 1, 'rate': 10 ** 9, 'scale': 0.1, 'dilation': 1.0, 'stands_for': 'a cloud'}}


def run(label, seconds, base=0, cache=0, **more):
    traffic = {kind: {'requests': 1, 'bytes': size}
               for kind, size in (('base', base), ('cache', cache)) if size}
    return {'label': label, 'repeat': 0, 'image': 'small', 'seconds': seconds, 'hosts': 1,
            'traffic': traffic, 'copied_bytes': 0, 'host_bytes': 1, 'disk_seconds': 0.1,
            'player_cpu_seconds': 0.2, 'chain_cpu_seconds': 0.2, 'host_cpu_seconds': 0.3,
            'digests': [5], 'unique_bytes': 100, **more}


def a_run():
    runs = [run('on demand', 10, base=100)]
    for part in (0.5, 1.5):
        more = {'part': part, 'cluster_bytes': 65536}
        rest = 50 if part < 1 else 0
        runs += [run('SC13 cold', 12, base=100, **more), run('SC13 warm', 9, base=rest, **more)]
        for kind, size in (('', 120), ('zstd ', 60)):
            runs += [run(f'bootcache {kind}cold', 9.5, base=rest, cache=size, cache_bytes=size,
                         **more),
                     run(f'bootcache {kind}warm', 8, base=rest, cache_bytes=size, **more)]
        runs.append(run('bootcache zstd expanded', 8, base=rest, cache_bytes=60, **more))
    return runs


def test_a_compressed_cache_image_has_its_own_line_of_the_table():
    judged = {one['name']: one for one in quota.targets(HEAD, a_run())}
    name = 'cache image over unique bytes, 65536-byte clusters'
    assert (judged[f'{name} (table 2)']['value'], judged[f'{name}, zstd']['value']) == (1.2, 0.6)
    assert judged['bytes of the base read by warm boots with room for all']['met']
    told = judged['bootcache zstd cold over bootcache cold, at worst']
    assert told['reason'].startswith('0.5 of what the boot reads, 65536-byte clusters: 1.0')
    assert judged['bootcache zstd expanded over bootcache warm, at worst']['met']


def test_one_kind_alone_is_judged_as_well():
    judged = {one['name'] for one in quota.targets(
        HEAD, [one for one in a_run() if 'zstd' not in one['label']])}
    assert not any('zstd' in name for name in judged)


def test_every_way_is_in_figures_and_table(tmp_path):
    pytest.importorskip('matplotlib')
    rows = quota.rows(HEAD, a_run())
    assert [name for name, _caption in quota.draw(HEAD, rows, tmp_path)] == [
        'quota-small-time.svg', 'quota-small-bytes.svg']
    for way in ('SC13 cold', 'bootcache warm', 'bootcache zstd expanded'):
        assert way in (tmp_path / 'quota-small-time.svg').read_text()
    assert len(report._columns(rows)[1]) == len(rows)
