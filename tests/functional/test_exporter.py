"""What a real exporter serves, and for how long: no commands for what it serves already."""

import contextlib
import dataclasses
import os
import signal
import uuid

import nbd
import pytest
from compute_host import boot, compare
from functional_tools import until
from storage_node import IMAGE

from bootcache import naming
from bootcache.cacheimage import Base
from bootcache.connectors import connectors
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from glance_bootcache.ceph.opening import OpenClones
from glance_bootcache.storage.exporter import Exporter

MIB = 1 << 20


@pytest.fixture
def exporter(storage_conf, directory):
    os.makedirs(f'{directory}/store')
    exporter = Exporter(storage_conf, OpenClones(storage_conf))
    exporter.start()
    yield exporter
    exporter.stop()


@pytest.fixture
def image(make_base, directory):
    base = make_base(f'{directory}/store/base', MIB, [(0, MIB, 'data')], 'qcow2')
    image_id = str(uuid.uuid4())
    return Manifest(image_id, Standing.DONE, made=Made(
        image_format='qcow2', virtual_bytes=MIB, stored_bytes=MIB, base_path=base,
        base_export=f'base-{image_id}'))


@pytest.fixture
def commands(monkeypatch):
    """The QMP commands that are sent."""
    from bootcache import monitor
    sent = []
    execute = monitor.Session.execute

    def spy(session, command, /, **arguments):
        sent.append(command)
        return execute(session, command, **arguments)

    monkeypatch.setattr(monitor.Session, 'execute', spy)
    return sent


@contextlib.contextmanager
def connected(storage_conf, export):
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_tcp(storage_conf.bootcache.export_host, str(storage_conf.bootcache.export_port))
    try:
        yield handle
    finally:
        handle.shutdown()


def served(exporter):
    return set(exporter._daemon.exports())


def ensure_stored(exporter, image):
    """As Exporters.ensure_stored."""
    export = f'stored-{image.image_id}'
    exporter.ensure_file(export, lambda: Base(image.made.base_path, 'raw', 0),
                         naming.node_name('s', image.image_id))


def test_who_copies_a_stored_file_is_cut_off_and_who_reads_the_base_is_not(
        exporter, image, storage_conf):
    """As where the image was deactivated: nobody gets all of it, and servers run on."""
    exporter.ensure(image, None)
    ensure_stored(exporter, image)
    base, stored = image.made.base_export, f'stored-{image.image_id}'
    with connected(storage_conf, base) as running:
        copying = nbd.NBD()
        copying.set_export_name(stored)
        copying.connect_tcp(storage_conf.bootcache.export_host,
                            str(storage_conf.bootcache.export_port))
        assert copying.pread(512, 0)
        exporter.cut_off(stored)
        with pytest.raises(nbd.Error):
            copying.pread(512, 65536)
        assert len(running.pread(65536, 0)) == 65536
        assert served(exporter) == {base}


def test_what_is_served_costs_no_command(exporter, image, commands):
    """A storm asks for one image hundreds of times a second, among a thousand that are served."""
    exporter.ensure(image, None)
    ensure_stored(exporter, image)
    assert 'block-export-add' in commands
    commands.clear()
    for _boot in range(100):
        exporter.ensure(image, None)
        ensure_stored(exporter, image)
    assert commands == []


def test_serving_one_more_asks_for_nothing_of_all_others(exporter, image, commands):
    """Of thousands that takes a tenth of a second, each time one of them is served."""
    exporter.ensure(image, None)
    other = str(uuid.uuid4())
    cache = CacheInfo('cache', 1, 1, 1, 'a' * 64, MIB, 65536, 1, '', 0.1, 1)
    commands.clear()
    exporter.ensure(dataclasses.replace(image, image_id=other).making(
        base_export=f'base-{other}', cache_image=cache), image.made.base_path)
    assert set(commands) == {'block-export-add', 'blockdev-add'} and len(served(exporter)) == 3


def test_a_service_that_adopts_an_exporter_knows_what_it_serves(exporter, image, storage_conf,
                                                                commands):
    exporter.ensure(image, None)
    later = Exporter(storage_conf, OpenClones(storage_conf))
    assert later.start() is False
    commands.clear()
    later.ensure(image, None)
    assert commands == []


def test_an_exporter_that_died_is_noticed_without_a_look(exporter, image):
    exporter.ensure(image, None)
    pid = exporter._daemon.pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: exporter._daemon.pid() is None, 'the end of the exporter')
    exporter.ensure(image, None)
    assert exporter._daemon.pid() not in (pid, None)
    assert served(exporter) == {f'base-{image.image_id}'}


def test_one_that_another_process_started_is_noticed(exporter, image, storage_conf):
    exporter.ensure(image, None)
    exporter._daemon.stop()
    other = Exporter(storage_conf, OpenClones(storage_conf))
    other.start()
    exporter.ensure(image, None)
    assert served(exporter) == {f'base-{image.image_id}'}


def test_upkeep_finds_out_what_is_not_served_any_more(exporter, image):
    exporter.ensure(image, None)
    exporter._daemon.remove_export(f'base-{image.image_id}', disconnect=False)
    assert exporter.start() is False
    exporter.ensure(image, None)
    assert served(exporter) == {f'base-{image.image_id}'}


def test_what_nobody_asks_for_goes_and_comes_back(exporter, image, storage_conf):
    exporter.ensure(image, None)
    ensure_stored(exporter, image)
    exporter.withdraw_idle(image.image_id.__eq__, 3600)
    assert len(served(exporter)) == 2, 'it was asked for just now'
    exporter.withdraw_idle(image.image_id.__eq__, 0)
    assert served(exporter) == set() and exporter._daemon.nodes() == set()
    exporter.ensure(image, None)
    with connected(storage_conf, f'base-{image.image_id}') as handle:
        assert len(handle.pread(MIB, 0)) == MIB


def test_what_a_host_is_connected_to_stays(exporter, image, storage_conf):
    exporter.ensure(image, None)
    with connected(storage_conf, f'base-{image.image_id}') as handle:
        exporter.withdraw_idle(image.image_id.__eq__, 0)
        assert len(handle.pread(MIB, 0)) == MIB
        assert served(exporter) == {f'base-{image.image_id}'}
    until(lambda: (exporter.withdraw_idle(image.image_id.__eq__, 0), served(exporter))[1] == set(),
          'the end of the export after its client')


def test_who_asks_while_an_idle_export_goes_finds_it(exporter, image, monkeypatch):
    """Between the decision and the act: the one that has asked is answered with what is there."""
    exporter.ensure(image, None)
    exports = exporter._exports

    def asked_meanwhile():
        found = exports()
        exporter._is_served(f'base-{image.image_id}')
        return found

    monkeypatch.setattr(exporter, '_exports', asked_meanwhile)
    exporter.withdraw_idle(image.image_id.__eq__, 0)
    assert served(exporter) == {f'base-{image.image_id}'}
    monkeypatch.undo()
    assert exporter._is_served(f'base-{image.image_id}')


def test_an_adopted_export_that_nobody_asks_for_goes_after_a_while(exporter, image, storage_conf):
    exporter.ensure(image, None)
    later = Exporter(storage_conf, OpenClones(storage_conf))
    later.start()
    later.withdraw_idle(image.image_id.__eq__, 3600)
    assert served(exporter) == {f'base-{image.image_id}'}, 'whoever needs it has not said so yet'
    later.withdraw_idle(image.image_id.__eq__, 0)
    assert served(exporter) == set()


def test_a_host_that_needs_a_base_again_has_it_served(hosts, node, directory, monkeypatch):
    """A stopped server's base left its gateway, and the exporter after a while; it is started."""
    host = hosts()
    node.serve()
    disk = f'{directory}/disk'
    assert boot(host, disk)
    assert host.gateway.remove_base(IMAGE)
    # As upkeep does it two minutes later.
    monkeypatch.setattr(connectors, '_FRESH_SECONDS', 0)
    host.connections.reconcile({})

    def is_withdrawn():
        # It may hear a little later that its reader has left.
        node.exporter.withdraw_idle({IMAGE: ()}, 0)
        return f'base-{IMAGE}' not in node.exports

    until(is_withdrawn, 'nobody reads it')
    answer = node.answer

    def asked():
        node.serve()
        return answer()

    monkeypatch.setattr(node, 'answer', asked)
    host.chains.keep_chain(IMAGE, disk)
    assert f'base-{IMAGE}' in node.exports
    compare(disk, node)
    host.holdings.exchange()
    assert host.service.used[-1][1].needs == {IMAGE}
