"""A compute host that is looked after."""

import contextlib
import dataclasses
import os

import pytest
from fakes_clock import Clock

from bootcache import exception
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium, TierLimits
from nova_bootcache import news, upkeep
from nova_bootcache.cache.cacheentry import CacheEntry
from nova_bootcache.gateway.graph import Present
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
INFO = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
LIMITS = TierLimits(10 << 30, 9 << 30, 8 << 30)
# Doubled each time, to ten minutes.
TRIES = [0, 10, 30, 70, 150, 310, 630, 1230, 1830]


def offered(image=IMAGE):
    return {'action': 'cache', 'virtual_bytes': 1 << 30, 'server': ['10.0.0.1', 10810],
            'base_export': f'base-{image}', 'cache_export': 'cache-x',
            'cache_image': INFO.to_dict()}


class Host:
    """Stands for a compute host with its gateway, cache and storage service."""

    def __init__(self, directory):
        self.directory, self.hostname = str(directory), 'host-1'
        self.gateway = self.daemon = self.cache = self.api = self.arrivals = self
        self.storage = self.boots = self.reports = self.serving = self.socket = self
        self.needs = self.chains = self.fetches = self.room = self
        self.held, self.served, self.booting, self.answers = {}, {}, set(), {}
        self.broken, self.started_anew, self.tries, self.asked = set(), False, [], []
        self.fetched, self.told, self.free, self.stores = [], [], Medium.DISK, []
        self.needed, self.refusal, self.away = None, '', ''
        self.nodes_away, self.absent = set(), set()
        self.limits, self.socket_path = {Medium.DISK: LIMITS}, '/run/bootcache/gateway.sock'
        self.in_use, self.waited = set(), []
        self.arriving, self.placing = set(), set()
        self.checked = []

    def holds(self, image, whole=True, used=1000.0, node='10.0.0.1'):
        """Put a cache image, or an empty one, into the cache."""
        remote = Remote(image, node, 10810, f'base-{image}')
        self.held[image] = CacheEntry(remote, INFO if whole else None, 'ab', 1 << 30)
        for name in (self.path(image), f'{self.path(image)}.json'):
            with open(name, 'w'):
                pass
        os.utime(f'{self.path(image)}.json', (used, used))

    def fails(self, what):
        if what == 'check' and what in self.broken:
            raise OSError('the file system does not answer')
        if what in self.broken:
            raise exception.StorageDaemonError(f'{what} does not answer')

    # Gateway.

    def start(self):
        self.fails('start')
        started, self.started_anew = self.started_anew, False
        return started

    def check(self, qemu=None):
        self.checked.append(qemu)
        self.fails('check')

    def reconcile(self):
        self.fails('left over')
        self.stores.append('reconciled')

    def send_again(self):
        self.fails('reports')
        self.stores.append('told')

    def tidy_stores(self):
        self.fails('tidy')
        self.stores.append('tidied')

    def serve_base(self, entry):
        self.ensure_base(entry.remote)

    def present(self, image_ids):
        self.fails('present')
        return {image_id: Present(is_exported=True, is_absent=image_id in self.absent)
                for image_id in image_ids if f'base-{image_id}' in self.served}

    def ensure_base(self, remote):
        self.tries.append(remote.image_id)
        self.fails('ensure_base')
        if remote.host in self.nodes_away:
            raise exception.StorageNodeAway(f'{remote.host} is away')
        self.served[f'base-{remote.image_id}'] = 'node'
        self.absent.discard(remote.image_id)

    # Cache.

    def path(self, image_id):
        return os.path.join(self.directory, image_id)

    def entries(self):
        return list(self.held.values())

    def medium(self, image_id):
        return Medium.DISK

    def update(self, entry, remote, pinned, generation, waits=True):
        self.waited.append(waits)
        changed = dataclasses.replace(entry, remote=remote, pinned=pinned, generation=generation)
        self.held[remote.image_id] = changed
        return changed

    def use_until_now(self):
        """No clock is set here."""

    def gone(self, unused_seconds):
        return []

    @contextlib.contextmanager
    def placing_if_free(self, image_id):
        yield image_id not in self.placing

    def room_for(self, image_id, size):
        assert size == INFO.bytes
        return self.free

    def fetch_offered(self, offered, medium):
        self.fails('fetch')
        image_id = offered.remote.image_id
        self.fetched.append((image_id, offered.cache_image, offered.cache_export, medium,
                             offered.pinned))
        self.held[image_id] = dataclasses.replace(self.held[image_id],
                                                  cache_image=offered.cache_image)

    def let_go(self, image_id):
        if image_id in self.in_use:
            return False
        del self.held[image_id]
        return True

    # Boots, and the storage service.

    def is_arriving(self, image_id):
        return image_id in self.arriving

    def is_booting(self, image_id):
        return image_id in self.booting

    def ask(self, image_id, server_id):
        assert server_id == '', 'no server boots'
        self.asked.append(image_id)
        return self.answers.get(image_id)

    # Holdings.

    report_interval = 60

    def needs_base(self, image_id):
        return self.needed is None or image_id in self.needed

    def exchange(self):
        self.fails('bus')
        self.told.append(self.hostname)
        return self.away


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(upkeep, 'time', clock)
    monkeypatch.setattr(news, 'time', clock)
    return clock


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def looks(clock, step, count, seconds=upkeep.PERIOD_SECONDS):
    """Do a step now and then; give the seconds at which something was noted in a list."""
    began = clock.now
    for _ in range(count):
        step()
        yield clock.now - began
        clock.now += seconds


def times_of(clock, step, noted, count=190):
    """Return when, in seconds, a step added to a list of what was tried."""
    found, before = [], len(noted)
    for now in looks(clock, step, count):
        found += [now] * (len(noted) - before)
        before = len(noted)
    return found
