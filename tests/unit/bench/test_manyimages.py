"""Many images and a slow disk: what is measured, and what follows from it."""

from types import SimpleNamespace

import pytest

from bench.replay import cluster, node, peers, peers_storage
from bench.replay.host import Image
from bench.replay.rows import manyimages
from bootcache.cachelayout import Compression

HEAD = {'row': 'many-images', 'run': 'many-images today', 'cpus': 2, 'setting': {
    'repeats': 1, 'rate': 10 ** 9, 'scale': 0.1, 'dilation': 1.0, 'stands_for': 'a cloud',
    'hosts': [16], 'numbers': [1, 16], 'disk': {'random': 119.0, 'sequential': 9e7}}}
IMAGE = Image('an-id', {'server': ('10.77.0.1', 10810), 'base_export': 'base-x',
                        'cache_export': 'cache-x', 'virtual_bytes': 1 << 20}, 'qcow2')


def run(label, images, seconds, base=0, cache=0, disk=0, digests=(5,)):
    traffic = {kind: {'requests': 1, 'bytes': size}
               for kind, size in (('base', base), ('cache', cache)) if size}
    return {'label': label, 'repeat': 0, 'image': 'small', 'images': images, 'seconds': seconds,
            'slowest': seconds * 1.1, 'hosts': 16, 'traffic': traffic, 'copied_bytes': 0,
            'host_bytes': 1, 'disk_seconds': 0.1, 'player_cpu_seconds': 0.2,
            'chain_cpu_seconds': 0.2, 'host_cpu_seconds': 0.3, 'digests': list(digests),
            'disk_requests': disk // 1000, 'disk_bytes': disk}


def a_run(warm=10.1, memory=12, memory_disk=0, more=0):
    # The noise is 5 %.
    runs = [run('local raw', 1, seconds) for seconds in (10, 9.9, 10.4)]
    for images in (1, 16):
        runs += [run('on demand', images, 13 if images == 1 else 40, base=9, disk=9000 * images),
                 run('SC13 cold', images, 14 if images == 1 else 44, base=9, disk=9000 * images),
                 run('SC13 warm', images, 10.3),
                 run('bootcache warm', images, warm + more * (images > 1)),
                 run('bootcache cold', images, 12.5 if images == 1 else 16, cache=9, disk=900),
                 run('SC13 in storage memory warm', images, 12.4, cache=9),
                 run('bootcache in storage memory cold', images, memory, cache=9,
                     disk=memory_disk)]
    return runs


def test_hosts_bound_the_images():
    assert manyimages.counts(True, 64) == [1, 4, 16, 64]
    assert manyimages.counts(True, 16) == [1, 4, 16]
    assert manyimages.counts(True, 32) == [1, 4, 16, 32]
    assert manyimages.counts(False, 8) == [1, 4]


def test_every_number_of_images_is_measured_from_both_tiers():
    found = list(manyimages.points(True, [1, 4]))
    assert sum(isinstance(one.peer, peers.LocalRaw) for one in found) == 3
    tiers = [one.tier for one in found]
    assert tiers == sorted(tiers), 'cache images move once a round'
    for peer, tier in ((peers.OnDemand, 'disk'), (peers.Sc13, 'disk'), (peers.Ours, 'disk'),
                       (peers.OursFirst, 'disk'),
                       (peers_storage.Sc13StorageMemory, 'memory'),
                       (peers_storage.OursStorageMemory, 'memory')):
        assert [one.images for one in found if type(one.peer) is peer
                and one.tier == tier] == [1, 4]


def test_a_cache_image_in_storage_memory_is_read_over_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr(peers_storage.qemuimg, 'create_overlay', lambda *given, **named: None)
    nodes = {one['node-name']: one for one in peers_storage.Sc13StorageMemory().disk(
        SimpleNamespace(directory=tmp_path), IMAGE, 'warm')}
    assert nodes['disk']['backing'] == 'cache'
    assert (nodes['cache']['file'], nodes['cache']['backing']) == ('cache-file', 'base')
    assert nodes['cache-file']['export'] == 'cache-x' and nodes['base']['export'] == 'base-x'
    assert nodes['base']['server'] == {'type': 'inet', 'host': '10.77.0.1', 'port': '10810'}


def test_a_tier_gets_what_it_does_not_have_yet(tmp_path):
    built, tier = tmp_path / 'disk' / 'cache-1', tmp_path / 'tier'
    built.parent.mkdir()
    tier.mkdir()
    built.write_bytes(b'cache image')
    switched = []
    storage = SimpleNamespace(
        _built={'one': built}, _manifests={'one': 'manifest'},
        exporter=SimpleNamespace(switch_cache=lambda *given: switched.append(given)))
    node.Node.serve_from(storage, ['one'], str(tier))
    node.Node.serve_from(storage, ['one'], str(built.parent))
    assert (tier / 'cache-1').read_bytes() == b'cache image'
    assert switched == [('manifest', str(tier / 'cache-1')), ('manifest', str(built))]


def test_each_phase_is_told_as_soon_as_it_is_over(monkeypatch):
    seen = []
    made = object.__new__(cluster.Cluster)
    made.hosts = [SimpleNamespace(send=lambda *given: None, call=lambda *given: set())]
    made.node = SimpleNamespace(call=lambda name, *given: [])
    made._tap = SimpleNamespace(read=lambda: [])
    boot = SimpleNamespace(seconds=1.0)
    monkeypatch.setattr(cluster.children, 'results', lambda used, seconds: [boot])
    found = made.run(peers.Ours(), ['image'], ['trace'], 1, seen=seen.append)
    assert [one.label for one in seen] == ['bootcache cold', 'bootcache warm']
    assert found == seen


def test_times_are_over_those_of_as_many_hosts_with_a_local_base():
    rows = {(row['peer'], row['images']): row for row in manyimages.rows(HEAD, a_run())}
    assert rows['on demand', 16]['ratio'] == 4 and rows['bootcache cold', 1]['ratio'] == 1.25
    assert rows['on demand', 16]['disk_bytes'] == 144_000
    assert rows['local raw', 1]['cpu_share'] == pytest.approx(0.7 * 16 / 11 / 2, abs=1e-3)


def test_targets_are_met_where_the_slow_disk_does_not_matter():
    judged = {one['name']: one for one in manyimages.targets(HEAD, a_run(memory_disk=4096))}
    assert all(one['met'] for one in judged.values())
    assert judged['bootcache warm, 16 images over 1']['value'] == 1
    assert judged['on demand, 16 images over 1']['value'] == pytest.approx(40 / 13, abs=1e-4)
    assert judged['bootcache cold over on demand, at worst']['reason'].startswith('1 images')
    assert judged['bootcache warm over SC13 warm, at worst']['target'] == 1.05


@pytest.mark.parametrize(('change', 'missed'), [
    ({'warm': 14}, 'bootcache warm over SC13 warm, at worst'),
    ({'memory': 15}, 'bootcache in storage memory cold over SC13 in storage memory warm, at worst'),
    ({'memory_disk': 1 << 20}, 'MB read from the storage node\'s disk by warm boots, and by cold'
                               ' ones from its memory'),
    ({'more': 1}, 'bootcache warm, 16 images over 1')])
def test_a_missed_target_stays_missed(change, missed):
    judged = {one['name']: one for one in manyimages.targets(HEAD, a_run(**change))}
    assert not judged[missed]['met']
    assert judged[missed]['reason']
    if 'over' in missed:
        assert 'CPU of a server\'s chain' in judged[missed]['reason']


def test_figures_and_table(tmp_path):
    pytest.importorskip('matplotlib')
    rows = manyimages.rows(HEAD, a_run())
    names, lines = manyimages.table(rows)
    assert {len(line) for line in lines} == {len(names)}
    assert [name for name, _caption in manyimages.draw(HEAD, rows, tmp_path)] == [
        'many-images-time.svg', 'many-images-disk.svg']
    assert '119 random reads' in manyimages.intro(HEAD)


@pytest.mark.parametrize(('kinds', 'ways'), [
    ((Compression.NONE,), [peers.Ours, peers_storage.OursStorageMemory]),
    ((Compression.ZSTD,), [peers.OursCompressed, peers_storage.OursStorageMemoryCompressed])])
def test_what_is_asked_for_of_compression_is_measured(kinds, ways):
    found = [type(one.peer) for one in manyimages.points(False, [1], kinds)]
    assert [way for way in found if issubclass(way, peers.Ours)] == ways


def test_compressed_and_uncompressed_are_judged_alike():
    runs = a_run() + [
        run(label, images, seconds, cache=cache) for images in (1, 16)
        for label, seconds, cache in (
            ('bootcache zstd warm', 10.3, 0), ('bootcache zstd expanded', 10.1, 0),
            ('bootcache zstd cold', 12, 4), ('bootcache zstd in storage memory cold', 11.5, 4))]
    judged = {one['name']: one for one in manyimages.targets(HEAD, runs)}
    assert judged['bootcache zstd expanded over full local raw, 16 images']['met']
    assert judged['bootcache zstd cold over on demand, at worst']['met']
    assert judged['bootcache zstd cold over bootcache cold, at worst']['reason'].startswith(
        '1 images: 0.96 (spread 0.0); 16 images: 0.75')
    assert judged['bytes of cache images that were fetched, bootcache zstd cold over bootcache'
                  ' cold, at worst']['value'] == pytest.approx(4 / 9, abs=1e-3)
