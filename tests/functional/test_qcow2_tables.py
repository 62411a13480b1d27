"""What qemu-img and qemu-io write passes the look at tables; what they would not write does not."""

import os
import subprocess

import pytest
from functional_tools import qemu_img

from bootcache import exception
from glance_bootcache.qcow2 import tables
from glance_bootcache.qcow2.header import Reader

MIB = 1 << 20
MOST = 16 << 40


def check(path):
    with open(path, 'rb') as stream:
        return tables.check(Reader(stream.fileno(), os.path.getsize(path)), MOST)


def qemu_io(path, *commands):
    arguments = [argument for command in commands for argument in ('-c', command)]
    subprocess.run(['qemu-io', '-f', 'qcow2', *arguments, path], check=True, capture_output=True)


@pytest.fixture
def path(directory):
    return f'{directory}/image'


@pytest.fixture
def content(directory):
    """A disk with data, holes, and what compresses, and that is no multiple of most clusters."""
    path = f'{directory}/content'
    with open(path, 'wb') as stream:
        stream.write(os.urandom(3 * MIB) + b'x' * MIB)
        stream.seek(8 * MIB)
        stream.write(os.urandom(70000))
        stream.truncate(11 * MIB + 512)
    return path


SIZES = ['512', '4k', '64k', '2M']
KINDS = [[], ['-o', 'compat=0.10'], ['-o', 'lazy_refcounts=on'], ['-o', 'refcount_bits=1'],
         ['-o', 'refcount_bits=64'], ['-o', 'preallocation=metadata'],
         ['-o', 'preallocation=falloc'], ['-o', 'preallocation=full'], ['-c'],
         ['-c', '-o', 'compat=0.10'], ['-c', '-o', 'compression_type=zstd']]


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('kind', KINDS, ids=' '.join)
def test_what_qemu_img_converts(path, content, size, kind):
    qemu_img('convert', '-f', 'raw', '-O', 'qcow2', *kind, '-o', f'cluster_size={size}', content,
             path)
    assert check(path).cluster_bytes == {'k': 1024, 'M': MIB}.get(size[-1], 1) \
        * int(size.rstrip('kM'))


@pytest.mark.parametrize('size', ['16k', '64k', '2M'])
@pytest.mark.parametrize('kind', [[], ['-c'], ['-o', 'preallocation=metadata'],
                                  ['-o', 'preallocation=full']], ids=' '.join)
def test_subclusters(path, content, size, kind):
    """oslo.utils refuses them as a feature that it does not know: one day it may not."""
    qemu_img('convert', '-f', 'raw', '-O', 'qcow2', *kind, '-o',
             f'cluster_size={size},extended_l2=on', content, path)
    if '-c' not in kind:
        qemu_io(path, 'write 4k 4k', 'write -z 16k 8k', 'write -z -u 1M 256k', 'discard 2M 512k')
    assert check(path).extended_l2


@pytest.mark.parametrize('size', ['4k', '64k'])
@pytest.mark.parametrize('kind', [[], ['-o', 'compat=0.10'], ['-c']], ids=' '.join)
def test_what_has_lived(path, content, size, kind):
    """Written to, discarded, made larger and smaller, with snapshots taken and applied."""
    qemu_img('convert', '-f', 'raw', '-O', 'qcow2', *kind, '-o', f'cluster_size={size}', content,
             path)
    qemu_img('snapshot', '-c', 'one', path)
    qemu_io(path, 'write -P 7 1M 1M', 'discard 2M 1M', 'write -z 3M 128k', 'write 512 1k')
    qemu_img('snapshot', '-c', 'two ' + 'x' * 200, path)
    check(path)
    qemu_img('snapshot', '-d', 'one', path)
    if '0.10' not in ''.join(kind):
        # Version 2 knows no snapshots of another size.
        qemu_img('resize', '-q', '-f', 'qcow2', path, '64M')
        qemu_io(path, 'write 60M 1M')
        check(path)
        qemu_img('resize', '-q', '--shrink', '-f', 'qcow2', path, '9M')
        check(path)
        qemu_img('resize', '-q', '-f', 'qcow2', path, f'{11 * MIB + 512}')
    qemu_img('snapshot', '-a', 'two ' + 'x' * 200, path)
    check(path)
    qemu_img('amend', '-f', 'qcow2', '-o', 'compat=1.1', path)
    check(path)


def test_a_state_of_a_machine_in_a_snapshot(path, directory):
    """savevm has the L1 table grow beyond the disk."""
    qemu_img('create', '-q', '-f', 'qcow2', path, '1M')
    qemu_io(path, 'write 0 1M')
    commands = '{"execute":"qmp_capabilities"}\n' \
        '{"execute":"human-monitor-command","arguments":{"command-line":"savevm one"}}\n' \
        '{"execute":"quit"}\n'
    subprocess.run(['qemu-system-x86_64', '-M', 'none', '-display', 'none', '-nodefaults', '-qmp',
                    'stdio', '-drive', f'if=none,file={path},format=qcow2'], input=commands,
                   text=True, check=True, capture_output=True, timeout=120)
    assert check(path).snapshots == 1


def test_a_file_that_was_not_closed(path):
    """Its refcounts are not right: nobody needs them who only reads."""
    qemu_img('create', '-q', '-f', 'qcow2', '-o', 'lazy_refcounts=on', path, '4M')
    subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'write 0 1M', '-c', 'flush', '-c', 'abort',
                    path], capture_output=True)
    with open(path, 'rb') as stream:
        stream.seek(79)
        assert stream.read(1)[0] & 1, 'it is not dirty'
    check(path)


def test_bitmaps_are_refused_until_they_are_removed(path):
    qemu_img('create', '-q', '-f', 'qcow2', path, '4M')
    qemu_img('bitmap', '--add', path, 'first')
    with pytest.raises(exception.ImageRefused, match='persistent bitmaps'):
        check(path)
    qemu_img('bitmap', '--remove', path, 'first')
    check(path)
