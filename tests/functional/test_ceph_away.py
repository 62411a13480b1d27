"""A real Ceph that goes away, shuts out who reads, or gives errors, while bases in it are read."""

import contextlib
import json
import os
import signal
import threading
import uuid
from concurrent import futures

import pytest
from functional_tools import frozen, qemu_version, until
from glance_rbd import MIB, SIZE, connected, content_of, files, go_on, obtained, served

from bootcache import exception
from bootcache.ceph import places
from bootcache.ceph.rbd import Rbd
from bootcache.connectors import connector, watch
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache import startchecks
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.storage.exporters import Exporters


def connector_of(exporters, manifest):
    """Return the daemon of the connector by which the exporters read a base."""
    connectors = exporters._clones._connectors
    return connector.daemon(connectors._directory, connectors.name_of(
        places.clone_of(manifest.made.base_path).name))


def kill(daemon):
    os.kill(daemon.pid(), signal.SIGKILL)
    until(lambda: daemon.pid() is None, 'the end of the daemon')


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
    second_facts = glance_store.add(str(uuid.uuid4()), file)
    second = obtained(ceph_conf, second_facts)
    pid = connector_of(ceph_exporter, manifest).pid()
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
        # Whoever wants another clone, and upkeep, leave those be that wait.
        with pytest.raises(exception.StorageDaemonError, match='cannot be opened'):
            ceph_exporter.ensure(second, None)
        ceph_exporter.keep_open([manifest])
        assert connector_of(ceph_exporter, manifest).pid() == pid
        assert thread.is_alive() and not read
    finally:
        glance_store.ceph.start_osd(0)
    thread.join(120)
    assert read == [content_of(path)[9 * MIB:10 * MIB]]
    reader.shutdown()
    glance_store.delete(second_facts.image_id)


def test_clones_that_are_opened_at_the_same_time_share_a_connector(ceph_conf, glance_store,
                                                                  ceph_image, ceph_exporter,
                                                                  make_base, directory):
    path, facts = ceph_image
    second = make_base(f'{directory}/second', MIB, [(0, MIB, 'data')])
    others = [glance_store.add(str(uuid.uuid4()), second) for _number in range(3)]
    manifests = [obtained(ceph_conf, each) for each in (facts, *others)]
    with futures.ThreadPoolExecutor(len(manifests)) as workers:
        list(workers.map(lambda manifest: ceph_exporter.ensure(manifest, None), manifests))
    assert len({connector_of(ceph_exporter, manifest).pid() for manifest in manifests}) == 1
    for manifest, file in zip(manifests, (path, second, second, second), strict=True):
        assert served(ceph_conf, manifest.made.base_export) == content_of(file)
    # One that another clone has had started again does not have these open.
    kill(connector_of(ceph_exporter, manifests[0]))
    clones = ceph_exporter._clones
    for manifest in manifests:
        clones.base(manifest)
        clones._watch.check(places.clone_of(manifest.made.base_path).name)
    for each in others:
        glance_store.delete(each.image_id)


def test_a_connector_that_is_frozen_is_replaced(ceph_conf, ceph_image, ceph_exporter):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    reader, read = connected(ceph_conf, manifest.made.base_export), []
    before = connector_of(ceph_exporter, manifest)
    pid = before.pid()
    os.kill(pid, signal.SIGSTOP)
    thread = threading.Thread(target=lambda: read.append(reader.pread(MIB, 9 * MIB)))
    thread.start()
    thread.join(120)
    assert read == [content_of(path)[9 * MIB:10 * MIB]]
    assert before.pid() is None and connector_of(ceph_exporter, manifest).pid() != pid
    # As for an exporter that is to have it for the first time.
    os.kill(connector_of(ceph_exporter, manifest).pid(), signal.SIGSTOP)
    ceph_exporter._clones.base(manifest)
    assert reader.pread(MIB, 8 * MIB) == content_of(path)[8 * MIB:9 * MIB]
    reader.shutdown()


def test_the_connector_is_killed(ceph_conf, ceph_image, ceph_exporter):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    reader = connected(ceph_conf, manifest.made.base_export)
    assert reader.pread(4096, 0) == content_of(path)[:4096]
    kill(connector_of(ceph_exporter, manifest))
    read = []
    thread = threading.Thread(target=lambda: read.append(reader.pread(MIB, 9 * MIB)))
    thread.start()
    thread.join(120)
    assert read == [content_of(path)[9 * MIB:10 * MIB]]
    reader.shutdown()


def test_a_clone_that_is_gone_keeps_no_other_one_closed(ceph_conf, ceph_image, ceph_exporter):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    reader = connected(ceph_conf, manifest.made.base_export)
    kill(connector_of(ceph_exporter, manifest))
    gone = [manifest.making(base_path=f'{manifest.made.base_path[:-8]}{number:08x}')
            for number in range(2)]
    ceph_exporter._clones.keep([gone[0], manifest, gone[1]])
    assert reader.pread(MIB, 9 * MIB) == content_of(path)[9 * MIB:10 * MIB]
    reader.shutdown()


def test_the_exporter_is_killed_as_well(ceph_conf, ceph_image, ceph_exporter):
    """While Ceph is asked for the clone again nobody waits who wants something else of it."""
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    kill(ceph_exporter.common._daemon)
    kill(connector_of(ceph_exporter, manifest))
    # Locks that are taken out of their turn fail the test.
    ceph_exporter.ensure(manifest, None)
    assert served(ceph_conf, manifest.made.base_export) == content_of(path)


def test_a_storage_service_that_starts_again_finds_what_is_open(ceph_conf, ceph_image,
                                                                ceph_exporter, directory):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    pid = connector_of(ceph_exporter, manifest).pid()
    later = Exporters(ceph_conf, f'{directory}/clients.json')
    assert not later.start()
    later.keep_open([manifest])
    later.ensure(manifest, None)
    assert served(ceph_conf, manifest.made.base_export) == content_of(path)
    assert connector_of(later, manifest).pid() == pid


def test_while_ceph_is_away(ceph_conf, glance_store, ceph_image, ceph_exporter, directory, caplog):
    _path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    bases, rows = CephBases(ceph_conf), files(ceph_conf)
    with frozen(glance_store.ceph.pids()['mon.a']):
        assert bases.obtain(facts, rows, go_on, lambda count: None) is None
        assert 'is Ceph up?' in caplog.text
        # Nobody asks a second time.
        assert bases.obtain(facts, rows, go_on, lambda count: None) is None
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

    def answers():
        # A monitor that stood still for long takes a while.
        with contextlib.suppress(exception.BootcacheError):
            return commands.clones('bootcache', 'storage')

    until(answers, 'an answer of Ceph')
    Exporters(ceph_conf, f'{directory}/clients.json').ensure(manifest, None)


def test_ceph_shuts_the_connector_out(ceph_conf, glance_store, ceph_image, ceph_exporter):
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
    thread.join(120)
    assert read == [content_of(path)[9 * MIB:10 * MIB]]
    reader.shutdown()


def test_a_clone_that_one_connector_cannot_read_is_read_by_another(
        ceph_conf, glance_store, ceph_image, ceph_exporter, make_base, directory, monkeypatch):
    # On a busy machine it may have been exchanged already.
    monkeypatch.setattr(watch, '_SETTLED_SECONDS', 0.0)
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    second = make_base(f'{directory}/second', MIB, [(0, MIB, 'data')])
    other_facts = glance_store.add(str(uuid.uuid4()), second)
    other = obtained(ceph_conf, other_facts)
    ceph_exporter.ensure(other, None)
    daemon = connector_of(ceph_exporter, manifest)
    name = places.clone_of(manifest.made.base_path).name
    assert connector_of(ceph_exporter, other).pid() == daemon.pid()
    # In Ceph's place something that gives errors.
    entry = f'c{connector.digest(name)}-0'
    daemon.remove_export(entry, disconnect=True)
    daemon.remove_nodes(f'{entry[:25]}-0')
    with daemon.session() as session:
        session.execute('blockdev-add', **{
            'driver': 'blkdebug', 'node-name': f'{entry[:25]}-0', 'read-only': True,
            'image': {'driver': 'null-co', 'size': SIZE, 'read-only': True},
            'inject-error': [{'event': 'none', 'iotype': 'read', 'errno': 5, 'once': False}]})
        session.execute('block-export-add', type='nbd', id=entry, node_name=f'{entry[:25]}-0',
                        name=name)
    pid = daemon.pid()
    reader, read = connected(ceph_conf, manifest.made.base_export), []
    thread = threading.Thread(target=lambda: read.append(reader.pread(4096, 0)))
    thread.start()
    thread.join(120)
    assert read == [content_of(path)[:4096]]
    # Of the other one nobody notices anything.
    assert connector_of(ceph_exporter, other).pid() == pid
    assert served(ceph_conf, other.made.base_export) == content_of(second)
    glance_store.delete(other_facts.image_id)
