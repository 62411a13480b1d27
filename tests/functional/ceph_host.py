"""Hosts that read bases in a real Ceph themselves, as several tests need them: fixtures."""

import contextlib
import json
import os

import pytest
from compute_host import boot
from functional_tools import free_port, read_base, until
from glance_rbd import SIZE, content_of, obtained

from bootcache.connectors import connector
from bootcache.connectors.starter import Starter
from bootcache.connectors.ways import nbd_way
from bootcache.storagedaemon import TcpListener
from nova_bootcache.asking.placement import Server
from nova_bootcache.storagenode import Remote
from tools.ceph.cluster import CephError


class CephNode:
    """A storage node whose base is a clone in Ceph.

    :ivar content: the base's bytes.
    """

    def __init__(self, conf, exporter, image):
        path, facts = image
        self.conf, self.exporter, self.image_id = conf.bootcache, exporter, facts.image_id
        self.content = content_of(path)
        self.manifest = obtained(conf, facts)
        exporter.ensure(self.manifest, None)

    def answer(self):
        """Return what a compute host is told."""
        return {**self.exporter.describe(self.manifest),
                'image_hash': self.manifest.made.base_hash}

    def remote(self):
        """Return where a compute host finds the base."""
        return Remote.from_answer(self.image_id, self.answer())

    def kill(self):
        """End the exporter."""
        self.exporter.common._daemon.stop()


@pytest.fixture
def node(ceph_conf, ceph_exporter, ceph_image):
    return CephNode(ceph_conf, ceph_exporter, ceph_image)


@pytest.fixture
def ceph_hosts(hosts, host_key, glance_store, directory):
    """Makes the driver's host object, with its key; its daemons end, and its clones go."""
    made = []

    def make(**options):
        host = hosts(**{**host_key, **options})
        made.append(host)
        return host

    yield make
    for host in made:
        host.stop()
        host.gateway.daemon.stop()
    Starter(f'{directory}/gateway').kill_all()

    def is_empty():
        for name in own_clones(glance_store):
            # Of a daemon that was killed Ceph knows after half a minute.
            with contextlib.suppress(CephError):
                glance_store.ceph.run('rbd', 'rm', '--no-progress', f'bootcache/host-1/{name}')
        return not own_clones(glance_store)

    until(is_empty, 'the end of the clones')


def reader(host, node):
    """Return the name of the connector by which a host reads its base; empty if there is none."""
    return host.connections._connectors.name_of(node.remote().export)


def daemon(host, name):
    """Return the daemon of a connector."""
    return connector.daemon(os.path.join(os.path.dirname(host.gateway.socket_path), 'connectors'),
                            name)


def readers_in_ceph(host):
    """Return the names of the connectors that a host has in Ceph."""
    return {name for number in range(2) if host.connections._connectors.runs(
        name := f'{host.connections._clones.origin}-{number}')}


def own_clones(glance_store):
    return json.loads(glance_store.ceph.run('rbd', 'ls', '--format', 'json', 'bootcache/host-1'))


def is_direct(host, node):
    return host.connections.is_in_ceph(node.remote().export)


def is_read_at(host, node, port):
    """Whether the base is read from an exporter at a port."""
    return host.connections._connectors.is_by(
        reader(host, node), nbd_way('127.0.0.1', port, node.remote().export))


def booted(host, node, directory):
    """Boot a server of the image, so that the host has an entry."""
    server = Server(node.image_id, 'disk', '', False, False, False)
    assert boot(host, f'{directory}/disk', size=SIZE + 512, server=server) is True


def whole(host, node):
    return read_base(host, node.image_id, 0, SIZE)


@pytest.fixture
def elsewhere(node, daemons, ceph_image):
    """An exporter of the base that does not need Ceph: its port."""
    port = free_port()
    exporter = daemons('elsewhere', TcpListener('127.0.0.1', port))
    exporter.ensure_running()
    exporter.add_nodes({'driver': 'file', 'node-name': 'base', 'read-only': True,
                        'filename': ceph_image[0], 'locking': 'off'})
    exporter.add_export(node.remote().export, 'base')
    return port
