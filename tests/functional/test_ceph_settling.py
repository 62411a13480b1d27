"""Full bases for settling, copied from a real Ceph by the host itself, and what else it does."""

import contextlib
import dataclasses
import json
import logging
import threading

import pytest
from ceph_host import booted, is_direct, own_clones, readers_in_ceph
from ceph_host import ceph_hosts as ceph_hosts  # the fixtures
from ceph_host import elsewhere as elsewhere
from ceph_host import node as node
from functional_tools import until
from glance_rbd import MIB, SIZE, content_of

from bootcache import naming
from bootcache.connectors import connectors
from bootcache.rpc.messages import StoredExport
from nova_bootcache.gateway import hostclones
from nova_bootcache.settling import partial
from nova_bootcache.settling.serversbases import ServersBases
from nova_bootcache.settling.unsettled import Unsettled


class Nova:
    """Stands for what settling needs of Nova: no server needs a stock base, and all are wanted."""

    force_raw, keep_free = True, 0

    def __init__(self, directory, image_id):
        self.base_directory = f'{directory}/_base'
        self._image_id = image_id

    def needs_stock_base(self, server_id):
        return False

    def servers(self):
        return [self]

    @property
    def image_id(self):
        return self._image_id

    def base_lock(self, name):
        return contextlib.nullcontext()


@pytest.fixture
def stored(node, elsewhere, monkeypatch):
    """What the storage service says of the image file; its exporter is one without Ceph."""
    return StoredExport(True, ('127.0.0.1', elsewhere), export=node.remote().export,
                        base_export=node.remote().export, stored_bytes=SIZE,
                        image_hash=node.manifest.made.base_hash, image_format='raw')


@pytest.fixture
def bases(directory, node, stored):
    """Makes what completes bases on a host."""
    def make(host, rate=0, **changes):
        """Changes are of what the storage service says."""
        answer = dataclasses.replace(stored, **changes)
        host.service.serve_stored = lambda *_arguments: answer
        nova = Nova(directory, node.image_id)
        return ServersBases(host, nova, rate, threading.Event(), Unsettled(is_off=False))

    return make


def completed(host, bases, node):
    """Complete the base, and return its bytes."""
    assert bases.complete(node.image_id, []) is not None
    return content_of(bases.path(node.image_id))


@pytest.fixture(autouse=True)
def lines(caplog):
    caplog.set_level(logging.INFO)
    return caplog


def test_a_base_is_completed_from_ceph(ceph_hosts, node, bases, directory, caplog):
    host = ceph_hosts()
    booted(host, node, directory)
    # Nobody is there who could give it out but Ceph.
    made = bases(host, server=('127.0.0.1', 1))
    assert completed(host, made, node) == node.content
    assert 'its full base is completed from Ceph, at 0 bytes a second' in caplog.text
    assert naming.cache_file_name(node.image_id) in made.path(node.image_id)


def test_one_that_the_gateway_does_not_serve_any_more(ceph_hosts, node, bases, directory,
                                                      glance_store, monkeypatch, caplog):
    """It is open, and no clone of those that go, as long as it is copied."""
    monkeypatch.setattr(hostclones, '_SWEEP_SECONDS', 0)
    host = ceph_hosts()
    booted(host, node, directory)
    assert host.gateway.remove_base(node.image_id)
    for module in hostclones, connectors:
        monkeypatch.setattr(module, '_FRESH_SECONDS', 0)
    made, seen = bases(host, rate=4 * MIB, server=('127.0.0.1', 1)), []
    thread = threading.Thread(target=lambda: seen.append(completed(host, made, node)))
    thread.start()
    try:
        until(lambda: 'completed from Ceph' in caplog.text, 'the copy')
        until(lambda: is_open(glance_store), 'the clone to be open')
        host.upkeep.connect_bases()
        assert own_clones(glance_store)
    finally:
        thread.join(120)
    assert seen == [node.content]

    def is_gone():
        host.upkeep.connect_bases()
        return not readers_in_ceph(host) and not own_clones(glance_store)

    until(is_gone, 'the end of the clone')


def is_open(glance_store):
    """Whether somebody has a clone open, as Ceph knows."""
    return any(json.loads(glance_store.ceph.run(
        'rbd', 'status', '--format', 'json', f'bootcache/host-1/{name}'))['watchers']
        for name in own_clones(glance_store))


@pytest.mark.parametrize('change', [{'image_format': 'qcow2'}, {'rbd': None}, {'base_access': ''}])
def test_what_is_not_read_in_ceph_comes_from_the_storage_node(ceph_hosts, node, bases, directory,
                                                              caplog, change):
    host = ceph_hosts(base_access='exporter') if 'base_access' in change else ceph_hosts()
    if 'rbd' in change:
        host.service.extra = {'rbd': None}
    booted(host, node, directory)
    if 'image_format' in change:
        with pytest.raises(Exception, match=r'is raw|has to be qcow2|gpt|unknown'):
            completed(host, bases(host, **change), node)
    else:
        assert completed(host, bases(host), node) == node.content
    assert 'completed from the storage node, at' in caplog.text
    assert 'completed from Ceph' not in caplog.text


def test_ceph_goes_away_while_a_base_is_copied(ceph_hosts, node, bases, elsewhere, directory,
                                               glance_store, monkeypatch, caplog):
    monkeypatch.setattr(partial, '_GRACE_SECONDS', 5)
    host = ceph_hosts()
    host.service.extra = {'server': ['127.0.0.1', elsewhere]}
    booted(host, node, directory)
    host.upkeep.connect_bases()
    assert is_direct(host, node)
    seen, made = [], bases(host)
    thread = threading.Thread(target=lambda: seen.append(completed(host, made, node)))
    thread.start()
    until(lambda: 'completed from Ceph' in caplog.text, 'the copy')
    glance_store.ceph.end('osd.0')
    try:
        until(lambda: not thread.is_alive(), 'the end of the copy')
    finally:
        glance_store.ceph.start_osd(0)
        thread.join(120)
    assert seen == [node.content]
    until(lambda: own_clones(glance_store), 'an answer of Ceph')
