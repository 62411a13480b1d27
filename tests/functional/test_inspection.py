"""Tenants' image files, harmless and hostile, made with the real qemu-img."""

import json
import os
import struct
import subprocess

import pytest
import rotten
from functional_tools import qemu_img

from bootcache import cacheimage, confined, exception, qemuimg
from bootcache.cacheimage import Base
from bootcache.limited import Limits
from bootcache.workingset import Extent
from glance_bootcache.storage import inspection
from glance_bootcache.storage.inspection import Inspected

MIB = 1 << 20


@pytest.fixture
def path(directory):
    return f'{directory}/image'


def create(path, *options, size=4 * MIB, image_format='qcow2'):
    qemu_img('create', '-q', '-f', image_format, *options, path, size)


def partition_table(path, kind):
    """Write what the inspector takes for a disk with a partition table."""
    with open(path, 'wb') as stream:
        stream.truncate(4 * MIB)
        entry = b'\x80\0\x02\0' + (b'\xee' if kind == 'gpt' else b'\x83') + b'\xff\xff\xff' \
            + struct.pack('<II', 1, 8191)
        stream.seek(446)
        stream.write(entry)
        stream.seek(510)
        stream.write(b'\x55\xaa')
        if kind == 'gpt':
            stream.write(b'EFI PART')


def test_a_qcow2(path):
    create(path)
    assert inspection.inspect(path, 'qcow2') == Inspected('qcow2', 4 * MIB)


@pytest.mark.parametrize('options', ['compat=0.10', 'cluster_size=4k', 'lazy_refcounts=on',
                                     'compression_type=zstd'])
def test_kinds_of_qcow2(path, options):
    create(path, '-o', options)
    assert inspection.inspect(path, 'qcow2') == Inspected('qcow2', 4 * MIB)


def test_internal_snapshots_are_not_what_is_served(path, directory):
    """A qcow2 may hold earlier states of its disk: the present one is the base, as in Nova."""
    create(path)
    for number, pattern in enumerate(('0x11', '0x22', '0x33')):
        subprocess.run(['qemu-io', '-f', 'qcow2', '-c', f'write -P {pattern} 0 1M',
                        '-c', f'write -P {pattern} {number + 1}M 64k', path], check=True,
                       capture_output=True)
        if number < 2:
            qemu_img('snapshot', '-c', f'state-{number}', path)
    assert inspection.inspect(path, 'qcow2') == Inspected('qcow2', 4 * MIB)
    # What Nova makes of it.
    stock = f'{directory}/stock'
    qemu_img('convert', '-f', 'qcow2', '-O', 'raw', path, stock)
    with open(stock, 'rb') as stream:
        assert stream.read(MIB) == b'\x33' * MIB
    target = f'{directory}/cache'
    cacheimage.build(Base(path, 'qcow2', 4 * MIB), [Extent(0, MIB), Extent(2 * MIB, 65536)], target,
                     quota=8 * MIB, cluster_bytes=65536, backing_uri='nbd+unix:///x?socket=/x')
    chained = json.dumps({'driver': 'qcow2', 'file': {'driver': 'file', 'filename': target},
                          'backing': {'driver': 'qcow2', 'file': {
                              'driver': 'file', 'filename': path}}})
    qemu_img('compare', '-F', 'raw', f'json:{chained}', stock)


def test_a_raw_file(path):
    with open(path, 'wb') as stream:
        stream.write(os.urandom(MIB))
    assert inspection.inspect(path, 'raw') == Inspected('raw', MIB)


@pytest.mark.parametrize('place, value', [
    (446, b'\x01'), (447, b'\x01'), (454, b'\x02'), (466, b'\x83'), (450, b'\0')])
def test_a_partition_table_that_stock_nova_refuses(path, place, value):
    """A boot flag that there is not, a GPT that begins elsewhere, a partition beside it, none."""
    partition_table(path, 'gpt')
    with open(path, 'r+b') as stream:
        stream.seek(place)
        stream.write(value)
        stream.seek(462)
        stream.write(b'\0')
    with pytest.raises(exception.ImageRefused, match='not safe to open: mbr'):
        inspection.inspect(path, 'raw')


@pytest.mark.parametrize('kind', ['mbr', 'gpt'])
def test_a_raw_disk_with_partitions(path, kind):
    partition_table(path, kind)
    assert inspection.inspect(path, 'raw') == Inspected('raw', 4 * MIB)


def backing_file(path):
    create(path, '-u', '-b', '/etc/passwd', '-F', 'raw')


def backing_protocol(path):
    create(path, '-u', '-b', 'nbd://127.0.0.1:1/x', '-F', 'raw')


def data_file(path):
    create(path, '-o', f'data_file={path}.data,data_file_raw=on')


def luks_inside(path):
    create(path)
    patch(path, 32, struct.pack('>I', 2))


def old_encryption(path):
    create(path)
    patch(path, 32, struct.pack('>I', 1))


def patch(path, offset, content):
    with open(path, 'r+b') as stream:
        stream.seek(offset)
        stream.write(content)


def unknown_feature(path):
    create(path)
    patch(path, 72, struct.pack('>Q', 1 << 40))


def version_nine(path):
    create(path)
    patch(path, 4, struct.pack('>I', 9))


def truncated(path):
    create(path)
    os.truncate(path, 60)


def empty(path):
    with open(path, 'wb'):
        pass


def wild_tables(path):
    """The inspector reads the header only; the rest is for qemu-img to refuse."""
    create(path)
    patch(path, 36, struct.pack('>I', 0xffffffff))


def huge(path):
    create(path)
    patch(path, 24, struct.pack('>Q', (1 << 63) + 512))


def vmdk(path):
    create(path, image_format='vmdk')


def vmdk_descriptor(path):
    with open(path, 'w') as stream:
        stream.write('# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n'
                     'createType="monolithicFlat"\nRW 8192 FLAT "/etc/passwd" 0\n')
        stream.truncate(65536)


def iso(path):
    with open(path, 'wb') as stream:
        stream.seek(32768)
        stream.write(b'\x01CD001\x01' + bytes(2041))


def luks(path):
    with open(path, 'wb') as stream:
        stream.write(b'LUKS\xba\xbe\0\x01' + b'aes'.ljust(32, b'\0')
                     + b'xts-plain64'.ljust(32, b'\0') + b'sha256'.ljust(32, b'\0')
                     + struct.pack('>II', 4096, 64))
        stream.truncate(4 * MIB)


def extended_l2(path):
    """Harmless, but oslo.utils does not know the feature yet."""
    create(path, '-o', 'extended_l2=on')


def raw(path):
    with open(path, 'wb') as stream:
        stream.write(os.urandom(MIB))


def odd_raw(path):
    with open(path, 'wb') as stream:
        stream.write(os.urandom(MIB + 1))


def qcow2(path):
    create(path)


def vhdx(path):
    create(path, image_format='vhdx')


@pytest.mark.parametrize('make, disk_format', [
    *((make, 'qcow2') for make in (
        backing_file, backing_protocol, data_file, luks_inside, old_encryption, unknown_feature,
        extended_l2, version_nine, truncated, empty, wild_tables, huge, vmdk, vmdk_descriptor,
        iso, luks, raw)),
    *((make, 'raw') for make in (
        qcow2, backing_file, vmdk, vhdx, iso, luks, empty)),
    *((qcow2, name) for name in ('vmdk', 'iso', 'vhd', 'ami', '', 'unset', 'QCOW2'))])
def test_all_others_are_refused(path, make, disk_format):
    make(path)
    with pytest.raises(exception.ImageRefused) as caught:
        inspection.inspect(path, disk_format)
    assert str(caught.value)


def test_a_raw_file_of_a_broken_sector(path):
    """QEMU rounds it up, so that its last bytes read as zeros."""
    odd_raw(path)
    assert inspection.inspect(path, 'raw') == Inspected('raw', MIB + 512)


@pytest.mark.parametrize('command', [
    lambda path: ['qemu-img', 'map', '-U', qemuimg.file_node(path, 'qcow2')],
    lambda path: confined.command(
        path, 'qemu-img', 'convert', '-n', '--target-image-opts', qemuimg.confined_node('qcow2'),
        f'driver=null-co,size={4 * MIB}')], ids=['a host\'s', 'a tenant\'s'])
def test_nothing_but_the_named_file_is_opened(path, directory, command):
    """A backing file would be seen by its lock or its access time; strace sees it for sure.

    "qemu-img info" opens none by itself, whatever it is told.
    """
    if subprocess.run(['which', 'strace'], capture_output=True).returncode:
        pytest.skip('strace is not installed')
    create(f'{directory}/secret')
    create(path, '-b', f'{directory}/secret', '-F', 'qcow2')
    out = subprocess.run(['strace', '-f', '-e', 'trace=openat', *command(path)],
                         capture_output=True, text=True, check=True)
    assert f'"{path}"' in out.stderr and f'"{directory}/secret"' not in out.stderr


def test_looking_has_limits(path, monkeypatch):
    """With next to no memory it is not even begun: that is no fault of the image."""
    create(path)
    monkeypatch.setattr(inspection.qemuimg, 'INSPECT_LIMITS',
                        Limits(cpu_seconds=2, memory_bytes=1 << 20))
    with pytest.raises(exception.Interrupted, match='qemu-img info'):
        inspection.inspect(path, 'qcow2')


def test_looking_at_tables_has_limits(path, monkeypatch):
    """Of memory: test_inspection_interrupted.py."""
    monkeypatch.setattr(inspection.qemuimg, 'info', lambda *arguments: pytest.fail('opened'))
    monkeypatch.setattr(inspection, '_LOOK_SECONDS', 1)
    monkeypatch.setattr(inspection, '_WAITING', 600)
    # Eight million entries.
    rotten.make_bomb(path, 2 << 40)
    with pytest.raises(exception.ImageRefused, match='of CPU time'):
        inspection.inspect(path, 'qcow2')


def test_a_look_that_takes_too_long_is_no_fault_of_the_image(path, monkeypatch):
    monkeypatch.setattr(inspection, '_WAITING', 0)
    create(path)
    with pytest.raises(exception.Interrupted, match='not done after'):
        inspection.inspect(path, 'qcow2')


@pytest.mark.parametrize('options, size', [
    ([], '2048T'), (['-o', 'cluster_size=512'], '128G'), (['-o', 'cluster_size=4k'], '2T')])
def test_tables_that_cost_memory_are_refused_before_anything_opens_them(path, monkeypatch, options,
                                                                        size):
    """Files of some kilobytes, which cost the exporter up to 32 MiB each while it served them."""
    monkeypatch.setattr(inspection.qemuimg, 'info', lambda *arguments: pytest.fail('opened'))
    create(path, *options, size=size)
    with pytest.raises(exception.ImageRefused, match=r'max_virtual_size|qemu-img convert'):
        inspection.inspect(path, 'qcow2')


def patched(path, offset, kind, value):
    with open(path, 'r+b') as stream:
        stream.seek(offset)
        stream.write(struct.pack(kind, value))


@pytest.mark.parametrize('offset, value', [(36, 1 << 20), (56, 128), (60, 65)])
def test_tables_that_a_header_makes_up_are_refused(path, monkeypatch, offset, value):
    """A larger L1 table than the disk needs, a large refcount table, and many snapshots."""
    monkeypatch.setattr(inspection.qemuimg, 'info', lambda *arguments: pytest.fail('opened'))
    create(path)
    patched(path, offset, '>I', value)
    with pytest.raises(exception.ImageRefused, match='qemu-img convert'):
        inspection.inspect(path, 'qcow2')


@pytest.mark.parametrize('image_format', ['qcow2', 'raw'])
def test_a_disk_that_is_larger_than_the_operator_allows(path, image_format):
    create(path, size=2 * MIB, image_format=image_format)
    assert inspection.inspect(path, image_format, 2 * MIB).virtual_bytes == 2 * MIB
    with pytest.raises(exception.ImageRefused, match=r'max_virtual_size is 2096640'):
        inspection.inspect(path, image_format, 2 * MIB - 512)


@pytest.mark.parametrize('options', [[], ['-o', 'cluster_size=2M'], ['-o', 'cluster_size=4k']])
def test_large_disks_with_small_tables_are_served(path, options):
    create(path, *options, size=512 << 30)
    assert inspection.inspect(path, 'qcow2') == Inspected('qcow2', 512 << 30)


def read_through(path, check=lambda: None):
    inspected = inspection.inspect(path, 'qcow2')
    inspection.read_through(path, inspected, os.path.getsize(path), check)


@pytest.mark.parametrize('options', [(), ('-c',), ('-c', '-o', 'compression_type=zstd'),
                                     ('-o', 'cluster_size=2M')])
def test_all_of_a_good_image_is_read(path, options):
    rotten.make(path, 8 * MIB, *options)
    read_through(path)


def test_a_rotten_cluster_is_found_before_a_server_meets_it(path):
    """It passes inspection, which looks at the tables."""
    rotten.make(path, 8 * MIB, '-c')
    rotten.spoil_data(path, 4 * MIB)
    with pytest.raises(exception.ImageRefused, match=r'error while reading.*Input/output error'):
        read_through(path)


def test_a_table_that_rots_is_found_before_anything_opens_it(path, monkeypatch):
    monkeypatch.setattr(inspection.qemuimg, 'info', lambda *arguments: pytest.fail('opened'))
    rotten.make(path, 8 * MIB)
    rotten.spoil_table(path, 4 * MIB)
    with pytest.raises(exception.ImageRefused, match='not at the begin of a cluster'):
        inspection.inspect(path, 'qcow2')


def test_a_small_file_that_stands_for_much_is_given_up(path, monkeypatch):
    monkeypatch.setattr(inspection, '_GRACE_SECONDS', 1)
    # A busy machine takes longer for these seconds of CPU.
    monkeypatch.setattr(inspection, '_WAITING', 100)
    rotten.make_bomb(path, 64 << 30)
    assert os.path.getsize(path) < 8 * MIB
    with pytest.raises(exception.ImageRefused, match=r'more than \d+ s of CPU'):
        read_through(path)


def test_reading_ends_when_it_is_not_wanted(path):
    rotten.make_bomb(path, 64 << 30)

    def check():
        raise exception.Cancelled('the image was deleted')

    with pytest.raises(exception.Cancelled):
        read_through(path, check)


def test_reading_that_takes_too_long_is_no_fault_of_the_image(path, monkeypatch):
    monkeypatch.setattr(inspection, '_WAITING', 0)
    rotten.make_bomb(path, 64 << 30)
    with pytest.raises(exception.Interrupted, match='not done after'):
        read_through(path)


def test_a_raw_image_is_not_read_again(path, monkeypatch):
    """Its hash has been computed."""
    monkeypatch.setattr(inspection.qemuimg, 'read_all', None)
    with open(path, 'wb') as stream:
        stream.truncate(4 * MIB)
    inspection.read_through(path, inspection.inspect(path, 'raw'), 4 * MIB, lambda: None)
