"""What the functional tests share: real daemons in short directories, ended whatever happens.

Unix socket paths end at 107 bytes, so everything lives in /tmp/bc..., not in pytest's tmp_path.
"""

import contextlib
import functools
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path

import apart
import pytest
from compute_host import Service
from functional_tools import command_lines, processes_of, qemu_img
from glance_rbd import CAPS, HOST_CAPS, MIB, SIZE, GlanceStore
from oslo_config import cfg
from storage_node import Node

from bootcache import conf as bootcache_conf
from bootcache import locks
from bootcache.connectors.starter import Starter
from bootcache.storagedaemon import StorageDaemon, UnixListener
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import start
from glance_bootcache.smallca import SmallCA
from glance_bootcache.storage.exporters import Exporters
from nova_bootcache import conf as nova_conf
from nova_bootcache.chains import computehost
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.published.holdings import PublishedHoldings
from nova_bootcache.upkeep import HostUpkeep
from tools.ceph.cluster import Ceph
from tools.ports import free_port
from tools.rabbit import running


@pytest.fixture(scope='session', autouse=True)
def libtorrent_is_elsewhere():
    """Hold that no test has loaded libtorrent into this process: see apart.py."""
    yield
    assert 'libtorrent' not in sys.modules


@pytest.fixture
def torrents():
    """What is done with torrents, in a process of its own."""
    manager = apart.start()
    yield manager.Torrents()
    manager.shutdown()


@pytest.fixture(scope='session', autouse=True)
def base_of_temporary_paths(tmp_path_factory):
    """Have pytest make its own directory first: not within that of a test, which goes with it."""
    tmp_path_factory.getbasetemp()


@pytest.fixture(autouse=True)
def locks_in_their_turn(monkeypatch):
    """A lock that is taken out of its turn fails the test."""
    complaints = []
    monkeypatch.setattr(locks, 'complain', complaints.append)
    yield
    assert complaints == []


@pytest.fixture
def directory(monkeypatch):
    """A short directory, also for temporary files; a process that stays behind fails the test."""
    path = tempfile.mkdtemp(prefix='bc', dir='/tmp')
    monkeypatch.setattr(tempfile, 'tempdir', path)
    yield path
    left = {pid: command_lines().get(pid) for pid in processes_of(path)}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)
    assert not left, f'processes {left} were left behind'


@pytest.fixture
def daemons(directory):
    """Makes storage daemons on a unix socket, each in its own directory; they end with the test."""
    made = []

    def make(name='daemon', listener=None, **options):
        home = os.path.join(directory, name)
        daemon = StorageDaemon(name, home, listener or UnixListener(os.path.join(home, 'nbd')),
                               **options)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.stop()


@pytest.fixture
def storage_conf(directory):
    """The storage service's configuration, with state, sockets and port of its own."""
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    glance_conf.register_opts(conf)
    db_conf.register_opts(conf)
    for name, value in {'state_dir': f'{directory}/state', 'run_dir': f'{directory}/run',
                        'export_port': free_port(), 'cluster_size': 4096,
                        'gateway_socket': f'{directory}/gateway/nbd'}.items():
        conf.set_override(name, value, bootcache_conf.GROUP)
    return conf


@pytest.fixture
def database(storage_conf):
    """The storage service's default database."""
    os.makedirs(storage_conf.bootcache.state_dir, exist_ok=True)
    database = start.wait_for(storage_conf)
    yield database
    database.close()


@pytest.fixture
def make_base(directory):
    """Makes base images: random data in pieces, holes and written zeros between them.

    A piece is data, zeros, or text: that is half as large when it is compressed.
    """
    def make(path, virtual_bytes, pieces, image_format='raw', seed=0):
        raw = f'{path}.raw' if image_format != 'raw' else path
        source = random.Random(seed)
        with open(raw, 'wb') as stream:
            stream.truncate(virtual_bytes)
            for offset, length, kind in pieces:
                length = min(length, virtual_bytes - offset)
                stream.seek(offset)
                stream.write(source.randbytes(length) if kind == 'data' else bytes(length)
                             if kind == 'zeros' else b''.join(
                                 source.randbytes(256) + bytes(256)
                                 for _sector in range(0, length, 512)))
        if image_format != 'raw':
            # -S 0 would keep written zeros as data; without it they become holes.
            qemu_img('convert', '-f', 'raw', '-O', image_format, raw, path)
            os.unlink(raw)
        return path

    return make


@pytest.fixture
def node(storage_conf, directory, make_base):
    """A storage node with one image."""
    node = Node(storage_conf, directory, make_base)
    yield node
    node.exporter.stop()


@pytest.fixture
def hosts(node, storage_conf, directory, monkeypatch):
    """Makes the driver's host object; a second one is the driver after its restart."""
    service = Service(node)
    monkeypatch.setattr('nova_bootcache.asking.client.StorageClient', lambda conf: service)
    # There is one in a process: who waits at its socket is sent on when the driver is started anew.
    monkeypatch.setattr(computehost, 'Starter', functools.cache(Starter))
    os.mkdir(f'{directory}/gateway')
    made = []

    def make(**options):
        conf = cfg.ConfigOpts()
        conf([], project='nova', default_config_files=[], default_config_dirs=[])
        nova_conf.register_opts(conf)
        for name, value in {'gateway_run_dir': f'{directory}/gateway',
                            'gateway_socket': storage_conf.bootcache.gateway_socket,
                            **options}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        host = ComputeHost(conf, f'{directory}/host')
        made.append(host)
        host.start('host-1')
        host.holdings = PublishedHoldings(host, f'{directory}/_base')
        host.upkeep = HostUpkeep(host, host.holdings)
        host.upkeep.serve_bases()
        host.service = service
        return host

    yield make
    for host in made:
        host.stop()
        host.gateway.daemon.stop()
    Starter(f'{directory}/gateway').kill_all()


@pytest.fixture
def ca(directory):
    """A CA of the test's."""
    return SmallCA(f'{directory}/ca')


@pytest.fixture
def other_ca(directory):
    """Somebody else's CA."""
    return SmallCA(f'{directory}/other-ca')


@pytest.fixture
def swarm(directory, ca):
    """A file, and the hosts that exchange it; they end with the test."""
    if importlib.util.find_spec('libtorrent') is None:
        pytest.skip('libtorrent is not installed')
    from exchanging import Swarm
    made = Swarm(directory, ca)
    yield made
    made.stop()


@pytest.fixture
def certified(ca, hosts):
    """Makes the driver's host object, with a certificate."""
    return lambda **options: hosts(**{'tls_directory': ca.issue('compute-1'), **options})


@pytest.fixture(scope='session')
def rabbit(rabbit_node):
    """The private RabbitMQ's transport URL."""
    return rabbit_node.url


@pytest.fixture(scope='session')
def rabbitmqctl(rabbit_node):
    """Runs a command of the private RabbitMQ's rabbitmqctl, and gives its output."""
    return rabbit_node.control


@pytest.fixture(scope='session')
def rabbit_node():
    """A private RabbitMQ on loopback ports of its own."""
    with running() as node:
        yield node


@pytest.fixture(scope='session')
def ceph():
    """A small Ceph on loopback ports of its own, with Glance's pool and that of bases."""
    home = tempfile.mkdtemp(prefix='bcceph', dir='/tmp')
    cluster = Ceph(Path(home), free_port())
    try:
        cluster.up()
        for pool in ('images', 'bootcache', 'snapshots'):
            cluster.make_pool(pool)
        yield cluster
    finally:
        cluster.down(wipe=True)


@pytest.fixture(scope='session')
def glance_store(ceph):
    """Glance's store in Ceph, and the users and namespace of the page about it."""
    ceph.make_user('glance', 'profile rbd pool=images, profile rbd pool=snapshots')
    ceph.make_user('bootcache', CAPS)
    ceph.run('rbd', 'namespace', 'create', 'bootcache/storage')
    return GlanceStore(ceph)


@pytest.fixture(scope='session')
def host_key(glance_store):
    """The key of one host, as the page about Ceph has it."""
    glance_store.ceph.make_user('host-1', HOST_CAPS)
    glance_store.ceph.run('rbd', 'namespace', 'create', 'bootcache/host-1')
    return {'base_access': 'rbd', 'base_rbd_user': 'host-1', 'base_rbd_namespace': 'host-1',
            'base_rbd_ceph_conf': str(glance_store.ceph.conf)}


@pytest.fixture
def ceph_conf(storage_conf, glance_store):
    """The storage service's configuration, with Ceph."""
    for name, value in {'rbd_store_pool': 'images',
                        'rbd_store_ceph_conf': str(glance_store.ceph.conf)}.items():
        storage_conf.set_override(name, value, bootcache_conf.GROUP)
    return storage_conf


@pytest.fixture
def ceph_image(glance_store, make_base, directory):
    """An image that Glance has in Ceph: its file, and what Glance says of it."""
    path = make_base(f'{directory}/image', SIZE, [
        (0, MIB, 'data'), (4 * MIB, MIB, 'zeros'), (9 * MIB, 3 * MIB, 'data'),
        (SIZE - 4096, 4096, 'data')])
    facts = glance_store.add(str(uuid.uuid4()), path)
    yield path, facts
    with contextlib.suppress(KeyError):
        glance_store.delete(facts.image_id)


@pytest.fixture
def ceph_exporter(ceph_conf, directory):
    """The exporter."""
    exporter = Exporters(ceph_conf, f'{directory}/clients.json')
    exporter.start()
    yield exporter
    exporter.stop()
