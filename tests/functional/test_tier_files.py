"""What tiers ask of real files: QEMU's image lock, O_DIRECT, tmpfs."""

import os
import shutil
import subprocess
import tempfile

import pytest
from functional_tools import qemu_img

from bootcache import naming, tier

MIB = 1 << 20


@pytest.fixture(params=['disk', 'memory'])
def place(request, directory, memory):
    """A directory on a disk, and one on a tmpfs."""
    return directory if request.param == 'disk' else memory


@pytest.fixture
def memory():
    """A directory on a tmpfs."""
    path = tempfile.mkdtemp(prefix='bc', dir='/dev/shm')
    yield path
    shutil.rmtree(path)


@pytest.fixture
def chain(place):
    """A cache image, and an overlay on it as a server has."""
    cache, overlay = f'{place}/cache', f'{place}/disk'
    qemu_img('create', '-q', '-f', 'qcow2', cache, MIB)
    qemu_img('create', '-q', '-f', 'qcow2', '-b', cache, '-F', 'qcow2', overlay, MIB)
    return cache, overlay


def test_an_image_that_a_server_has_open(chain, daemons):
    cache, overlay = chain
    assert not tier.is_open(cache)
    daemon = daemons()
    daemon.ensure_running()
    daemon.add_nodes({'driver': 'qcow2', 'node-name': 'disk',
                      'file': {'driver': 'file', 'filename': overlay}})
    # Asked of another process's locks, and by a link as well.
    os.link(cache, f'{cache}.link')
    assert tier.is_open(cache) and tier.is_open(overlay) and tier.is_open(f'{cache}.link')
    daemon.remove_nodes('disk')
    assert not tier.is_open(cache) and not tier.is_open(overlay)
    os.unlink(f'{cache}.link')


def test_two_servers_and_a_crash(chain):
    cache, overlay = chain
    other = f'{overlay}2'
    qemu_img('create', '-q', '-f', 'qcow2', '-b', cache, '-F', 'qcow2', other, MIB)
    servers = [subprocess.Popen(['qemu-io', '-f', 'qcow2', path], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE) for path in (overlay, other)]
    try:
        for server in servers:
            # An answer: all of the chain is open.
            server.stdin.write(b'length\n')
            server.stdin.flush()
            assert server.stdout.readline()
        assert tier.is_open(cache) and tier.is_open(overlay) and tier.is_open(other)
        servers[0].stdin.close()
        servers[0].wait()
        assert tier.is_open(cache) and not tier.is_open(overlay)
        servers[1].kill()
        servers[1].wait()
        assert not tier.is_open(cache)
    finally:
        for server in servers:
            server.kill()
            server.wait()
            server.stdin.close()
            server.stdout.close()


def test_a_raw_file_that_is_exported(place, daemons):
    """As the exporter has it: read-only, a raw node; idle and with a client."""
    path = f'{place}/file'
    with open(path, 'wb') as stream:
        stream.truncate(MIB)
    daemon = daemons()
    daemon.ensure_running()
    daemon.add_nodes(
        {'driver': 'file', 'node-name': 'f', 'filename': path, 'read-only': True},
        {'driver': 'raw', 'node-name': 'r', 'file': 'f', 'read-only': True})
    daemon.add_export('e', 'r')
    assert tier.is_open(path)
    qemu_img('compare', '-f', 'raw', '-F', 'raw', path,
             naming.nbd_unix_uri(daemon.listener.path, 'e'))
    assert tier.is_open(path)


def test_what_is_not_open(place):
    assert not tier.is_open(f'{place}/missing')
    path = f'{place}/file'
    with open(path, 'wb') as stream:
        stream.write(b'x')
        # Whoever merely reads or copies it locks nothing.
        assert not tier.is_open(path)


def test_memory_and_disk(directory, memory):
    assert tier.is_memory(memory) and not tier.is_memory(directory)
    os.symlink(memory, f'{directory}/link')
    assert tier.is_memory(f'{directory}/link')


def test_direct_io_is_what_the_kernel_says(place):
    """As dd finds it, which opens files the way QEMU does."""
    done = subprocess.run(['dd', 'if=/dev/zero', f'of={place}/file', 'bs=4096', 'count=1',
                           'oflag=direct'], capture_output=True)
    assert tier.direct_io_works(place) is (done.returncode == 0)
    assert os.listdir(place) in ([], ['file'])
    with pytest.raises(OSError):
        tier.direct_io_works(f'{place}/missing')
