"""What exporters of single hosts have to do with each other, and with what is made: nothing."""

import glob
import os
import shutil
import time
import types
import uuid

import pytest
from compute_host import boot, compare
from encrypted import storage_conf as tls_conf  # noqa: F401
from functional_tools import frozen, reached, until
from storage_node import IMAGE, MIB
from test_own_exporters import SET, one, other, runs, storage_conf  # noqa: F401
from test_rebuilding import Rebuilding
from tiers_house import memory as memory  # a fixture

from bootcache import exception
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from glance_bootcache.db import start
from glance_bootcache.storage import exporter, exporters, serving
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages

# ruff: noqa: F811


def test_what_is_made_is_served_to_nobody_before_it_is_asked_for(node, one, storage_conf, directory,
                                                                  make_base):
    """Nor by the one of all hosts, where who has the certificate of any could list it."""
    store = storedimages.opened(storage_conf)
    tiers = StorageTiers(storage_conf, store, node.exporter,
                         LastUses(start.wait_for(storage_conf)))
    rebuilding = Rebuilding(types.SimpleNamespace(
        conf=storage_conf, store=store, exporter=node.exporter, tiers=tiers),
        make_base(f'{directory}/made', 4 * MIB, [(0, 4 * MIB, 'data')]))
    node.manifest = rebuilding.build()
    assert node.manifest.standing is Standing.DONE and node.manifest.made.cache_image
    assert runs(node) == set()
    answer = node.exporter.common.describe(node.manifest)
    one.gets_nothing(answer, answer['base_export'])
    node.cache_path = store.cache_path(node.manifest)
    assert one.lists(one.asks()) == {answer[name] for name in ('base_export', 'cache_export')}
    tiers.stop()


def test_one_that_hangs_disturbs_no_image_but_those_that_it_serves(node, one, other, make_base,
                                                                  directory, monkeypatch, caplog):
    monkeypatch.setattr(exporter, '_PATIENCE_SECONDS', 1)
    exporters = node.exporter
    exporters.stop()
    one.asks()
    hangs = exporters._of(one.certificate)
    # Of an image that the other one alone has asked for.
    base = make_base(f'{directory}/another', MIB, [(0, MIB, 'data')])
    image_id = str(uuid.uuid4())
    image = Manifest(image_id, Standing.DONE, made=Made(
        image_format='raw', virtual_bytes=MIB, base_path=base, base_export=f'base-{image_id}',
        cache_image=CacheInfo('cache.qcow2', MIB, MIB, 1, 'ab' * 32, MIB, 4096, MIB, '', 0.1, 1)))
    whose = exporters.know(other.name, other.certificate)

    def ensure():
        exporters.ensure(image, base, (whose,))
        return exporters._of(whose)._look()

    with frozen(hangs._daemon.pid()):
        # What upkeep does each round is told of once.
        caplog.clear()
        for _round in range(3):
            exporters.start()
            serving.serve_again({IMAGE: node.manifest}.get, [f'base-{IMAGE}'], lambda manifest:
                                exporters.ensure(manifest, None, (one.certificate,)))
        assert 1 <= sum(record.levelname == 'WARNING' for record in caplog.records) <= 2
        with pytest.raises(exception.StorageDaemonError):
            exporters.withdraw_idle({IMAGE: ()}, -1)
        assert len(ensure()) == 2
        exporters.switch_cache(image, shutil.copyfile(base, f'{directory}/copy'))
        with exporters.withdrawn(image) as gone:
            assert gone
        exporters.withdraw_idle({image.image_id: ()}, -1)
        assert not exporters._of(whose)._look() and len(ensure()) == 2
        assert exporters.retire(image.image_id, with_base=True)
        ensure()
        # Of what both may have it is told that one cannot be asked, after the other one was.
        exporters.ensure(node.manifest, None, (whose,))
        with pytest.raises(exception.StorageDaemonError):
            exporters.cut_off(f'base-{IMAGE}')
        assert not any(IMAGE in export for export in exporters._of(whose)._look())
        exporters.retire(image.image_id, with_base=True)
        # What it serves is not known, and who needs it does not wait for it.
        assert exporters.untold() == {one.certificate}
        exporters.end_unused(-1)
        assert not exporters._of(whose).runs and hangs.runs
    # It goes on, and serves what it did.
    until(hangs._daemon.answers, 'its answer')
    one.connects(one.asks())


def test_what_only_some_of_them_could_serve_from_memory_is_served_from_disk(
        node, one, other, storage_conf, memory, monkeypatch):
    monkeypatch.setattr(exporter, '_PATIENCE_SECONDS', 1)
    storage_conf.set_override('storage_memory_directory', memory, 'bootcache')
    storage_conf.set_override('storage_memory_quota', '64MiB', 'bootcache')
    store = storedimages.opened(storage_conf)
    os.makedirs(store.directory(IMAGE))
    node.build(*SET)
    path = shutil.copy(node.cache_path, store.path(IMAGE, node.manifest.made.cache_image.file))
    storedimages.put(store, node.manifest)
    node.cache_path = path
    tiers = StorageTiers(storage_conf, store, node.exporter,
                         LastUses(start.wait_for(storage_conf)))
    one.asks(), other.asks()
    first, second = (node.exporter._of(host.certificate) for host in (one, other))
    with frozen(second._daemon.pid()):
        tiers.promote(node.manifest)
        tiers._worker.shutdown(wait=True)
        assert set(first.cache_places().values()) == {path} and os.listdir(memory) == []
    until(second._daemon.answers, 'its answer')
    tiers.stop()


def test_renewed_certificates_take_few_exporters_away_at_a_time(node, one, other, ca, monkeypatch):
    """Each serves again what it served before the next one is ended."""
    monkeypatch.setattr(exporters, '_AT_ONCE', 1)
    node.build(*SET)
    node.exporter.stop()
    told = {host.certificate: host.asks() for host in (one, other)}
    handles = {}
    for host in one, other:
        handles[host.certificate] = host.client(told[host.certificate])
        handles[host.certificate].set_export_name(told[host.certificate]['base_export'])
        handles[host.certificate].opt_go()
    ca.issue('storage-1', ['127.0.0.1'])
    left = {one.certificate, other.certificate}

    def serve(exports, certificate):
        assert exports and not node.exporter._of(certificate).runs
        left.remove(certificate)
        assert all(handles[name].pread(512, 0) for name in left), 'the others are read from'
        serving.serve_again({IMAGE: node.manifest}.get, exports, lambda manifest:
                            node.exporter.ensure(manifest, node.cache_path, (certificate,)))
        host = next(host for host in (one, other) if host.certificate == certificate)
        assert host.lists(told[certificate]) == {told[certificate][name] for name in (
            'base_export', 'cache_export')}

    # On a busy machine one goes on for a round, as its certificates were not checked in time.
    until(lambda: (node.exporter.start(serve), not left)[-1], 'the renewal of all')
    # They are right now.
    node.exporter.start(lambda exports, certificate: pytest.fail(f'{exports} go again'))
    for host in one, other:
        host.connects(told[host.certificate])


def files_of(node):
    return sorted(os.path.basename(path) for path in glob.glob(f'{node.conf.run_dir}/exporter-*'))


def test_the_file_that_tells_of_hosts_is_lost_while_their_exporters_run(
        node, one, other, storage_conf, hosts, directory):
    """Those would serve on without end, whatever is withdrawn, at ports of others."""
    host = hosts(tls_directory=one.directory)
    node.build(*SET)
    node.exporter.stop()
    others = other.asks()
    host.service.frozen = told = one.asks()
    assert boot(host, f'{directory}/disk')
    node.exporter.end_unused(-1)  # It writes the file.
    os.unlink(f'{directory}/clients.json')
    node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    assert not node.exporter.start()
    one.gets_nothing(told, told['base_export'])
    other.gets_nothing(others, others['base_export'])
    assert files_of(node) == []
    # The first one that asks has the first port now, which was the other one's.
    host.service.frozen = again = one.asks()
    assert again['server'] == others['server'] != told['server']
    one.connects(again)
    other.gets_nothing(again, again['base_export'])
    other.connects(other.asks())
    # What its servers read waits for that.
    reached(host, IMAGE)
    compare(f'{directory}/disk', node)


def test_of_hosts_that_have_left_no_file_stays(node, one, other, monkeypatch):
    node.exporter.stop()
    one.asks()
    node.exporter._clients._clock = lambda: time.time() + 8 * 86400
    stays = node.exporter._clients.find(one.certificate).daemon
    other.asks()
    node.exporter.end_unused(3600)
    node.exporter.start()
    assert f'{stays}.log' in files_of(node), 'it runs'
    node.exporter._exporter_of(node.exporter._clients.find(one.certificate)).stop()
    node.exporter.end_unused(3600)
    node.exporter.start()
    kept = node.exporter._clients.find(other.certificate).daemon
    assert {name.partition('.')[0] for name in files_of(node)} == {kept}
    assert {client.certificate for client in node.exporter._own} == {other.certificate}
