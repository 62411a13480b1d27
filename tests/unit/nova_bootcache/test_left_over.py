"""What an earlier process left in a gateway that was busy when this one began is ended later.

The gateway is a stand-in: names of nodes and exports; tests/functional has a real one.
"""

import types

import pytest
from oslo_config import cfg

from bootcache import exception, naming, recorder
from nova_bootcache import arrival, growingstore
from nova_bootcache import conf as nova_conf
from nova_bootcache.cacheentry import Entry
from nova_bootcache.gateway import Remote
from nova_bootcache.host import ComputeHost

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def ended():
    """What was ended, in order."""
    return []


@pytest.fixture
def host(tmp_path, monkeypatch, ended):
    monkeypatch.setattr('bootcache.rpcapi.StorageAPI', lambda conf: None)
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    conf.set_override('gateway_run_dir', str(tmp_path / 'run'), 'bootcache')
    conf.set_override('gateway_socket', str(tmp_path / 'run' / 's'), 'bootcache')
    host = ComputeHost(conf, str(tmp_path / 'cache'))
    host.busy, host.present, host.exported = False, set(), {}

    def answer(value):
        if host.busy:
            raise exception.StorageDaemonBusy('gateway: busy')
        return value

    daemon = host.gateway.daemon
    monkeypatch.setattr(host.gateway, 'start', lambda: answer(False))
    monkeypatch.setattr(daemon, 'nodes', lambda: answer(set(host.present)))
    monkeypatch.setattr(daemon, 'exports', lambda: answer(dict(host.exported)))
    monkeypatch.setattr(daemon, 'remove_export',
                        lambda export, disconnect: ended.append(('recording', export)))
    monkeypatch.setattr(daemon, 'remove_nodes', lambda *names: None)
    monkeypatch.setattr(arrival, 'discard',
                        lambda daemon, image_id: ended.append(('arrival', image_id)))
    monkeypatch.setattr(growingstore, 'drop_filter',
                        lambda daemon, image_id: ended.append(('growth', image_id)))
    host.cache.prepare()
    for image in (IMAGE, OTHER):
        Entry(Remote(image, '10.0.0.1', 10810, f'base-{image}'), None, 'ab', 1 << 20).save(
            f'{host.cache.path(image)}.json')
    yield host
    host.stop()


def leave(host):
    """What a process leaves that was killed: a store that grows, an arrival, a recording."""
    host.present = {naming.node_name(growingstore._FILTER, IMAGE),
                    naming.node_name(arrival._COME, OTHER)}
    host.exported = {f'base-{IMAGE}': 'g-x', 'recording-server': f'{recorder._FILTER}-x'}


def test_it_is_ended_at_start(host, ended):
    leave(host)
    host.start('host-1')
    assert sorted(ended) == [('arrival', OTHER), ('growth', IMAGE),
                             ('recording', 'recording-server')]


def test_it_is_ended_when_a_gateway_that_was_busy_answers(host, ended, caplog):
    """Its stores grew past their quota, as nobody looked."""
    leave(host)
    host.busy = True
    host.start('host-1')
    with pytest.raises(exception.StorageDaemonError):
        host.end_left_over()
    assert ended == []
    host.busy = False
    host.end_left_over()
    assert len(ended) == 3


def test_one_that_cannot_be_ended_keeps_no_other_and_is_told(host, ended, monkeypatch):
    leave(host)

    def refuse(daemon, image_id):
        raise exception.StorageDaemonError('refused')

    monkeypatch.setattr(arrival, 'discard', refuse)
    with pytest.raises(exception.BootcacheError, match=f'image {OTHER}: refused'):
        host.end_left_over()
    assert sorted(ended) == [('growth', IMAGE), ('recording', 'recording-server')]


def test_what_this_process_is_at_work_on_stays(host, ended):
    leave(host)
    host.stores._stores[IMAGE] = types.SimpleNamespace(grows=True, stop_growing=lambda: None)
    host.arrivals._coming[OTHER] = object()
    host.recordings._under_way.add('server')
    host.end_left_over()
    assert ended == []
    host.stores._stores.clear()
    host.arrivals._coming.clear()
    host.recordings._closed('server')
    host.end_left_over()
    assert len(ended) == 3
