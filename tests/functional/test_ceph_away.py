"""A real Ceph that goes away, shuts out who reads, or gives errors, while bases in it are read."""

import json
import os
import signal
import threading
import uuid

import nbd
import pytest
from functional_tools import frozen, qemu_version, until
from glance_rbd import MIB, SIZE, connected, content_of, go_on, obtained, served

from bootcache import exception
from bootcache.ceph import places
from bootcache.ceph.rbd import Rbd
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache import startchecks
from glance_bootcache.ceph import opening
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.storage.exporters import Exporters


@pytest.mark.xfail(qemu_version() >= 10, raises=exception.StorageDaemonBusy, strict=True,
                   reason='QEMU 10 adds no node that has a child while any read waits')
def test_ceph_goes_away_under_readers_and_comes_back(ceph_conf, glance_store, ceph_image,
                                                     ceph_exporter, make_base, directory):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    file = make_base(f'{directory}/file', MIB, [(0, MIB, 'data')])
    image_id = str(uuid.uuid4())
    other = Manifest(image_id, Standing.DONE, made=Made(
        base_path=file, base_export=f'base-{image_id}', image_format='raw', virtual_bytes=MIB))
    reader, read = connected(ceph_conf, manifest.made.base_export), []
    thread = threading.Thread(target=lambda: read.append(reader.pread(MIB, 9 * MIB)))
    glance_store.ceph.end('osd.0')
    try:
        thread.start()
        # What is no clone is served meanwhile, also for the first time, and goes again.
        ceph_exporter.ensure(other, None)
        assert served(ceph_conf, other.made.base_export) == content_of(file)
        assert ceph_exporter.retire(other.image_id, with_base=True)
        assert ceph_exporter.common._daemon.nodes()
        assert thread.is_alive() and not read
    finally:
        glance_store.ceph.start_osd(0)
    thread.join(120)
    assert read == [content_of(path)[9 * MIB:10 * MIB]]
    reader.shutdown()


def test_the_daemon_that_has_clones_open_is_killed(ceph_conf, ceph_image, ceph_exporter):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    reader = connected(ceph_conf, manifest.made.base_export)
    assert reader.pread(4096, 0) == content_of(path)[:4096]
    daemon = ceph_exporter._clones._daemon
    os.kill(daemon.pid(), signal.SIGKILL)
    until(lambda: daemon.pid() is None, 'the end of the daemon')
    read = []
    thread = threading.Thread(target=lambda: read.append(reader.pread(MIB, 9 * MIB)))
    thread.start()
    # As upkeep does it.
    ceph_exporter.keep_open([manifest])
    thread.join(120)
    assert read == [content_of(path)[9 * MIB:10 * MIB]]
    reader.shutdown()


def test_a_clone_that_is_gone_keeps_no_other_one_closed(ceph_conf, ceph_image, ceph_exporter):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    reader = connected(ceph_conf, manifest.made.base_export)
    daemon = ceph_exporter._clones._daemon
    os.kill(daemon.pid(), signal.SIGKILL)
    until(lambda: daemon.pid() is None, 'the end of the daemon')
    gone = [manifest.making(base_path=f'{manifest.made.base_path[:-8]}{number:08x}')
            for number in range(2)]
    with pytest.raises(exception.StorageDaemonError, match='No such file'):
        ceph_exporter._clones.keep([gone[0], manifest, gone[1]])
    assert reader.pread(MIB, 9 * MIB) == content_of(path)[9 * MIB:10 * MIB]
    reader.shutdown()


def test_the_exporter_is_killed_as_well(ceph_conf, ceph_image, ceph_exporter):
    """While Ceph is asked for the clone again nobody waits who wants something else of it."""
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    for daemon in ceph_exporter.common._daemon, ceph_exporter._clones._daemon:
        os.kill(daemon.pid(), signal.SIGKILL)
        until(lambda daemon=daemon: daemon.pid() is None, 'the end of the daemon')
    # Locks that are taken out of their turn fail the test.
    ceph_exporter.ensure(manifest, None)
    assert served(ceph_conf, manifest.made.base_export) == content_of(path)


def test_a_storage_service_that_starts_again_finds_what_is_open(ceph_conf, ceph_image,
                                                                ceph_exporter, directory):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    pid = ceph_exporter._clones._daemon.pid()
    later = Exporters(ceph_conf, f'{directory}/clients.json')
    assert not later.start()
    later.keep_open([manifest])
    later.ensure(manifest, None)
    assert served(ceph_conf, manifest.made.base_export) == content_of(path)
    assert later._clones._daemon.pid() == pid


def test_while_ceph_is_away(ceph_conf, glance_store, ceph_image, ceph_exporter, directory, caplog):
    _path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    bases = CephBases(ceph_conf)
    with frozen(glance_store.ceph.pids()['mon.a']):
        assert bases.obtain(facts, go_on, lambda count: None) is None
        assert 'is Ceph up?' in caplog.text
        # Nobody asks a second time.
        assert bases.obtain(facts, go_on, lambda count: None) is None
        assert 'Ceph did not answer just now' in caplog.text
        with pytest.raises(exception.StorageDaemonError, match='cannot be opened'):
            ceph_exporter.ensure(manifest, None)
        with pytest.raises(exception.StorageDaemonError, match='did not answer just now'):
            ceph_exporter.ensure(manifest, None)
        # The exporter itself was not told to open it, and serves what it has.
        assert ceph_exporter.common._daemon.answers()
        startchecks.check_ceph(ceph_conf)
        assert 'bases are downloaded until it does' in caplog.text
    commands = Rbd(str(glance_store.ceph.conf), 'bootcache')
    until(lambda: commands.clones('bootcache', 'storage'), 'an answer of Ceph')
    Exporters(ceph_conf, f'{directory}/clients.json').ensure(manifest, None)


def test_ceph_shuts_the_daemon_out(ceph_conf, glance_store, ceph_image, ceph_exporter):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    clone = places.clone_of(manifest.made.base_path)
    reader = connected(ceph_conf, manifest.made.base_export)
    assert reader.pread(4096, 0) == content_of(path)[:4096]
    status = json.loads(glance_store.ceph.run('rbd', 'status', '--format', 'json',
                                        f'bootcache/storage/{clone.name}'))
    for watcher in status['watchers']:
        glance_store.ceph.run('ceph', 'osd', 'blocklist', 'add', watcher['address'])
    read = []
    thread = threading.Thread(target=lambda: read.append(reader.pread(MIB, 9 * MIB)))
    thread.start()
    # As those do that look each second.
    until(ceph_exporter.mend, 'the end of the daemon')
    ceph_exporter.keep_open([manifest])
    thread.join(120)
    assert read == [content_of(path)[9 * MIB:10 * MIB]]
    assert not ceph_exporter.mend()
    reader.shutdown()


def test_a_clone_that_cannot_be_read_disturbs_no_other(ceph_conf, glance_store, ceph_image,
                                                       ceph_exporter, make_base, directory,
                                                       monkeypatch):
    monkeypatch.setattr(opening, '_RECONNECT_SECONDS', 5)
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    second = make_base(f'{directory}/second', MIB, [(0, MIB, 'data')])
    other_facts = glance_store.add(str(uuid.uuid4()), second)
    other = obtained(ceph_conf, other_facts)
    ceph_exporter.ensure(other, None)
    daemon = ceph_exporter._clones._daemon
    name = places.clone_of(manifest.made.base_path).name
    node = daemon.exports()[name]
    # In Ceph's place something that gives errors.
    daemon.remove_export(name, disconnect=True)
    daemon.remove_nodes(node)
    daemon.add_nodes({'driver': 'blkdebug', 'node-name': node, 'read-only': True,
                      'image': {'driver': 'null-co', 'size': SIZE, 'read-only': True},
                      'inject-error': [{'event': 'none', 'iotype': 'read', 'errno': 5,
                                        'once': False}]})
    daemon.add_export(name, node)
    pid = daemon.pid()
    reader, failed = connected(ceph_conf, manifest.made.base_export), []

    def read():
        try:
            reader.pread(4096, 0)
        except nbd.Error as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: ceph_exporter.mend() or name not in daemon.exports(), 'the end of the export')
    ceph_exporter.keep_open([manifest, other])
    assert name not in daemon.exports() and daemon.pid() == pid
    assert served(ceph_conf, other.made.base_export) == content_of(second)
    # Its readers get the error when the exporter has waited for it.
    thread.join(180)
    assert failed
    # Whoever needs it then has it opened again.
    ceph_exporter.cut_off(manifest.made.base_export)
    ceph_exporter.ensure(manifest, None)
    assert served(ceph_conf, manifest.made.base_export) == content_of(path)
    glance_store.delete(other_facts.image_id)
