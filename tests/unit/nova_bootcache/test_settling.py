"""Which servers are settled, and how settling gives way to Nova.

Nova, the host, the storage service and what moves disks are stand-ins; a disk is a small file that
has a qcow2's first bytes and names its backing file. tests/functional/test_pivot.py and
test_fullbase.py have real ones.
"""

import contextlib
import dataclasses
import json
import os
import types

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock

from bootcache import exception, naming
from nova_bootcache.cache.cacheentry import CacheEntry
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.settling import basecontent, pivot, serversbases
from nova_bootcache.settling import settler as settler_module
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.settling.pivotstate import PivotConflict, PivotFailed, PivotRefused
from nova_bootcache.settling.settler import Settler
from nova_bootcache.storagenode import Remote

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
        self.looked_at, self.booting, self.served, self.connected = [], set(), set(), set()
        self.stored, self.signed = {}, set()
        self.empty = set()
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

    def domain(self, server_id):
        return self.domains.get(server_id)

    @contextlib.contextmanager
    def instance_lock(self, server_id):
        self.happens('lock', server_id)
        assert server_id not in self.locked
        self.locked.append(server_id)
        try:
            yield
        finally:
            self.locked.remove(server_id)

    def base_lock(self, name):
        return contextlib.nullcontext(name)

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

    def serve_stored(self, image_id):
        self.happens('asked', image_id)
        return self.stored.get(image_id)


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
        basecontent.note(target, image_hash)
        return True

    def is_same_piece(source, path, image_format, *, check, **_how):
        assert image_format == 'raw' and house.locked == []
        check()
        house.compared.append((source['server']['host'], source['export'], path))
        return house.is_same

    def begun(find_domain, directory, base, base_format, cache_image, rate, target):
        server_id = os.path.basename(directory)
        assert find_domain() is house.domains[server_id]
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
    monkeypatch.setattr(settler_module.qemuimg, 'info', info)
    monkeypatch.setattr(serversbases.fullbase, 'complete', complete)
    monkeypatch.setattr(basecontent.qemuimg, 'is_same_piece', is_same_piece)
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


# What is settled.

def test_a_server_that_runs_is_moved_onto_a_base_that_is_completed_first(house, settler):
    house.boots('one')
    settler.once()
    assert [what for what, _subject in house.did] == [
        'asked', 'complete', 'lock', 'begin', 'wait', 'lock', 'finish']
    assert house.backing('one') == house.base()
    assert house.pivots == [(house.base(), 'raw', house.path(IMAGE), BANDWIDTH, 'vda')]


def test_the_base_is_completed_as_the_host_and_glance_want_it(house, settler):
    house.boots('one')
    settler.once()
    (export, stored_bytes, image_hash, image_format, how), = house.done('complete')
    assert (export, stored_bytes, image_hash, image_format) \
        == (f'stored-{IMAGE}', 5000, 'sha512:ab', 'qcow2')
    assert how['lock'].enter_result == naming.cache_file_name(IMAGE)
    assert (how['raw'], how['rate'], how['keep_free']) == (True, BANDWIDTH, 1 << 30)


def test_a_base_is_completed_once_for_all_servers(house, settler):
    for name in ('one', 'two', 'three'):
        house.boots(name)
    house.boots('four', OTHER)
    settler.once()
    assert [done[0] for done in house.done('complete')] == [f'stored-{IMAGE}', f'stored-{OTHER}']
    assert settled(house) == ['four', 'one', 'three', 'two']
    house.boots('five')
    settler.once()
    assert len(house.done('complete')) == 2 and 'five' in settled(house)


@pytest.mark.parametrize('of', ['sha512:cd', 'sha512:ab'])
def test_servers_are_put_onto_a_base_of_their_own_content_only(house, settler, of):
    """As after Glance's database was restored, also where Nova has a base of the image."""
    house.boots('one')
    open(house.base(), 'w').close()
    house.contents[IMAGE] = of
    settler.once()
    assert settled(house) == (['one'] if of == 'sha512:ab' else [])


def test_a_base_that_nova_has_made_is_used(house, settler):
    house.boots('one')
    open(house.base(), 'w').close()
    settler.once()
    assert house.done('complete') == [] and settled(house) == ['one']


@pytest.mark.parametrize('has_domain', [True, False])
def test_a_server_that_is_stopped_is_rebased(house, settler, has_domain):
    house.boots('one', running=False)
    if not has_domain:
        house.domains.clear()
    settler.once()
    assert house.done('rebase') == ['one'] and house.done('begin') == []
    assert settled(house) == ['one'] and house.locked == []


def test_without_the_storage_service_a_base_that_is_here_will_do(house, settler):
    house.boots('one')
    house.stored[IMAGE] = None
    house.notes('sha512:ab')
    settler.once()
    assert settled(house) == []
    open(house.base(), 'w').close()
    house.clock.now += 60
    settler.once()
    assert settled(house) == ['one']


# What is not.

@pytest.mark.parametrize('change', [
    {'age': DELAY - 1}, {'settles': False}, {'image_id': ''}], ids=['young', 'busy', 'no image'])
def test_a_server_that_is_not_settled(house, settler, change):
    house.boots('one', **change)
    house.boots('two')
    settler.once()
    assert settled(house) == ['two']


@pytest.mark.parametrize('change', [{'age': DELAY - 1}, {'settles': False}])
def test_nothing_is_fetched_for_a_server_that_is_not_settled_yet(house, settler, change):
    house.boots('one', **change)
    settler.once()
    assert house.did == []
    house.boots('one')
    settler.once()
    assert settled(house) == ['one']


def test_an_image_whose_servers_are_not_to_be_settled(house, settler):
    house.boots('one')
    house.boots('two', OTHER)
    house.stored[IMAGE]['settle'] = False
    for _ in range(3):
        settler.once()
    assert settled(house) == ['two'] and house.done('asked').count(IMAGE) == 1
    house.clock.now += 60
    settler.once()
    assert settled(house) == ['two'] and house.done('asked').count(IMAGE) == 2


def test_servers_are_settled_soon_after_their_image_says_so(house, settler, caplog):
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    with caplog.at_level('INFO'):
        for _minute in range(24 * 60):
            settler.once()
            house.clock.now += 60
        house.stored[IMAGE]['settle'] = True
        settler.once()
    assert settled(house) == ['one']
    told = [record.getMessage() for record in caplog.records
            if 'bootcache_settle' in record.getMessage()]
    assert [text.rpartition('bootcache_settle')[2] for text in told] == ['=no', '=yes']


def test_without_bandwidth_nothing_is_settled(house):
    house.boots('one')
    settler = Settler(house, house, 0, DELAY)
    settler.once()
    assert house.did == [] and house.needs.needs_base(IMAGE)


def test_boots_have_precedence(house, settler):
    house.boots('one')
    house.booting = {IMAGE}
    settler.once()
    assert house.did == []
    house.booting = set()
    settler.once()
    assert settled(house) == ['one']


def test_disks_that_are_not_ours(house, settler):
    house.boots('stock')
    house.stands_on('stock', house.base())
    house.boots('volume')
    os.unlink(house.known['volume'].disk)
    settler.once()
    assert house.done('asked') == [] and house.done('lock') == []


def test_no_base_of_a_signed_image_is_completed_unchecked(house, settler, caplog):
    house.boots('one')
    house.signed.add('one')
    settler.once()
    assert house.done('complete') == [] and settled(house) == []
    assert 'the image\'s signature has to be checked' in caplog.text


def test_a_base_that_stock_nova_got_and_checked_is_settled_on(house, settler):
    house.boots('one')
    house.signed.add('one')
    with open(house.base(), 'w'):
        pass
    settler.once()
    assert house.done('complete') == [] and settled(house) == ['one']


def test_qemu_img_is_not_asked_for_a_raw_disk_each_time(house, settler):
    house.boots('raw')
    with open(house.known['raw'].disk, 'wb') as disk:
        disk.write(bytes(512))
    for _ in range(3):
        settler.once()
    assert house.looked_at == [] and house.done('asked') == []


def test_a_disk_that_cannot_be_read_hides_no_other(house, settler, monkeypatch):
    house.boots('one')
    house.boots('two')
    readable = settler_module.qemuimg.info

    def info(path, image_format):
        if os.path.dirname(path).endswith('one'):
            raise exception.BootcacheError('no qcow2')
        return readable(path, image_format)

    monkeypatch.setattr(settler_module.qemuimg, 'info', info)
    settler.once()
    assert settled(house) == ['two']


@pytest.mark.parametrize('change', [
    lambda house: house.known.pop('one'),
    lambda house: house.known.update(one=dataclasses.replace(house.known['one'], settles=False))],
    ids=['deleted', 'busy'])
def test_a_server_that_changed_while_its_base_was_completed(house, settler, change):
    house.boots('one')
    house.then['complete'] = lambda: change(house)
    settler.once()
    assert house.done('begin') == [] and house.done('rebase') == [] and house.locked == []


# Nova has precedence.

def nova_works_on(house, settler, server_id='one'):
    """What Nova's operation finds: nothing of settling is under way."""
    with settler.held(server_id):
        house.happens('nova', server_id)


def test_nova_ends_what_is_under_way(house, settler):
    house.boots('one')
    house.then['wait'] = lambda: nova_works_on(house, settler)
    settler.once()
    # It is not waited for until Nova is done and the lock is free.
    assert [what for what, _subject in house.did] \
        == ['asked', 'complete', 'lock', 'begin', 'wait', 'abort', 'nova']
    assert settled(house) == [] and house.locked == []
    settler.once()
    assert settled(house) == ['one']


def test_nova_comes_between_ready_and_the_end(house, settler):
    house.boots('one')
    # The first lock is taken to begin, the second one to end.
    house.then['wait'] = lambda: house.then.update(lock=lambda: nova_works_on(house, settler))
    settler.once()
    assert house.done('abort') == ['one'] and house.done('finish') == []


def test_nova_disturbs_the_settling_of_no_other_server(house, settler):
    house.boots('one')
    house.boots('two')
    house.then['wait'] = lambda: nova_works_on(house, settler, 'two')
    settler.once()
    assert house.done('abort') == [] and settled(house) == ['one', 'two']


def test_a_server_is_left_alone_until_nova_is_done(house, settler):
    house.boots('one')
    house.boots('two')
    with settler.held('one'):
        settler.once()
        assert settled(house) == ['two']
        with settler.held('one'):
            settler.once()
        settler.once()
        assert settled(house) == ['two'], 'the outer operation goes on'
    settler.once()
    assert settled(house) == ['one', 'two']


def test_an_operation_that_fails_lets_go(house, settler):
    house.boots('one')
    with pytest.raises(RuntimeError), settler.held('one'):
        raise RuntimeError('Nova failed')
    settler.once()
    assert settled(house) == ['one']


def test_an_end_that_fails_fails_no_operation(house, settler, monkeypatch, caplog):
    def abort(move):
        raise PivotConflict('which one is valid cannot be told')

    monkeypatch.setattr(Move, 'abort', abort)
    house.boots('one')
    house.then['wait'] = lambda: nova_works_on(house, settler)
    settler.once()
    assert house.done('nova') == ['one'] and 'cannot be ended' in caplog.text


def test_stopping_gives_up(house, settler):
    house.boots('one')
    house.boots('two')
    house.then['wait'] = settler.stop
    settler.once()
    assert house.done('abort') == ['one'] and house.done('begin') == ['one']
    assert settled(house) == []

def test_a_disk_that_arrives_is_looked_at_again_until_it_is_on_a_cache_image(house, settler):
    """A resize: the disk names stock Nova's base until Nova has come to it on this host."""
    house.boots('one', settles=False)
    house.stands_on('one', house.base())
    settler.once()
    assert not house.needs.needs_base(IMAGE)
    # The same inode, as qemu-img rebase -u.
    with open(house.known['one'].disk, 'wb') as stream:
        stream.write(MAGIC + house.path(IMAGE).encode())
    settler.once()
    assert house.needs.needs_base(IMAGE)



def test_stopping_ends_the_completion_of_a_base(house, settler, monkeypatch):
    def complete(*_arguments, cancelled, **_how):
        settler.stop()
        assert cancelled.is_set()
        raise exception.Cancelled('told so')

    monkeypatch.setattr(serversbases.fullbase, 'complete', complete)
    house.boots('one')
    house.boots('two', OTHER)
    settler.once()
    assert house.done('asked') == [IMAGE] and house.done('begin') == []


# What fails is tried again.

@pytest.mark.parametrize('error', [exception.BootcacheError('hash'), exception.ImageRefused('data'),
                                   OSError('disk'), messaging.MessagingTimeout('bus')], ids=repr)
def test_a_base_that_cannot_be_completed_is_tried_again_later(house, settler, monkeypatch, caplog,
                                                              error):
    complete, tries = serversbases.fullbase.complete, []

    def fail(*_arguments, **_how):
        tries.append(1)
        raise error

    monkeypatch.setattr(serversbases.fullbase, 'complete', fail)
    house.boots('one')
    house.boots('two', OTHER)
    open(house.base(OTHER), 'w').close()
    settler.once()
    house.clock.now += 59
    settler.once()
    assert len(tries) == 1 and settled(house) == ['two'], 'another image is not kept waiting'
    assert caplog.text.count('not settled yet') == 1
    monkeypatch.setattr(serversbases.fullbase, 'complete', complete)
    house.clock.now += 1
    settler.once()
    assert settled(house) == ['one', 'two']


@pytest.mark.parametrize('step', ['begin', 'wait_ready', 'finish'])
@pytest.mark.parametrize('error', [PivotRefused, PivotFailed], ids=lambda error: error.__name__)
def test_a_server_that_cannot_be_moved_is_tried_again_later(house, settler, monkeypatch, step,
                                                            error, caplog):
    whole = getattr(Move, step)

    def fail(move, *arguments):
        if move._server_id == 'one':
            raise error('not now')
        whole(move, *arguments)

    monkeypatch.setattr(Move, step, fail)
    house.boots('one')
    house.boots('two')
    settler.once()
    assert settled(house) == ['two'] and house.locked == []
    assert house.done('abort') == (['one'] if step == 'wait_ready' else [])
    assert 'server one is not settled yet' in caplog.text
    monkeypatch.setattr(Move, step, whole)
    settler.once()
    assert settled(house) == ['two']
    house.clock.now += 60
    settler.once()
    assert settled(house) == ['one', 'two']


# The gateway.

def test_what_servers_need_of_the_gateway(house, settler):
    assert house.needs.needs_base(IMAGE) and house.needs.needs_base(OTHER), 'not known yet'
    house.boots('one', age=0)
    settler.once()
    assert house.needs.needs_base(IMAGE) and not house.needs.needs_base(OTHER)


@pytest.mark.parametrize('goes', [lambda house: house.known.pop('one'),
                                  lambda house: house.stands_on('one', house.base())],
                         ids=['deleted', 'settled'])
def test_an_image_that_nobody_needs_leaves_the_gateway(house, settler, goes):
    house.boots('one', age=0)
    house.boots('two', OTHER, age=0)
    settler.once()
    assert house.done('stop serving') == []
    goes(house)
    settler.once()
    assert house.done('stop serving') == [IMAGE] and house.served == {OTHER}
    assert not house.needs.needs_base(IMAGE)


def test_a_settled_image_that_a_restart_left_in_the_gateway_leaves_it(house, settler):
    house.boots('one')
    house.stands_on('one', house.base())
    open(house.base(), 'w').close()
    settler.once()
    assert house.served == set()


def test_an_image_that_boots_stays_in_the_gateway(house, settler):
    house.boots('one')
    house.stands_on('one', house.base())
    open(house.base(), 'w').close()
    house.booting = {IMAGE}
    settler.once()
    assert house.done('stop serving') == []
    house.booting = set()
    settler.once()
    assert house.served == set()


def test_an_image_that_nova_boots_a_server_from_stays_in_the_gateway(house, settler):
    house.boots('one', age=0)
    settler.once()
    del house.known['one']
    # Its disk is not there yet.
    house.boots('two', settles=False)
    os.unlink(house.known['two'].disk)
    settler.once()
    assert house.done('stop serving') == []


def test_a_cache_image_without_servers_and_base_stays_ready_for_the_next_one(house, settler):
    house.boots('one', age=0)
    house.known.clear()
    settler.once()
    assert house.did == []


def test_what_was_served_to_a_server_that_was_never_seen_is_let_go(house, settler):
    """Its domain did not start, and Nova has removed it before anybody looked."""
    house.boots('one', age=0)
    house.known.clear()
    house.empty = {IMAGE}
    house.booting = {IMAGE}
    settler.once()
    assert house.done('stop serving') == []
    house.booting = set()
    settler.once()
    assert house.done('stop serving') == [IMAGE] and house.served == set()


def test_an_image_that_is_connected_to_is_asked_for_again(house, settler):
    house.boots('one')
    house.stands_on('one', house.base())
    open(house.base(), 'w').close()
    house.connected = {IMAGE}
    settler.once()
    house.connected = set()
    settler.once()
    assert house.done('stop serving') == [IMAGE, IMAGE] and house.served == set()


def test_without_bandwidth_images_that_nobody_needs_leave_the_gateway_too(house):
    settler = Settler(house, house, 0, DELAY)
    house.boots('one')
    settler.once()
    house.known.clear()
    settler.once()
    assert house.served == set()


# Settled servers are not looked at each time.

def test_a_settled_server_is_looked_at_once(house, settler):
    house.boots('one')
    settler.once()
    house.looked_at.clear()
    for _ in range(3):
        settler.once()
    assert house.looked_at == ['one']


def test_nova_may_have_changed_a_settled_servers_disk(house, settler):
    house.boots('one')
    for _ in range(2):
        settler.once()
    house.looked_at.clear()
    nova_works_on(house, settler)
    settler.once()
    settler.once()
    assert house.looked_at == ['one']


def test_another_file_in_the_place_of_a_settled_servers_disk_is_looked_at(house, settler):
    house.boots('one')
    for _ in range(2):
        settler.once()
    # As a rebuild makes it.
    house.stands_on('one', house.path(IMAGE))
    settler.once()
    assert house.done('finish') == ['one', 'one'] and settled(house) == ['one']


# After a crash.

@pytest.fixture
def left(house, monkeypatch):
    """Notes which directories are mended, with which domain; a marker is an empty file."""
    mended = []
    monkeypatch.setattr(settler_module.pivot, 'recover',
                        lambda directory, domain: mended.append((directory, domain)))

    def leave(name):
        directory = os.path.join(os.path.dirname(house.base_directory), name)
        os.makedirs(directory, exist_ok=True)
        open(os.path.join(directory, pivot.MARKER), 'w').close()
        return directory

    leave.mended = mended
    return leave


def test_what_a_crash_left_half_done_is_ended(house, settler, left):
    house.boots('untouched')
    house.boots('running')
    places = left('gone'), left('resized_resize'), left('running')
    house.domains['resized'] = Domain(False)
    settler.recover()
    assert left.mended == list(zip(places, [None, house.domains['resized'],
                                            house.domains['running']], strict=True))


def test_what_could_not_be_ended_is_ended_later_and_not_while_nova_is_at_work(house, settler,
                                                                              left):
    house.boots('one', age=0)
    house.boots('busy', settles=False)
    house.boots('held', age=0)
    place, _busy, _held = left('one'), left('busy'), left('held')
    with settler.held('held'):
        settler.once()
    assert left.mended == [(place, house.domains['one'])]
    assert house.done('lock') == ['one'] and house.locked == []


def test_a_move_that_is_under_way_is_not_taken_for_one_that_was_left(house, settler, left):
    house.boots('one')
    house.then['wait'] = lambda: (left('one'), settler.once())
    settler.once()
    assert left.mended == []


def test_one_that_cannot_be_ended_hides_no_other(house, settler, left, monkeypatch, caplog):
    places = left('one'), left('two')

    def recover(directory, domain):
        left.mended.append(directory)
        raise PivotConflict('which one is valid cannot be told')

    monkeypatch.setattr(settler_module.pivot, 'recover', recover)
    settler.recover()
    assert left.mended == list(places) and caplog.text.count('cannot be ended') == 2


def test_half_made_bases_are_removed(house, settler):
    for name in ('a.bootcache', 'a.bootcache.raw', naming.cache_file_name(IMAGE)):
        open(os.path.join(house.base_directory, name), 'w').close()
    settler.recover()
    assert os.listdir(house.base_directory) == [naming.cache_file_name(IMAGE)]


@pytest.fixture
def half_copied(house):
    """Leaves a part of a base of an image, as an interrupted copy does; tells whether it stays."""
    def make(image_id=IMAGE):
        path = f'{house.base(image_id)}.bootcache'
        with open(path, 'wb') as stream:
            stream.write(bytes(512))
        with open(f'{path}.json', 'w') as stream:
            json.dump({'version': 1, 'image_hash': 'sha512:ab', 'total_bytes': 5000,
                       'done_bytes': 512}, stream)
        return lambda: os.path.exists(path) and os.path.exists(f'{path}.json')

    return make


def test_what_was_copied_of_a_base_stays_until_it_is_known_who_needs_it(house, settler,
                                                                        half_copied):
    wanted, unwanted = half_copied(), half_copied(OTHER)
    settler.recover()
    assert wanted() and unwanted()
    # It is not old enough to be settled yet.
    house.boots('one', age=0)
    settler.once()
    assert wanted() and not unwanted()
    house.known.pop('one')
    settler.once()
    assert not wanted()


def test_what_was_copied_goes_if_the_image_is_not_to_be_settled(house, settler, half_copied,
                                                                monkeypatch):
    stays = half_copied()
    serve_stored = house.serve_stored
    monkeypatch.setattr(house, 'serve_stored',
                        lambda image_id: {**serve_stored(image_id), 'settle': False})
    house.boots('one')
    settler.once()
    assert stays(), 'until the storage service was asked'
    settler.once()
    assert not stays()


def test_where_nothing_is_settled_nothing_copied_stays(house, half_copied):
    stays = half_copied()
    house.boots('one')
    Settler(house, house, 0, DELAY).once()
    assert not stays()


def test_what_was_copied_goes_where_space_is_short(house, settler, half_copied):
    stays = half_copied()
    house.boots('one', age=0)
    house.keep_free = 1 << 60
    settler.once()
    assert not stays()


def test_what_cannot_be_removed_ends_nothing(house, settler, half_copied, monkeypatch, caplog):
    half_copied(OTHER)

    def unlink(path):
        raise PermissionError(path)

    house.boots('one')
    with monkeypatch.context() as patch:
        patch.setattr(serversbases.fullbase.os, 'unlink', unlink)
        settler.once()
    assert 'cannot be removed' in caplog.text and settled(house) == ['one']


def test_nothing_was_left(house, settler, left):
    house.boots('one')
    os.rmdir(house.base_directory)
    settler.recover()
    assert left.mended == [] and house.backing('one') == house.path(IMAGE)


# When Nova is asked at all.

def asked(house, settler, seconds):
    """How often Nova is asked for its servers in a time."""
    count, servers = [], house.servers
    house.servers = lambda: count.append(1) or servers()
    try:
        for _look in range(0, seconds, 10):
            house.clock.now += 10
            settler.look()
    finally:
        house.servers = servers
    return len(count)


def test_a_host_whose_servers_are_settled_does_not_ask_nova(house, settler):
    house.boots('one')
    settler.look()
    assert house.backing('one') == house.base()
    # Once more, as its disk is another one now.
    assert asked(house, settler, 100) <= 2
    assert asked(house, settler, 300) == 0
    house.boots('two')
    assert asked(house, settler, 20) >= 1
    assert house.backing('two') == house.base()


def test_a_host_with_a_server_that_cannot_be_settled_yet_asks_again(house, settler):
    house.boots('one', settles=False)
    settler.look()
    assert asked(house, settler, 100) == 10


def test_a_host_whose_servers_are_not_to_be_settled_asks_once_a_minute(house, settler):
    """As often as it asks whether they are to be settled now."""
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    settler.look()
    assert 10 <= asked(house, settler, 600) <= 12


@pytest.mark.parametrize('sees', [True, False], ids=['looked at in between', 'not looked at'])
def test_a_server_that_is_rebuilt_from_another_image_is_seen(house, settler, sees):
    """Its directory is the same, and stands on a cache image before and after."""
    for image in (IMAGE, OTHER):
        house.stored[image] = None
    house.boots('one')
    house.stored[IMAGE] = None
    settler._bandwidth = 0
    settler.look()
    assert house.needs.needs_base(IMAGE) and not house.needs.needs_base(OTHER)
    # Nova rebuilds by destroy, which holds it, and spawn.
    house.known['one'] = dataclasses.replace(house.known['one'], settles=False, image_id=OTHER,
                                             state='rebuilding')
    with settler.held('one'):
        house.clock.now += 10
        settler.look()
    if sees:
        house.clock.now += 10
        settler.look()
    house.boots('one', OTHER)
    for _ in range(3):
        house.clock.now += 10
        settler.look()
    assert house.needs.needs_base(OTHER) and not house.needs.needs_base(IMAGE)


# What is told of it.

def test_who_is_unsettled_and_why_is_told(house, settler):
    assert settler.unsettled.report() is None
    house.boots('one')
    house.boots('two', settles=False, state='suspended')
    house.boots('three', image=OTHER)
    house.stored[OTHER]['settle'] = False
    settler.once()
    settler.once()
    assert settler.unsettled.report() == {'servers': 2, 'named': [
        ['three', 'its image says bootcache_settle=no: say yes, or migrate the server'],
        ['two', 'it is suspended: resume it']]}
    house.stored[OTHER]['settle'] = True
    house.known['two'] = dataclasses.replace(house.known['two'], settles=True, state='active')
    house.clock.now += 7 * 3600
    settler.once()
    settler.once()
    assert settler.unsettled.report() == {'servers': 0, 'named': []}


def test_why_is_told_as_it_is_now_and_a_suspended_server_is_seen_soon(house, settler):
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    settler.look()
    (named,) = settler.unsettled.report()['named']
    assert 'bootcache_settle=no' in named[1]
    # Nova is at work on it, and a moment later it is not.
    house.clock.now += 10
    with settler.held('one'):
        house.known['one'] = dataclasses.replace(house.known['one'], settles=False,
                                                 state='suspending')
    for state, told in (('suspending', 'at work on it'), ('suspended', 'resume it')):
        house.known['one'] = dataclasses.replace(house.known['one'], state=state)
        house.clock.now += 10
        settler.look()
        (named,) = settler.unsettled.report()['named']
        assert told in named[1]
