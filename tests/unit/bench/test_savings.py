"""What cache images save: sums over images, what an image's file system holds, chunks kept once."""

import struct

import pytest

from bench.replay.rows import contents, savings
from bootcache.workingset import Extent

HEAD = {'row': 'savings', 'run': 'savings today', 'cpus': 2, 'setting': {
    'full': False, 'images': ['one', 'two'], 'zstd': 'zstd 1.5.4, level 3, one stream',
    'cluster_bytes': 65536, 'compression': 'zstd', 'chunks': [4096, 65536]}}


def measured(image, size, cache, new4, new64):
    return {'image': image, 'image_bytes': size, 'virtual_bytes': 4 * size,
            'used_bytes': size - 10, 'working_set_bytes': cache - 100, 'cache_bytes': cache,
            'plain_bytes': 2 * cache + 10, 'zstd_bytes': cache // 2,
            'new': {'4096': new4, '65536': new64}, 'new_zstd': {'4096': new4 // 2,
                                                              '65536': new64 // 2}}


RUNS = [measured('one', 10_000, 1000, 900, 980), measured('two', 30_000, 1000, 300, 820)]


def test_an_image_has_a_row_and_all_have_one_a_way():
    rows = savings.rows(HEAD, RUNS)
    assert [(row['peer'], row['image']) for row in rows[:2]] == [
        ('bootcache cache image', 'one'), ('bootcache cache image', 'two')]
    assert rows[0]['ratio'] == 0.1 and rows[0]['images'] == 1
    ways = {row['peer']: row for row in rows[2:]}
    assert all(row['image'] == 'all' and row['images'] == 2 for row in rows[2:])
    assert {peer: row['cache_bytes'] for peer, row in ways.items()} == {
        'bootcache cache image': 2000, 'not compressed': 4020, 'with zstd': 1000,
        'with dedup, 64 KiB': 1800, 'with dedup, 4 KiB': 1200,
        'with dedup, 4 KiB, and zstd': 600}
    assert ways['with dedup, 4 KiB']['ratio'] == 0.03
    needed = {'row', 'peer', 'hosts', 'images', 'ratio', 'spread', 'base_bytes', 'note', 'run'}
    assert all(needed <= row.keys() for row in rows)


def test_what_is_built_is_compared_and_the_rest_told():
    yolo, files, reads, whole, *told = savings.targets(HEAD, RUNS)
    assert yolo['value'] == 0.05 and yolo['target'] == 0.059 and yolo['met']
    assert files['value'] == 0.05 and files['target'] == 0.1 and files['met']
    assert reads['value'] == round(2000 / 1800, 4) and reads['target'] == 0.55 and not reads['met']
    assert whole['value'] == pytest.approx(1000 / 900)
    assert {one['name'].removeprefix('all cache images ').split(' over')[0]: one['value']
            for one in told} == {
        'not compressed': 2.01, 'with zstd': 0.5, 'with dedup, 64 KiB': 0.9,
        'with dedup, 4 KiB': 0.6, 'with dedup, 4 KiB, and zstd': 0.3}
    assert all(one['target'] is None and one['met'] for one in [whole, *told])


def test_large_cache_images_miss_the_target():
    assert not savings.targets(HEAD, [measured('one', 10_000, 1000, 900, 980)])[0]['met']


def test_the_table_has_a_line_for_each_row_and_a_cell_for_each_column():
    names, lines = savings.table(savings.rows(HEAD, RUNS))
    assert {len(line) for line in lines} == {len(names)}
    assert [line[0] for line in lines] == [
        'one', 'two', 'all 2', 'all not compressed', 'all with zstd',
        'all with dedup, 64 KiB', 'all with dedup, 4 KiB', 'all with dedup, 4 KiB, and zstd']
    assert lines[2][6:8] == ['5.0%', '95.0%']


def test_the_figures_are_drawn_of_the_rows(tmp_path):
    rows = savings.rows(HEAD, RUNS)
    made = savings.draw(HEAD, rows, tmp_path)
    assert [name for name, _caption in made] == ['savings-images.svg', 'savings-ways.svg']
    assert all(b'<svg' in (tmp_path / name).read_bytes() for name, _caption in made)


def disk(magic=0xef53, blocks=1000, free=300, overhead=100, log_block=2, end=b'\x55\xaa'):
    start = bytearray(2 << 20)
    struct.pack_into('<I', start, 446 + 8, 2048)
    start[510:512] = end
    at = (1 << 20) + 1024
    struct.pack_into('<III', start, at + 4, blocks, 50, free)
    struct.pack_into('<I', start, at + 24, log_block)
    struct.pack_into('<H', start, at + 56, magic)
    struct.pack_into('<I', start, at + 0x248, overhead)
    return bytes(start)


def test_files_are_what_is_neither_free_nor_tables():
    assert contents.used_bytes(disk()) == 600 * 4096
    assert contents.used_bytes(disk(log_block=0)) == 600 * 1024


@pytest.mark.parametrize(('start', 'message'), [
    (disk(magic=0), 'no ext4'), (disk(end=b'\0\0'), 'no partition table'),
    (disk()[:1 << 20], 'no ext4')])
def test_other_disks_are_named(start, message):
    with pytest.raises(contents.ContentsError, match=message):
        contents.used_bytes(start)


def test_data_is_read_in_the_order_of_the_file():
    entries = [{'start': 0, 'length': 65536, 'data': True, 'zero': False, 'offset': 900},
               {'start': 65536, 'length': 10, 'data': False, 'zero': True},
               {'start': 131072, 'length': 65536, 'data': True, 'zero': False, 'offset': 300}]
    assert contents.data_of(entries) == [(300, Extent(131072, 65536)), (900, Extent(0, 65536))]


def test_a_chunk_is_new_once():
    store = contents.Store(4)
    assert store.add(b'aaaabbbbaaaacc') == b'aaaabbbbcc'
    assert store.add(b'bbbbdddd') == b'dddd'
    assert store.add(b'aaaa') == b''
