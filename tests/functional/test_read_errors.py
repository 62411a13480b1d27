"""A base that rots while servers run from it, with the real exporter and gateway.

The storage service has read all of it when it came; a disk can fail later.
"""

import os
import subprocess
import threading

import nbd
import pytest
import rotten
from compute_host import boot, compare
from functional_tools import until
from storage_node import IMAGE, MIB, SIZE

from bootcache import errorlog
from bootcache.manifest import ImageState, Made, Manifest, Standing
from bootcache.storagedaemon import UnixListener
from bootcache.workingset import Extent
from glance_bootcache.db import start
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.images.readerrors import ReadErrors
from glance_bootcache.images.running import Running
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from nova_bootcache.storagenode import Remote
from tools import storedimages

OTHER = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
WATCH = {'quota': 64 * MIB, 'linger': 1, 'silence': 2, 'timeout': 100, 'marker': 'login:'}


@pytest.fixture
def service(node, storage_conf):
    """What looks after the exporter; ``once`` is called by the test."""
    store = storedimages.opened(storage_conf)
    tiers = StorageTiers(storage_conf, store, node.exporter,
                         LastUses(start.wait_for(storage_conf)))
    errors = ReadErrors(store, node.exporter, tiers, Running(1), CephBases(storage_conf))
    errors.store, errors.tiers = store, tiers
    yield errors
    errors.stop()
    tiers.stop()


@pytest.fixture
def serve(node, service):
    """Serves an image as the storage service does."""
    def serve(image_id, path, virtual_bytes=SIZE):
        manifest = storedimages.put(service.store, Manifest(image_id, Standing.DONE,
            made=Made(image_format='qcow2', virtual_bytes=virtual_bytes, stored_bytes=virtual_bytes,
            base_path=path, base_export=f'base-{image_id}')))
        node.exporter.ensure(manifest, None)
        return Remote.from_answer(image_id, node.exporter.describe(manifest))

    return serve


@pytest.fixture
def rotting(node, serve):
    """The node's image, compressed; spoiled where the exporter has not read yet."""
    rotten.make(node.base, SIZE, '-c')
    serve(IMAGE, node.base)
    rotten.spoil_data(node.base, 4 * MIB)
    return node.base


def taken_out(service):
    def look():
        service.once()
        return service.store.load(IMAGE).state is ImageState.FAILED
    until(look, 'the end of the rotten base')


def test_a_watched_boot_of_a_rotten_base_does_not_hold_up_others(hosts, node, service, serve,
                                                                 rotting, make_base, directory):
    """Its end has the gateway write the store's tables, which waits for reads that go on."""
    good = make_base(f'{directory}/store/good', 8 * MIB, [(0, 8 * MIB, 'data')], 'qcow2', seed=3)
    remote = serve(OTHER, good, 8 * MIB)
    host = hosts()
    host.service.watch = WATCH
    host.gateway.ensure_base(remote)
    other = nbd.NBD()
    other.set_export_name(f'base-{OTHER}')
    other.connect_unix(host.gateway.socket_path)
    assert boot(host, f'{directory}/one') is True
    guest = subprocess.Popen(['qemu-io', '-r', '-f', 'qcow2', '-c', 'read 0 64k', '-c',
                              'read 4M 4k', f'{directory}/one'], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    taken_out(service)
    # The guest's read ends, as it would without all this; nothing else waits.
    assert 'error' in guest.communicate(timeout=60)[0]
    until(lambda: not host.needs.is_booting(IMAGE), 'the end of the watch')
    assert host.gateway.daemon.answers()
    assert len(other.pread(MIB, 3 * MIB)) == MIB
    other.shutdown()
    assert host.gateway.ensure_base(remote) == f'base-{OTHER}'
    manifest = service.store.load(IMAGE)
    assert manifest.made.base_path == '' and 'error while reading' in manifest.reason
    assert manifest.state is ImageState.FAILED
    assert node.exports == {f'base-{OTHER}'}


def test_a_base_that_can_be_read_again_is_served_again(hosts, node, service, rotting, directory):
    """The look into it finds no fault: it was the disk, for a moment."""
    host = hosts()
    assert boot(host, f'{directory}/one') is True
    guest = subprocess.Popen(['qemu-io', '-r', '-f', 'qcow2', '-c', 'read 4M 4k',
                              f'{directory}/one'], stdout=subprocess.PIPE, text=True)
    mended = threading.Event()
    read, service._look_into = service._look_into, lambda *what: mended.wait(60) and read(*what)

    def look():
        service.once()
        return f'base-{IMAGE}' not in node.exports
    until(look, 'that it is taken out')
    rotten.make(rotting, SIZE, '-c')
    mended.set()
    until(lambda: f'base-{IMAGE}' in node.exports, 'that it is served again')
    assert 'read 4096/4096' in guest.communicate(timeout=60)[0]
    assert service.store.load(IMAGE).state is ImageState.SERVED
    compare(f'{directory}/one', node)


def test_a_cache_image_that_cannot_be_read_counts_as_damaged(node, service, monkeypatch):
    node.build(Extent(3 * MIB, MIB))
    manifest = storedimages.put(service.store, node.manifest)
    export = node.exporter.cache_export(manifest)
    service._take_out(export)
    assert service.tiers.is_damaged(manifest) and export not in node.exports
    assert f'base-{IMAGE}' in node.exports


def test_what_is_no_loop_is_left_alone(node, service, serve, rotting):
    """A single client, which does not connect again."""
    handle = nbd.NBD()
    handle.set_export_name(f'base-{IMAGE}')
    handle.connect_tcp('127.0.0.1', str(node.conf.export_port))
    with pytest.raises(nbd.Error):
        handle.pread(4096, 4 * MIB)
    service.once()
    assert f'base-{IMAGE}' in node.exports


def test_a_client_that_forges_a_log_takes_nothing_out(node, service, serve):
    """QEMU writes the names that clients ask for into a log as they are."""
    serve(IMAGE, node.base)
    lines = ('qemu-storage-daemon: Disconnect client, due to: Failed to send reply: reading from'
             f' file failed: Input/output error\n{errorlog.TRACE} Client requested export'
             f" 'base-{IMAGE}'\n")
    for _again in range(5):
        liar = nbd.NBD()
        liar.set_export_name(f"x'\n{lines * 12}{errorlog.TRACE} Client requested export 'y")
        with pytest.raises(nbd.Error):
            liar.connect_tcp('127.0.0.1', str(node.conf.export_port))
    with open(errorlog.apart(node.exporter.common.log_path), 'rb') as stream:
        names = stream.read()
    assert lines.encode() in names and errorlog.looping(names, names) == f'base-{IMAGE}'
    service.once()
    assert f'base-{IMAGE}' in node.exports
    assert service.store.load(IMAGE).state is ImageState.SERVED


def test_a_daemon_that_logs_no_events_is_started_all_the_same(daemons, directory, monkeypatch):
    """A script stands for a QEMU that was built without a log for them."""
    program = os.path.join(directory, 'program')
    with open(program, 'w') as stream:
        stream.write('#!/bin/sh\ncase "$*" in *,file=*) echo "error: --trace file=...: option not'
                     ' supported by the selected tracing backends" >&2; exit 1;; esac\n'
                     'exec qemu-storage-daemon "$@"\n')
    os.chmod(program, 0o755)
    daemon = daemons('old', UnixListener(f'{directory}/old.nbd'), binary=program,
                     trace=errorlog.traced_apart(directory, 'old'))
    daemon.ensure_running()
    assert daemon.answers() and not os.path.exists(f'{directory}/old.asked')
