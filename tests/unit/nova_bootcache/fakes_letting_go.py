"""A compute host with cache images, for what it lets go of."""

import contextlib
import fcntl
import os
import struct

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from oslo_config import cfg

from bootcache import exception, qemuimg
from bootcache.tier import Medium
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking import placement
from nova_bootcache.asking.placement import Server
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.gateway import hostneeds
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20


@pytest.fixture
def host(tmp_path, monkeypatch):
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    for name, value in {'gateway_run_dir': str(tmp_path / 'run'), 'compute_disk_quota': '4MiB',
                        'gateway_socket': str(tmp_path / 'run' / 's'), 'store_quota': '3MiB',
                        'high_watermark': 100}.items():
        conf.set_override(name, value, 'bootcache')
    host = ComputeHost(conf, str(tmp_path / 'cache'))
    host.cache.prepare()
    host.removed = []
    monkeypatch.setattr(host.gateway, 'start', lambda: False)
    monkeypatch.setattr(host.gateway, 'remove_base',
                        lambda image_id: not host.removed.append(image_id))
    # Each base can be read: there is no connector.
    monkeypatch.setattr(host.connections, 'check', lambda export: None)
    monkeypatch.setattr(host.connections, 'connect', lambda remote: None)
    host.clock = Clock()
    monkeypatch.setattr(hostneeds, 'time', host.clock)
    yield host
    host.stop()


def place(host, image=IMAGE, size=MIB):
    """Put a cache image into the cache, unused for long."""
    path = host.cache.path(image)
    with open(path, 'wb') as stream:
        stream.truncate(size)
    entry = CacheEntry(Remote(image, '10.0.0.1', 10810, f'base-{image}'), None, 'ab', size)
    entry.save(f'{path}.json')
    os.utime(f'{path}.json', (1, 1))


def make_disk(host, path, image=IMAGE):
    with host.needs.making(image, str(path)):
        path.write_bytes(b'overlay')


@contextlib.contextmanager
def opened(path):
    """A process has a disk open: it holds QEMU's image lock of it."""
    with open(path, 'rb') as stream:
        fcntl.fcntl(stream, fcntl.F_OFD_SETLK,
                    struct.pack('hhqqi', fcntl.F_RDLCK, os.SEEK_SET, 100, 1, 0))
        yield


# Chains in the making.

def fill(host, size):
    """Make room for a file."""
    with host.room.for_fetch('new', Medium.DISK, size):
        pass


def evict(host):
    """Want all of the tier's room; tell what is left."""
    with contextlib.suppress(exception.BootcacheError):
        fill(host, 4 * MIB)
    return {image for image in (entry.remote.image_id for entry in host.cache.entries())
            if os.path.exists(host.cache.path(image))}


SERVER = Server(IMAGE, 'disk', '', False, False, False)


class Away:
    """Stands for a storage service that nobody reaches."""

    def send(self, message):
        raise messaging.MessagingTimeout('nobody')


@pytest.fixture
def decides(host, monkeypatch):
    """Calls something between the decision and what is done by it; the gateway has the base."""
    host.storage._client = Away()
    known = host.cache.known
    monkeypatch.setattr(host.cache, 'entry', known)
    monkeypatch.setattr(host.gateway, 'ensure_base', lambda remote: 'base-x')
    monkeypatch.setattr(qemuimg, 'create_overlay',
                        lambda path, size, backing, *_a, **_n: open(path, 'x').close())
    plan = placement.plan

    def call_in_between(what):
        def decide(*arguments):
            found = plan(*arguments)
            what()
            return found

        monkeypatch.setattr(placement, 'plan', decide)

    return call_in_between
