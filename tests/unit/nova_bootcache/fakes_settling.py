"""A host whose servers are settled: its neighbours, of which each is a stand-in."""

import contextlib
import dataclasses
import os
import types

import pytest
from fakes_clock import Clock

from bootcache import exception, naming, qemuimg
from bootcache.rpc.messages import ServeStored
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.settling import fullbase, serversbases
from nova_bootcache.settling import settler as settler_module
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.settling.settler import Settler
from nova_bootcache.storagenode import PLAIN, Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
BANDWIDTH, DELAY = 1 << 20, 60
MAGIC = b'QFI\xfb'


class Domain:
    """Stands for a libvirt domain."""

    def __init__(self, running):
        self._running = running

    def isActive(self):  # libvirt's name
        return self._running


class Cache:
    """Stands for the host's cache images: the house's, and what is noted of them."""

    def __init__(self, house):
        self._house = house

    def __getattr__(self, name):
        return getattr(self._house, name)

    def known(self, image_id):
        return self._house.noted.get(image_id)


class HouseNeeds(HostNeeds):
    """The host's, with boots that a test begins by name."""

    def __init__(self, house):
        super().__init__()
        self._house = house

    def is_booting(self, image_id):
        return image_id in self._house.booting


class House:
    """Stands for a host, its Nova and its storage service; notes what is done in ``did``."""

    def __init__(self, root):
        self.base_directory = str(root / '_base')
        self.caches = str(root / '_bootcache')
        for directory in (self.base_directory, self.caches):
            os.mkdir(directory)
        self._root = root
        self.needs = HouseNeeds(self)
        self.force_raw, self.keep_free = True, 1 << 30
        self.known, self.domains, self.did, self.locked = {}, {}, [], []
        self.nova_has = set()  # servers whose lock Nova holds
        self.looked_at, self.booting, self.served, self.connected = [], set(), set(), set()
        self.stored, self.signed, self.see_errors = {}, set(), set()
        self.empty = set()
        self.encryption = PLAIN
        # Seconds in which to ask again for a slot; 0 where there is one.
        self.slot_again = 0.0
        # No other host has any.
        self.exchange_asking = types.SimpleNamespace(is_on=False, socket='', linger=0.0)
        # Called by name when something happens; to let Nova come in between.
        self.then = {}
        # Of cache images, by image.
        self.contents = {}
        # Entries of cache images; what bases were compared, and whether they are the same.
        self.noted, self.compared, self.is_same = {}, [], True

    def happens(self, what, subject):
        self.did.append((what, subject))
        # Once: what comes in between may make the same happen again.
        self.then.pop(what, lambda: None)()

    def done(self, what):
        return [subject for done, subject in self.did if done == what]

    # What a test arranges.

    def boots(self, server_id, image=IMAGE, running=True, **changes):
        """A server boots from a cache image."""
        directory = os.path.join(str(self._root), server_id)
        os.makedirs(directory, exist_ok=True)
        server = LocalServer(server_id, image, settles=True, age=3600, directory=directory,
                             target='vda')
        self.known[server_id] = dataclasses.replace(server, **changes)
        self.domains[server_id] = Domain(running)
        self.stands_on(server_id, self.path(image))
        self.served.add(image)
        self.stored.setdefault(image, {
            'server': ['10.0.0.1', 10810], 'export': f'stored-{image}', 'stored_bytes': 5000,
            'image_hash': 'sha512:ab', 'image_format': 'qcow2', 'settle': True})

    def notes(self, image_hash, image=IMAGE):
        """The cache image here is of a content."""
        remote = Remote(image, '10.0.0.2', 10810, f'base-{image}', image_hash)
        self.noted[image] = CacheEntry(remote, None, 'ab', 1 << 30)

    def stands_on(self, server_id, backing):
        disk = self.known[server_id].disk
        with open(f'{disk}.new', 'wb') as stream:
            stream.write(MAGIC + backing.encode())
        os.rename(f'{disk}.new', disk)

    def backing(self, server_id):
        with open(self.known[server_id].disk, 'rb') as stream:
            return stream.read().removeprefix(MAGIC).decode()

    def base(self, image=IMAGE):
        return os.path.join(self.base_directory, naming.cache_file_name(image))

    # Nova.

    def servers(self):
        return list(self.known.values())

    def server(self, server_id):
        return self.known.get(server_id)

    def needs_stock_base(self, server_id):
        return server_id in self.signed

    def bounded_domain(self, server_id, urgent=False):
        return self.domains.get(server_id)

    def sees_errors(self, server_id):
        return server_id in self.see_errors

    @contextlib.contextmanager
    def instance_lock(self, server_id, waits=True):
        if not waits and server_id in self.nova_has:
            yield False
            return
        self.happens('lock', server_id)
        assert server_id not in self.locked
        self.locked.append(server_id)
        try:
            yield True
        finally:
            self.locked.remove(server_id)

    def base_lock(self, name):
        return contextlib.nullcontext(name)

    def directory(self, server_id):
        return os.path.join(str(self._root), server_id)

    def make_writable(self, path):
        pass

    def directories(self):
        return [os.path.join(str(self._root), name) for name in sorted(os.listdir(self._root))
                if not name.startswith('_')]

    # The host.

    @property
    def cache(self):
        return Cache(self)

    @property
    def gateway(self):
        return self

    @property
    def storage(self):
        return self

    @property
    def below(self):
        return self

    @property
    def api(self):
        return self

    def path(self, image_id):
        return os.path.join(self.caches, naming.cache_file_name(image_id))

    def check_stored(self, image_id, image_hash, base_export):
        """As HostFiles.check_stored, whose files are not here."""
        if self.contents.get(image_id, image_hash) != image_hash:
            raise exception.BootcacheError('another content')

    def check_content(self, remote, virtual_bytes):
        self.check_stored(remote.image_id, remote.image_hash, remote.export)

    def ask(self, image_id, server_id):
        return {'action': 'cold', 'virtual_bytes': 1 << 30, 'server': ['10.0.0.1', 10810],
                'base_export': f'base-{image_id}',
                'image_hash': self.stored[image_id]['image_hash']}

    def holds_path(self, path):
        return path is not None and os.path.dirname(path) == self.caches

    def entries(self):
        return [types.SimpleNamespace(remote=types.SimpleNamespace(image_id=image_id),
                                      cache_image=None if image_id in self.empty else 'whole')
                for image_id in sorted(self.stored)]

    def serves(self, image_id):
        return image_id in self.served

    def stop_serving(self, image_id):
        self.happens('stop serving', image_id)
        if image_id in self.connected:
            return False
        self.served.discard(image_id)
        return True

    def ask_for_stored(self, image_id):
        """As HostsClient.ask_for_stored."""
        return self.serve_stored(image_id)

    def take_slot(self):
        """As HostsClient.take_slot."""
        self.happens('slot', 'taken')
        if self.slot_again:
            raise exception.NoSlot(self.slot_again)
        return True

    def hold_slot(self, holds):
        """As HostsClient.hold_slot."""
        self.happens('slot', 'held' if holds else 'given back')

    def serve_stored(self, image_id):
        self.happens('asked', image_id)
        return ServeStored.read_answer(self.stored.get(image_id))


class Move:
    """Stands for ``pivot.Pivot``: begins, is ready at once, and ends."""

    def __init__(self, house, server_id, base):
        self._house, self._server_id, self._base = house, server_id, base
        self.aborted = False

    def begin(self):
        assert self._server_id in self._house.locked
        self._house.happens('begin', self._server_id)

    def wait_ready(self, cancelled):
        assert self._server_id not in self._house.locked, 'Nova could do nothing with it meanwhile'
        self._house.happens('wait', self._server_id)
        if cancelled.is_set():
            raise exception.Cancelled('told so')

    def finish(self):
        assert self._server_id in self._house.locked and not self.aborted
        self._house.happens('finish', self._server_id)
        self._house.stands_on(self._server_id, self._base)

    def abort(self):
        self.aborted = True
        self._house.happens('abort', self._server_id)


@pytest.fixture
def house(tmp_path, monkeypatch):
    house = House(tmp_path)
    clock = house.clock = Clock()

    def info(path, image_format):
        if image_format == 'raw':
            return {'virtual-size': os.stat(path).st_size}
        assert image_format == 'qcow2'
        house.looked_at.append(os.path.basename(os.path.dirname(path)))
        with open(path, 'rb') as stream:
            content = stream.read()
        assert content.startswith(MAGIC), 'qemu-img would fail'
        return {'full-backing-filename': content.removeprefix(MAGIC).decode()}

    def complete(source, stored_bytes, image_hash, image_format, target, **how):
        house.happens('complete', (source['export'], stored_bytes, image_hash, image_format, how))
        with open(target, 'w'):
            pass
        fullbase.note(target, image_hash)
        return True

    def is_same_piece(source, path, image_format, *, check, **_how):
        assert image_format == 'raw' and house.locked == []
        check()
        house.compared.append((source['server']['host'], source['export'], path))
        return house.is_same

    def begun(find_domain, directory, base, base_format, cache_image, rate, target, keep_free):
        server_id = os.path.basename(directory)
        assert find_domain() is house.domains[server_id] and keep_free == house.keep_free
        house.pivots.append((base, base_format, cache_image, rate, target))
        return Move(house, server_id, base)

    def rebased(directory, cache_image, base, base_format, domain):
        server_id = os.path.basename(directory)
        assert server_id in house.locked and base_format == 'raw'
        assert cache_image == house.backing(server_id)
        house.happens('rebase', server_id)
        house.stands_on(server_id, base)

    house.pivots = []
    monkeypatch.setattr(settler_module, 'time', clock)
    monkeypatch.setattr(serversbases, 'time', clock)
    monkeypatch.setattr(qemuimg, 'info', info)
    monkeypatch.setattr(serversbases.fullbase, 'complete', complete)
    monkeypatch.setattr(fullbase.qemuimg, 'is_same_piece', is_same_piece)
    monkeypatch.setattr(settler_module, 'Pivot', begun)
    monkeypatch.setattr(settler_module.pivot, 'base_format', lambda path: 'raw')
    monkeypatch.setattr(settler_module.rebase, 'rebase_stopped', rebased)
    return house


@pytest.fixture
def settler(house):
    return Settler(house, house, BANDWIDTH, DELAY)


def settled(house):
    return sorted(server_id for server_id in house.known
                  if not house.holds_path(house.backing(server_id)))


# Nova has precedence.

def nova_works_on(house, settler, server_id='one'):
    """What Nova's operation finds: nothing of settling is under way."""
    with settler.held(server_id):
        house.happens('nova', server_id)
