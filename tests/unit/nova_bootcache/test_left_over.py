"""What an earlier process left in a gateway that was busy when this one began is ended later.

The gateway is a stand-in: names of nodes and exports; tests/functional has a real one.
"""

import dataclasses
import os
import types

import pytest
from oslo_config import cfg

from bootcache import exception, growingstore, naming
from bootcache.tier import Medium
from nova_bootcache import conf as nova_conf
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.gateway import graph
from nova_bootcache.gateway.graph import GraphAction
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def ended():
    """What was ended, in order."""
    return []


@pytest.fixture
def host(tmp_path, monkeypatch, ended):
    monkeypatch.setattr('nova_bootcache.asking.client.StorageClient', lambda conf: None)
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    conf.set_override('gateway_run_dir', str(tmp_path / 'run'), 'bootcache')
    conf.set_override('gateway_socket', str(tmp_path / 'run' / 's'), 'bootcache')
    host = ComputeHost(conf, str(tmp_path / 'cache'))
    host.busy, host.present, host.exported = False, set(), {}
    host.refused = set()

    def answer(value):
        if host.busy:
            raise exception.StorageDaemonBusy('gateway: busy')
        return value

    daemon = host.gateway.daemon
    monkeypatch.setattr(host.gateway, 'start', lambda: answer(False))
    monkeypatch.setattr(daemon, 'node_files', lambda: answer(dict.fromkeys(host.present, '')))
    monkeypatch.setattr(daemon, 'exports', lambda: answer(dict(host.exported)))
    monkeypatch.setattr(daemon, 'remove_export',
                        lambda export, disconnect: ended.append(('recording', export)))
    monkeypatch.setattr(daemon, 'remove_nodes', lambda *names: None)

    def change(image_id, **wishes):
        if image_id in host.refused:
            raise exception.StorageDaemonError('refused')
        there = host.gateway.present([image_id])[image_id]
        ended.extend((image_id, *step) for step in graph.reconcile(
            dataclasses.replace(graph.as_it_is(there), **wishes), there))

    def end_arrival_job(image_id, seconds):
        ended.append((image_id, 'job', host.needs.deciding.of(image_id)._lock._is_owned()))

    monkeypatch.setattr(host.gateway, 'change', change)
    monkeypatch.setattr(host.gateway, 'end_arrival_job', end_arrival_job)
    host.cache.prepare()
    for image in (IMAGE, OTHER):
        CacheEntry(Remote(image, '10.0.0.1', 10810, f'base-{image}'), None, 'ab', 1 << 20).save(
            f'{host.cache.path(image)}.json')
    yield host
    host.stop()


GROWTH_ENDS = [(IMAGE, GraphAction.READ, graph.STORE), (IMAGE, GraphAction.DELETE, graph.FILTER)]
# No chain waits while the job is ended.
JOB_ENDS = [(OTHER, 'job', False)]
ARRIVAL_ENDS = [*JOB_ENDS, (OTHER, GraphAction.CHECK_JOB, ''),
                (OTHER, GraphAction.READ, graph.REMOTE), (OTHER, GraphAction.DELETE, graph.COME)]
RECORDING_ENDS = [('recording', 'recording-server')]
ALL = GROWTH_ENDS + ARRIVAL_ENDS + RECORDING_ENDS


def leave(host):
    """What a process leaves that was killed: a store that grows, an arrival, a recording."""
    base = graph.TOP, graph.REMOTE
    host.present = {naming.node_name(kind, IMAGE) for kind in (*base, *graph.GROWING)}
    host.present |= {naming.node_name(kind, OTHER) for kind in (*base, graph.COME)}
    host.exported = {f'base-{IMAGE}': 'g-x', f'base-{OTHER}': 'g-y',
                     'recording-server': naming.node_name(growingstore.FILTER, 'server')}


def key(what):
    return str(what)


def test_it_is_ended_at_start(host, ended):
    leave(host)
    host.start('host-1')
    assert sorted(ended, key=key) == sorted(ALL, key=key)


def test_it_is_ended_when_a_gateway_that_was_busy_answers(host, ended, caplog):
    """Its stores grew past their quota, as nobody looked."""
    leave(host)
    host.busy = True
    host.start('host-1')
    with pytest.raises(exception.StorageDaemonError):
        host.reconcile()
    assert ended == []
    host.busy = False
    host.reconcile()
    assert sorted(ended, key=key) == sorted(ALL, key=key)


def test_one_that_cannot_be_ended_keeps_no_other_and_is_told(host, ended):
    leave(host)
    host.refused = {OTHER}
    with pytest.raises(exception.BootcacheError, match=f'image {OTHER}: refused'):
        host.reconcile()
    assert sorted(ended, key=key) == sorted(GROWTH_ENDS + JOB_ENDS + RECORDING_ENDS,
                                            key=key)


def test_what_this_process_is_at_work_on_stays(host, ended):
    leave(host)
    host.below.stores._stores[IMAGE] = types.SimpleNamespace(name=IMAGE, grows=True,
                                                             stop_growing=lambda: None)
    host.needs.begin_arrival(OTHER)
    host.recordings._recordings['server'] = None
    host.reconcile()
    assert ended == []
    host.below.stores._stores.clear()
    host.needs.end_arrival(OTHER)
    del host.recordings._recordings['server']
    host.reconcile()
    assert sorted(ended, key=key) == sorted(ALL, key=key)


def test_a_store_that_a_restarted_gateway_has_lost_is_forgotten(host, ended):
    host.present = {naming.node_name(graph.TOP, IMAGE), naming.node_name(graph.REMOTE, IMAGE)}
    host.exported = {f'base-{IMAGE}': 'g-x'}
    path = host.cache.store_path(IMAGE, Medium.DISK)
    with open(path, 'w'):
        pass
    host.below.stores._stores[IMAGE] = types.SimpleNamespace(name=IMAGE, grows=True, path=path)
    host.reconcile()
    assert host.below.stores.get(IMAGE) is None and not os.path.exists(path) and ended == []


def test_a_store_that_took_the_place_of_a_lost_one_stays(host, ended):
    path = host.cache.store_path(IMAGE, Medium.DISK)
    with open(path, 'w'):
        pass
    lost, new = (types.SimpleNamespace(name=IMAGE, grows=True, path=path,
                                       stop_growing=lambda: None) for _ in range(2))
    host.below.stores._stores[IMAGE] = new
    host.below.forget_store(lost)
    assert host.below.stores.get(IMAGE) is new and new.grows and os.path.exists(path)


def test_a_store_below_a_base_that_is_not_served_any_more_goes(host, ended):
    """The export went, and the gateway was busy when the rest was to go."""
    leave(host)
    host.exported = {}
    host.below.stores._stores[IMAGE] = types.SimpleNamespace(
        name=IMAGE, grows=True, stop_growing=lambda: None)
    host.reconcile()
    assert {kind for image, action, kind in ended if image == IMAGE} == {
        graph.TOP, graph.REMOTE, *graph.GROWING}


def test_a_recording_that_begins_while_the_gateway_is_asked_stays(host, ended, monkeypatch):
    leave(host)
    exports = host.gateway.daemon.exports

    def begins():
        # As ProfileRecordings.start: the server is noted before its export is made.
        host.recordings._recordings['server'] = None
        return exports()

    monkeypatch.setattr(host.gateway.daemon, 'exports', begins)
    host.recordings.discard_left_over()
    assert ended == []
