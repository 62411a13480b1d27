"""Propagation: what is read out of logs, and what follows from it."""

import struct

import pytest

from bench.replay.rows import bigimages, novacloud, propagation

GIB = 1 << 30
HEAD = {'row': 'propagation', 'run': 'propagation today', 'cpus': 2, 'setting': {
    'repeats': 2, 'rate': 10 ** 9, 'sizes': [GIB, 2 * GIB], 'left_out': [3 * GIB]}}
LOG = """\
2026-01-02 03:04:05.000 1 INFO nova.compute.claims [None req-1 - -] [instance: A] Claim successful
2026-01-02 03:04:06.500 1 INFO nova.virt.libvirt.driver [None req-1] [instance: A] Creating image(s)
2026-01-02 03:04:07.000 1 INFO nova.virt.libvirt.driver [None req-2] [instance: B] Using config drive
2026-01-02 03:04:09.000 1 INFO nova.virt.libvirt.driver [None req-1] [instance: A] Using config drive
2026-01-02 03:04:09.500 1 INFO nova.virt.libvirt.driver [-] [instance: A] Instance spawned successfully.
2026-01-02 03:04:09.600 1 INFO nova.compute.manager [None req-1] [instance: A] Took 3.10 seconds to spawn the instance on the hypervisor.
2026-01-02 03:04:10.000 1 INFO nova.compute.manager [None req-1] [instance: A] Took 5.00 seconds to build instance.
"""  # noqa: E501


def moved(way, repeat, size, seconds, transfer):
    return {'label': way, 'repeat': repeat, 'virtual_bytes': size,
            'file_bytes': size // 4, 'seconds': seconds, 'initial': 0.5, 'transfer': transfer,
            'terminal': seconds - 0.5 - transfer, 'booted_seconds': seconds + 1,
            'registration_seconds': 5.0, 'image_bytes': size // 4 * (way == novacloud.STOCK),
            'base_bytes_active': 0, 'cache_bytes_active': 1000, 'base_bytes_booted': 0,
            'cache_bytes_booted': 1000, 'disk_bytes': 0}


RUNS = [
    *(moved(way, repeat, size, seconds, transfer) for repeat in (0, 1) for way, size, seconds,
      transfer in ((novacloud.STOCK, GIB, 4.0, 2.0), (novacloud.STOCK, 2 * GIB, 6.0, 4.0),
                   (novacloud.COLD, GIB, 2.0, 0.2), (novacloud.COLD, 2 * GIB, 2.1, 0.2)))]


def test_phases_are_of_one_server():
    found = novacloud.marks(LOG, 'A')
    assert set(found) == {'creating', 'made', 'spawned', 'built'}
    asked = found['creating'] - 2
    assert novacloud.phases(asked, found) == {
        'initial': 2, 'transfer': 2.5, 'terminal': 1, 'seconds': 5.5}
    with pytest.raises(KeyError):
        novacloud.phases(0, novacloud.marks(LOG, 'B'))


def test_the_boot_sector_is_one_that_nova_takes():
    sector = bigimages.boot_sector(GIB)
    assert len(sector) == 512 and sector.endswith(b'\x55\xaa')
    flag, kind, start, size = struct.unpack('<B3xB3xII', sector[446:462])
    assert (flag, kind, start + size) == (0x80, 0x83, GIB // 512)
    assert bigimages.MARKER.encode() in sector[:446]
    assert struct.pack('<H', bigimages.BOOT_READS) == sector[11:13]
    step = struct.pack('<I', bigimages.CLUSTER * bigimages.EVERY // 512)
    assert b'\x66\x81\x06\x4a\x7c' + step in sector


def test_an_image_has_noise_in_every_eighth_cluster(tmp_path):
    size = bigimages.make(tmp_path / 'image.qcow2', 8 << 20)
    assert (1 << 20) < size < (2 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ['image.qcow2']


def test_images_for_which_the_disk_has_no_room_are_left_out():
    sizes = [size * GIB for size in (21, 3, 9, 15)]
    assert propagation.fitting(sizes, 1000 * GIB) == sorted(sizes)
    assert propagation.fitting(sizes, 16 * GIB) == [3 * GIB, 9 * GIB]
    assert propagation.fitting(sizes, 5 * GIB) == []


def test_rows_are_ratios_within_a_round():
    found = {(row['peer'], row['virtual_bytes']): row
             for row in propagation.rows(HEAD, RUNS)}
    cold = found[novacloud.COLD, 2 * GIB]
    assert (cold['ratio'], cold['spread'], cold['transfer']) == (0.35, 0, 0.2)
    assert (cold['cache_bytes'], cold['copied_bytes']) == (1000, 0)


def test_targets_tell_what_is_slower_and_what_was_not_measured():
    judged = {one['name']: one for one in propagation.targets(HEAD, RUNS)}
    active = judged[f'time until ACTIVE, {novacloud.COLD}, over stock Nova, at worst']
    assert active['met'] and active['value'] == 0.5
    first = judged[f'time until ACTIVE, {novacloud.FIRST}, over stock Nova, at worst']
    assert not first['met'] and 'not measured' in first['reason']


def test_page(tmp_path):
    pytest.importorskip('matplotlib')
    rows = propagation.rows(HEAD, RUNS)
    assert all((tmp_path / name).stat().st_size < 100_000
               for name, _caption in propagation.draw(HEAD, rows, tmp_path))
    columns, lines = propagation.table(rows)
    assert {len(line) for line in lines} == {len(columns)}
    assert 'no room for 3 GiB' in propagation.intro(HEAD)
