"""Propagation and the block I/O path: what is read out of logs, and what follows from it."""

import struct

import pytest

from bench.replay.rows import bigimages, iopath, novacloud, propagation

GIB = 1 << 30
HEAD = {'row': 'propagation', 'run': 'propagation today', 'cpus': 2, 'setting': {
    'repeats': 2, 'rate': 10 ** 9, 'sizes': [GIB, 2 * GIB], 'left_out': [3 * GIB],
    'propagation_rounds': 2, 'seconds': 0.4, 'writes': 8 << 20}}
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
    return {'part': 'propagation', 'label': way, 'repeat': repeat, 'virtual_bytes': size,
            'file_bytes': size // 4, 'seconds': seconds, 'initial': 0.5, 'transfer': transfer,
            'terminal': seconds - 0.5 - transfer, 'booted_seconds': seconds + 1,
            'registration_seconds': 5.0, 'image_bytes': size // 4 * (way == novacloud.STOCK),
            'base_bytes_active': 0, 'cache_bytes_active': 1000, 'base_bytes_booted': 0,
            'cache_bytes_booted': 1000, 'disk_bytes': 0}


def io(path, repeat, iops, base=0):
    return [{'part': 'io', 'label': path, 'repeat': repeat, 'workload': workload, 'iops': iops,
             'bytes_per_second': iops * 4096, 'latency_seconds': 16 / iops, 'requests': 100,
             'cpu_seconds': 0.5 / iops,
             'base_bytes': base} for workload in iopath.WORKLOADS]


RUNS = [
    *(line for repeat in (0, 1) for path, iops in (
        (iopath.RAW, 1000), (iopath.STOCK, 800), (iopath.INSIDE, 810), (iopath.SETTLED, 780),
        (iopath.ARRIVED, 400), (iopath.OUTSIDE, 100), (iopath.ON_DEMAND, 110))
      for line in io(path, repeat, iops + 20 * repeat, 4096 * (path == iopath.OUTSIDE))),
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


def test_fio_reads_what_the_path_is_for():
    options = iopath.jobs(iopath.PART, 0.4, 1 << 20)
    assert set(options) == set(iopath.WORKLOADS)
    assert all(f'--offset={iopath.PART}' in one and f'--size={iopath.PART}' in one
               for one in options.values())
    assert '--runtime=400ms' in options[iopath.READ]
    assert options[iopath.FIRST] == options[iopath.AGAIN]


def test_a_job_that_did_nothing_is_an_error():
    done = {'total_ios': 4, 'iops': 2.0, 'bw_bytes': 8192, 'lat_ns': {'mean': 5e8}}
    nothing = {'total_ios': 0}
    assert iopath.result({'jobs': [{'error': 0, 'read': nothing, 'write': done}]}) == {
        'iops': 2.0, 'bytes_per_second': 8192, 'latency_seconds': 0.5, 'requests': 4}
    for job in ({'error': 0, 'read': nothing, 'write': nothing},
                {'error': 5, 'read': done, 'write': nothing}):
        with pytest.raises(iopath.PathError):
            iopath.result({'jobs': [job]})


def test_rows_are_ratios_within_a_round():
    found = {(row['peer'], row.get('workload') or row['virtual_bytes']): row
             for row in propagation.rows(HEAD, RUNS)}
    assert found[iopath.RAW, iopath.READ]['ratio'] == 1
    assert found[iopath.STOCK, iopath.READ]['ratio'] == pytest.approx((0.8 + 820 / 1020) / 2, 1e-3)
    cold = found[novacloud.COLD, 2 * GIB]
    assert (cold['ratio'], cold['spread'], cold['transfer']) == (0.35, 0, 0.2)
    assert (cold['cache_bytes'], cold['copied_bytes']) == (1000, 0)


def test_targets_tell_what_is_slower_and_why():
    judged = {one['name']: one for one in propagation.targets(HEAD, RUNS)}
    inside = judged[f'time of reads, {iopath.INSIDE}, over {iopath.STOCK}, at worst']
    assert inside['met'] and inside['value'] < 1
    far = judged[f'time of reads, {iopath.OUTSIDE}, over {iopath.STOCK}, at worst']
    assert not far['met'] and 'network' in far['reason']
    assert judged[f'bytes of the base, {iopath.INSIDE}']['met']
    active = judged[f'time until ACTIVE, {novacloud.COLD}, over stock Nova, at worst']
    assert active['met'] and active['value'] == 0.5
    first = judged[f'time until ACTIVE, {novacloud.FIRST}, over stock Nova, at worst']
    assert not first['met'] and 'not measured' in first['reason']


@pytest.mark.parametrize('part', ['io', 'propagation'])
def test_a_part_can_be_reported_alone(part, tmp_path):
    pytest.importorskip('matplotlib')
    runs = [one for one in RUNS if one['part'] == part]
    rows = propagation.rows(HEAD, runs)
    assert rows and propagation.targets(HEAD, runs)
    assert len(propagation.draw(HEAD, rows, tmp_path)) == (1 if part == 'io' else 2)


def test_page(tmp_path):
    pytest.importorskip('matplotlib')
    rows = propagation.rows(HEAD, RUNS)
    assert all((tmp_path / name).stat().st_size < 100_000
               for name, _caption in propagation.draw(HEAD, rows, tmp_path))
    columns, lines = propagation.table(rows)
    assert {len(line) for line in lines} == {len(columns)}
    assert 'no room for 3 GiB' in propagation.intro(HEAD)
