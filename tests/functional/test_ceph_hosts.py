"""Hosts that read bases in a real Ceph themselves: by what, with which key, and what they leave."""

import contextlib
import json
import os
import signal
import threading
import uuid

import nbd
import pytest
from ceph_host import (
    booted,
    daemon,
    is_direct,
    is_read_at,
    own_clones,
    reader,
    readers_in_ceph,
    whole,
)
from ceph_host import ceph_hosts as ceph_hosts  # the fixtures
from ceph_host import elsewhere as elsewhere
from ceph_host import node as node
from functional_tools import frozen, reached, read_base, until
from glance_rbd import HOST_CAPS, MIB, READ_ONLY

from bootcache import exception
from bootcache.connectors import connectors
from bootcache.connectors.starter import Starter
from nova_bootcache.gateway import hostclones
from tools.ceph.cluster import CephError


def test_a_host_reads_in_ceph_without_the_storage_node(ceph_hosts, node, glance_store, directory):
    host = ceph_hosts()
    booted(host, node, directory)
    assert is_direct(host, node)
    nodes = host.gateway.daemon.node_files()
    assert not [file for file in nodes.values() if 'rbd:' in file or '"rbd"' in file]
    node.kill()
    assert whole(host, node) == node.content
    [name] = own_clones(glance_store)
    used = json.loads(glance_store.ceph.run('rbd', 'du', '--format', 'json',
                                            f'bootcache/host-1/{name}'))
    assert used['images'][0]['used_size'] == 0
    # A guest that was paused may go on, and a server may start.
    host.chains.reach_base(node.image_id)
    host.chains.serve_base(host.cache.known(node.image_id))
    assert host.cache.known(node.image_id).remote.rbd == node.remote().rbd


def test_by_default_it_reads_through_the_exporter(ceph_hosts, node, glance_store, directory):
    host = ceph_hosts(base_access='exporter')
    booted(host, node, directory)
    assert not is_direct(host, node) and not readers_in_ceph(host)
    host.upkeep.connect_bases()
    assert own_clones(glance_store) == [] and whole(host, node) == node.content


# What keeps a host from it.

@pytest.mark.parametrize('osd, why', [
    ('profile rbd', "can delete what is in pool images, where Glance's"),
    (f'allow rw pool=images object_prefix rbd_header., {HOST_CAPS}', 'can delete what is in pool'),
    (f'{READ_ONLY}, profile rbd pool=bootcache', 'can delete all that is in pool bootcache')])
def test_a_key_that_can_delete_what_is_not_its_own(ceph_hosts, node, glance_store, osd, why):
    name = f'tried-{uuid.uuid4()}'
    glance_store.ceph.make_user(name, osd)
    with pytest.raises(exception.ConfigurationError, match=why) as caught:
        ceph_hosts(base_rbd_user=name)
    assert HOST_CAPS in str(caught.value) and '[bootcache]base_rbd_user=' in str(caught.value)
    assert glance_store.ceph.run('rbd', 'info', f'images/{node.image_id}')
    ceph_hosts(base_rbd_user=name, base_access='exporter')


def told(node, **changes):
    """What a host is told, with something else of where the base is in Ceph."""
    answer = node.answer()
    return {'rbd': {**answer['rbd'], **changes}}


@pytest.mark.parametrize('options, changes, why', [
    ({'base_rbd_user': 'nobody'}, {}, 'unable to find a keyring'),
    ({'base_rbd_namespace': 'nowhere'}, {}, 'rbd namespace create bootcache/nowhere'),
    ({'base_rbd_ceph_conf': '/nonexistent'}, {}, 'cannot be read by this'),
    ({}, {'fsid': str(uuid.uuid4())}, 'name the configuration file of that cluster'),
    ({}, {'pool': 'vms'}, 'base_rbd_pool is images'),
    ({}, {'id': '123456'}, 'the storage service has verified 123456'),
    ({}, {'snapshot': 'other'}, 'No such file or directory'),
    ({}, {'pool': '--config=/etc/passwd'}, 'does not tell where in Ceph'),
    ({}, None, 'does not tell where in Ceph it is')])
def test_what_a_host_cannot_read_in_ceph_it_reads_through_the_exporter(
        ceph_hosts, node, glance_store, directory, caplog, options, changes, why):
    host = ceph_hosts(**options)
    host.service.extra = {'rbd': None} if changes is None else told(node, **changes)
    booted(host, node, directory)
    assert not is_direct(host, node) and why in caplog.text
    assert whole(host, node) == node.content
    assert own_clones(glance_store) == []
    # One line, however many boots.
    told_of = caplog.text.count(why)
    host.gateway.ensure_base(host.cache.known(node.image_id).remote)
    assert caplog.text.count(why) == told_of


def test_a_snapshot_that_was_made_anew_is_another_one(ceph_hosts, node, glance_store, directory,
                                                      caplog):
    """Image and snapshot have the names and the image the id that they had."""
    ceph, image = glance_store.ceph, f'images/{node.image_id}'
    told_of = node.answer()['rbd']
    ceph.run('rbd', 'snap', 'unprotect', f'{image}@snap')
    ceph.run('rbd', 'snap', 'rm', '--no-progress', f'{image}@snap')
    ceph.run('qemu-io', '-c', 'write -P 7 0 1M', '--image-opts',
             f'driver=rbd,pool=images,image={node.image_id},conf={ceph.conf},user=glance')
    ceph.run('rbd', 'snap', 'create', '--no-progress', f'{image}@snap')
    ceph.run('rbd', 'snap', 'protect', f'{image}@snap')
    host = ceph_hosts()
    booted(host, node, directory)
    # The service's own clone is of the one that it has verified, and is read on.
    assert not is_direct(host, node) and whole(host, node) == node.content
    assert f'and the storage service has verified {told_of["id"]}, {told_of["snapshot_id"]}' \
        in caplog.text
    assert own_clones(glance_store) == []


def test_monitors_are_away_when_a_server_boots(ceph_hosts, node, glance_store, directory, caplog):
    with frozen(glance_store.ceph.pids()['mon.a']):
        host = ceph_hosts()
        assert 'bases are read through the exporter until it does' in caplog.text
        booted(host, node, directory)
        # It did not wait for Ceph once more.
        assert not is_direct(host, node) and 'Ceph did not answer just now' in caplog.text
    until(lambda: own_clones(glance_store) == [], 'an answer of Ceph')
    host.clones._rbd._health.answered()
    host.upkeep.connect_bases()
    assert is_direct(host, node) and whole(host, node) == node.content


def test_a_service_that_tells_later(ceph_hosts, node, directory):
    host = ceph_hosts()
    host.service.extra = {'rbd': None}
    booted(host, node, directory)
    host.upkeep.connect_bases()
    assert not is_direct(host, node)
    host.service.extra = {}
    host.chains.serve_base(host.cache.update(
        host.cache.known(node.image_id), node.remote(), False, 0))
    host.upkeep.connect_bases()
    assert is_direct(host, node)


# While servers read.

def reading(host, node, offset):
    """Read in a thread, as a guest does that is paused at an error, and is let go on."""
    read = []

    def run():
        while not read:
            try:
                read.append(read_base(host, node.image_id, offset, MIB))
            except nbd.Error:
                reached(host, node.image_id)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, read


def test_ceph_goes_away_under_readers_and_comes_back(ceph_hosts, node, elsewhere, glance_store,
                                                     directory):
    host = ceph_hosts()
    host.service.extra = {'server': ['127.0.0.1', elsewhere]}
    booted(host, node, directory)
    host.upkeep.connect_bases()
    assert is_direct(host, node)
    glance_store.ceph.end('osd.0')
    try:
        thread, read = reading(host, node, 9 * MIB)
        thread.join(120)
        assert read == [node.content[9 * MIB:10 * MIB]]
        assert is_read_at(host, node, elsewhere)
        assert whole(host, node) == node.content
        until(lambda: not readers_in_ceph(host), 'the end of what waits for Ceph')
    finally:
        glance_store.ceph.start_osd(0)
    until(lambda: own_clones(glance_store), 'an answer of Ceph')
    host.clones._rbd._health.answered()

    def is_back():
        host.upkeep.connect_bases()
        return is_direct(host, node)

    until(is_back, 'the way back')
    assert whole(host, node) == node.content


def test_its_connector_is_killed(ceph_hosts, node, directory):
    host = ceph_hosts()
    booted(host, node, directory)
    host.upkeep.connect_bases()
    found = daemon(host, reader(host, node))
    pid = found.pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: found.pid() != pid, 'the end of the connector')
    thread, read = reading(host, node, 9 * MIB)
    thread.join(120)
    assert read == [node.content[9 * MIB:10 * MIB]] and is_direct(host, node)
    assert found.pid() not in (None, pid)


def test_the_gateway_is_killed(ceph_hosts, node, directory):
    host = ceph_hosts()
    booted(host, node, directory)
    os.kill(host.gateway.daemon.pid(), signal.SIGKILL)
    until(lambda: host.gateway.daemon.pid() is None, 'the end of the gateway')
    host.gateway.start()
    # No server of libvirt needs it here.
    host.chains.serve_base(host.cache.known(node.image_id))
    assert is_direct(host, node) and whole(host, node) == node.content


def test_its_clone_is_removed_by_somebody(ceph_hosts, node, glance_store, directory):
    host = ceph_hosts()
    booted(host, node, directory)
    host.upkeep.connect_bases()
    # The watch would have it be read elsewhere meanwhile.
    host.connections.stop()
    daemon(host, reader(host, node)).stop(0)
    [name] = own_clones(glance_store)
    until(lambda: removed(glance_store, name), 'the end of the clone')
    host.upkeep.connect_bases()
    assert is_direct(host, node) and own_clones(glance_store) == [name]
    until(lambda: readable(host, node), 'reads that go on')


def removed(glance_store, name):
    """Ceph knows after half a minute of a reader that was killed."""
    with contextlib.suppress(CephError):
        glance_store.ceph.run('rbd', 'rm', '--no-progress', f'bootcache/host-1/{name}')
    return name not in own_clones(glance_store)


def readable(host, node):
    with contextlib.suppress(nbd.Error):
        assert whole(host, node) == node.content
        return True


# What is left.

def test_the_driver_starts_again(ceph_hosts, node, glance_store, directory):
    host = ceph_hosts()
    booted(host, node, directory)
    host.upkeep.connect_bases()
    pid, [name] = daemon(host, reader(host, node)).pid(), own_clones(glance_store)
    left = f'base-{uuid.uuid4()}-0123abcd'
    for image in (left, 'volume-1'):
        glance_store.ceph.run('rbd', 'create', '--size', '1M', f'bootcache/host-1/{image}')
    later = ceph_hosts()
    later.upkeep.connect_bases()
    assert daemon(later, reader(later, node)).pid() == pid and is_direct(later, node)
    assert set(own_clones(glance_store)) == {name, 'volume-1'}
    assert whole(later, node) == node.content


def test_a_clone_that_is_half_made(ceph_hosts, node, glance_store, directory):
    remote = node.remote()
    name = remote.rbd.clone(node.image_id, 'bootcache', 'host-1').name
    glance_store.ceph.run('rbd', 'create', '--size', '1M', f'bootcache/host-1/{name}')
    host = ceph_hosts()
    booted(host, node, directory)
    assert not is_direct(host, node) and whole(host, node) == node.content
    host.upkeep.connect_bases()
    assert is_direct(host, node) and whole(host, node) == node.content


def test_what_nobody_reads_any_more_is_closed_and_removed(ceph_hosts, node, glance_store, directory,
                                                          monkeypatch):
    monkeypatch.setattr(hostclones, '_SWEEP_SECONDS', 0)
    host = ceph_hosts()
    booted(host, node, directory)
    host.upkeep.connect_bases()
    assert host.gateway.remove_base(node.image_id)
    monkeypatch.setattr(hostclones, '_FRESH_SECONDS', 0)
    host.upkeep.connect_bases()
    name, = own_clones(glance_store)
    # A crash may leave half of one.
    glance_store.ceph.run('rbd', 'create', '--size', '1M', f'bootcache/host-1/{name}.0123abcd')
    monkeypatch.setattr(connectors, '_FRESH_SECONDS', 0)

    def is_gone():
        host.upkeep.connect_bases()
        return own_clones(glance_store) == []

    # Ceph knows after half a minute of a reader that was killed.
    until(is_gone, 'the end of the clone')
    assert not readers_in_ceph(host)


def test_it_is_switched_off(ceph_hosts, node, glance_store, directory, monkeypatch):
    monkeypatch.setattr(hostclones, '_SWEEP_SECONDS', 0)
    host = ceph_hosts()
    booted(host, node, directory)
    later = ceph_hosts(base_access='exporter')
    later.upkeep.connect_bases()
    assert not is_direct(later, node) and whole(later, node) == node.content
    assert not readers_in_ceph(later)

    def is_gone():
        later.upkeep.connect_bases()
        return own_clones(glance_store) == []

    # Ceph knows after half a minute of a reader that was killed.
    until(is_gone, 'the end of the clone')


def test_glance_deletes_the_image(ceph_hosts, node, glance_store, directory):
    host = ceph_hosts()
    booted(host, node, directory)
    glance_store.delete(node.image_id)
    Starter(f'{directory}/gateway').do('kill', reader(host, node))
    host.upkeep.connect_bases()
    assert is_direct(host, node)
    until(lambda: readable(host, node), 'reads that go on')
