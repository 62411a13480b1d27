"""What a compute host looks after by itself, and how patiently.

Time, gateway, cache and storage service are stand-ins; tests/functional has real ones.
"""

import dataclasses
import os
import threading

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock

from bootcache import exception
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium, TierLimits
from nova_bootcache import news, upkeep
from nova_bootcache.cache.cacheentry import CacheEntry
from nova_bootcache.storagenode import Remote
from nova_bootcache.upkeep import HostUpkeep

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
THIRD = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
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
        self.nodes_away = set()
        self.limits, self.socket_path = {Medium.DISK: LIMITS}, '/run/bootcache/gateway.sock'
        self.in_use, self.waited = set(), []

    def holds(self, image, whole=True, used=1000.0, node='10.0.0.1'):
        """Put a cache image, or an empty one, into the cache."""
        remote = Remote(image, node, 10810, f'base-{image}')
        self.held[image] = CacheEntry(remote, INFO if whole else None, 'ab', 1 << 30)
        for name in (self.path(image), f'{self.path(image)}.json'):
            with open(name, 'w'):
                pass
        os.utime(f'{self.path(image)}.json', (used, used))

    def fails(self, what):
        if what in self.broken:
            raise exception.StorageDaemonError(f'{what} does not answer')

    # Gateway.

    def start(self):
        self.fails('start')
        started, self.started_anew = self.started_anew, False
        return started

    def check(self):
        pass

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

    def exports(self):
        self.fails('exports')
        return dict(self.served)

    def ensure_base(self, remote):
        self.tries.append(remote.image_id)
        self.fails('ensure_base')
        if remote.host in self.nodes_away:
            raise exception.StorageNodeAway(f'{remote.host} is away')
        self.served[f'base-{remote.image_id}'] = 'node'

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

    def gone(self, unused_seconds):
        return []

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


# Bases.

def test_a_gateway_that_lost_its_bases_gets_them_again(host, clock):
    host.holds(IMAGE)
    host.holds(OTHER, whole=False)
    host.served[f'base-{OTHER}'] = 'node'
    HostUpkeep(host, host).serve_bases()
    assert host.tries == [IMAGE] and set(host.served) == {f'base-{IMAGE}', f'base-{OTHER}'}


def test_a_base_that_no_server_needs_is_not_served(host, clock):
    host.holds(IMAGE)
    host.holds(OTHER)
    host.needed = {OTHER}
    HostUpkeep(host, host).serve_bases()
    assert host.tries == [OTHER]


def test_a_base_that_cannot_be_served_is_tried_ever_less_often(host, clock):
    host.holds(IMAGE)
    host.broken = {'ensure_base'}
    assert times_of(clock, HostUpkeep(host, host).serve_bases, host.tries) == TRIES


def test_patience_with_one_base_is_none_with_another(host, clock):
    host.holds(IMAGE)
    host.broken = {'ensure_base'}
    keeper = HostUpkeep(host, host)
    list(looks(clock, keeper.serve_bases, 60))
    host.tries.clear()
    host.holds(OTHER)
    keeper.serve_bases()
    assert host.tries == [OTHER]


def test_a_base_that_was_served_again_is_tried_at_once_when_it_is_lost_again(host, clock):
    host.holds(IMAGE)
    host.broken = {'ensure_base'}
    keeper = HostUpkeep(host, host)
    list(looks(clock, keeper.serve_bases, 60))
    host.served[f'base-{IMAGE}'] = 'node'
    keeper.serve_bases()
    host.served.clear()
    host.tries.clear()
    assert times_of(clock, keeper.serve_bases, host.tries, 10) == TRIES[:4]


def test_a_storage_node_that_is_away_is_waited_for_once_a_round(host, clock):
    for image in (IMAGE, THIRD):
        host.holds(image)
    host.holds(OTHER, node='10.0.0.2')
    host.nodes_away = {'10.0.0.1'}
    keeper = HostUpkeep(host, host)
    keeper.serve_bases()
    assert host.tries == [IMAGE, OTHER] and set(host.served) == {f'base-{OTHER}'}
    host.nodes_away.clear()
    list(looks(clock, keeper.serve_bases, 2))
    assert set(host.served) == {f'base-{image}' for image in (IMAGE, OTHER, THIRD)}


def test_start_waits_for_no_storage_node(host, monkeypatch):
    """init_host calls it: nova-compute is not up before it returns."""
    host.holds(IMAGE)
    begun, end = threading.Event(), threading.Event()

    def hang(entry):
        begun.set()
        assert end.wait(30)
        raise exception.StorageNodeAway('away')

    monkeypatch.setattr(host, 'serve_base', hang)
    keeper = HostUpkeep(host, host)
    keeper.start()
    assert begun.wait(30), 'it is looked after at once'
    keeper.stop()
    end.set()


# Empty cache images.

def test_an_empty_cache_image_is_replaced_by_a_whole_one(host, clock):
    host.holds(IMAGE, whole=False)
    host.answers = {IMAGE: {**offered(), 'pinned': True}}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert host.fetched == [(IMAGE, INFO, 'cache-x', Medium.DISK, True)]
    list(looks(clock, keeper.replace_empty, 100))
    assert len(host.fetched) == 1 and len(host.asked) == 1


def test_it_goes_where_there_is_room(host, clock):
    host.holds(IMAGE, whole=False)
    host.answers, host.free = {IMAGE: offered()}, Medium.MEMORY
    HostUpkeep(host, host).replace_empty()
    assert [fetch[3] for fetch in host.fetched] == [Medium.MEMORY]


def test_it_stays_where_there_is_none(host, clock):
    host.holds(IMAGE, whole=False)
    host.answers, host.free = {IMAGE: offered()}, None
    HostUpkeep(host, host).replace_empty()
    assert host.asked == [IMAGE] and host.fetched == []


def test_a_whole_cache_image_is_left_alone(host, clock):
    host.holds(IMAGE)
    host.answers = {IMAGE: offered()}
    HostUpkeep(host, host).replace_empty()
    assert host.asked == []


def test_a_boot_that_is_watched_is_not_disturbed(host, clock):
    host.holds(IMAGE, whole=False)
    host.holds(OTHER, whole=False)
    host.answers = {IMAGE: offered(), OTHER: offered(OTHER)}
    host.booting = {IMAGE}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetched] == [OTHER]
    host.booting.clear()
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetched] == [OTHER, IMAGE]


@pytest.mark.parametrize('answer', [
    None, {'action': 'wait'}, {'action': 'stock', 'reason': 'skipped'},
    {**offered(), 'action': 'stock'}, {'action': 'cache'},
    {key: value for key, value in {**offered(), 'action': 'cold'}.items()
     if not key.startswith('cache_')}], ids=['away', 'wait', 'stock', 'base', 'damaged', 'cold'])
def test_the_service_is_asked_ever_less_often_while_there_is_none(host, clock, answer):
    host.holds(IMAGE, whole=False)
    host.in_use = {IMAGE}
    host.answers = {IMAGE: answer}
    assert times_of(clock, HostUpkeep(host, host).replace_empty, host.asked) == TRIES
    assert host.fetched == []


@pytest.mark.parametrize('answer, stays', [
    (None, True), ({'action': 'wait', 'reason': 'prepared'}, True),
    ({'action': 'stock', 'reason': 'Glance does not give the image out'}, False),
    ({**offered(), 'action': 'stock', 'reason': 'the image is skipped'}, False)])
def test_one_that_the_storage_service_does_not_serve_goes_with_its_last_server(
        host, clock, caplog, answer, stays):
    host.holds(IMAGE, whole=False)
    host.in_use = {IMAGE}
    host.answers = {IMAGE: answer}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert IMAGE in host.held
    host.in_use.clear()
    clock.now += 600
    with caplog.at_level('INFO'):
        keeper.replace_empty()
    assert (IMAGE in host.held) is stays
    assert stays or answer['reason'] in caplog.text


def test_after_a_boot_the_service_is_asked_at_once(host, clock):
    host.holds(IMAGE, whole=False)
    keeper = HostUpkeep(host, host)
    list(looks(clock, keeper.replace_empty, 100))
    host.booting = {IMAGE}
    keeper.replace_empty()
    host.booting.clear()
    host.asked.clear()
    keeper.replace_empty()
    assert host.asked == [IMAGE]


# What the storage service hears.

def test_holdings_are_told_at_intervals(host, clock):
    keeper = HostUpkeep(host, host)
    assert times_of(clock, keeper.exchange_holdings, host.told, 30) == [0, 60, 120, 180, 240]


# All of it.

WORDS = {'start': 'the gateway is not ready', 'left over': 'what nobody needs stays in the gateway',
         'exports': 'bases are not served', 'tidy': 'growing stores are not looked after',
         'reports': 'what boots read is not told', 'bus': 'is not told what is here',
         'fetch': 'its empty cache image stays', 'ensure_base': 'cannot serve its base'}


@pytest.mark.parametrize('broken', WORDS)
def test_what_fails_keeps_nothing_else_from_being_done(host, clock, broken, caplog):
    host.holds(IMAGE, whole=False)
    host.holds(OTHER)
    host.answers = {IMAGE: offered()}
    host.broken = {broken}
    HostUpkeep(host, host).once()
    assert ('base-' + OTHER in host.served) == (broken not in ('exports', 'ensure_base'))
    assert bool(host.fetched) == (broken != 'fetch')
    assert bool(host.told) == (broken != 'bus')
    assert set(host.stores) == {'reconciled', 'tidied', 'told'} - {
        'left over': {'reconciled'}, 'tidy': {'tidied'},
        'reports': {'told'}}.get(broken, set())
    # In words of its own.
    texts = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert texts and all(WORDS[broken] in text and 'does not answer' in text for text in texts)


def test_a_fault_of_ours_ends_no_upkeep(host, clock, monkeypatch, caplog):
    host.holds(IMAGE)
    monkeypatch.setattr(host, 'exports', lambda: {}[''], raising=False)
    HostUpkeep(host, host).once()
    assert host.told and 'unexpected' in caplog.text


def test_a_host_that_serves_nothing_changes_no_file_and_serves_who_is_there(host, clock):
    """Its directories may be another host's as well."""
    host.holds(IMAGE, whole=False)
    host.answers = {IMAGE: offered()}
    host.refusal = 'nfs'
    HostUpkeep(host, host).once()
    assert set(host.served) == {f'base-{IMAGE}'} and host.asked == host.told == []


def test_stores_are_looked_after_each_time(host, clock):
    """A gateway may have been restarted by whoever it was, systemd for instance."""
    keeper = HostUpkeep(host, host)
    keeper.once()
    keeper.once()
    assert host.stores == ['reconciled', 'tidied', 'told'] * 2


# What is said of it.

def lines(caplog):
    """What was logged since the last look: level and text."""
    found = [(record.levelname, record.getMessage()) for record in caplog.records
             if record.levelname in ('INFO', 'WARNING', 'ERROR')]
    caplog.clear()
    return found


def test_one_line_says_that_all_is_well(host, clock, caplog):
    caplog.set_level('INFO')
    kept = HostUpkeep(host, host)
    for _second in looks(clock, kept.once, 20):
        pass
    ((level, line),) = lines(caplog)
    assert level == 'INFO' and ' is ready: ' in line
    for part in ('/run/bootcache/gateway.sock', 'storage service', f'{10 << 30} bytes',
                 host.directory):
        assert part in line


def test_a_gateway_that_is_away_is_told_once_and_seldom_and_when_it_is_back(host, clock, caplog):
    caplog.set_level('INFO')
    kept = HostUpkeep(host, host)
    host.holds(IMAGE)
    # The text of the gateway's own failure, and of what cannot be served through it.
    host.broken = {'start', 'exports'}
    for _second in looks(clock, kept.once, 100):
        pass
    assert lines(caplog) == [
        ('WARNING', 'bootcache: the gateway is not ready, for now: start does not answer'),
        ('WARNING', 'bootcache: bases are not served, for now: exports does not answer')]
    for _second in looks(clock, kept.once, 100):
        pass
    assert len(lines(caplog)) == 2
    host.broken = set()
    for _second in looks(clock, kept.once, 100):
        pass
    said = lines(caplog)
    assert said[0] == ('INFO', 'bootcache: the gateway answers again')
    assert sum(' is ready: ' in line for _level, line in said) == 1


def test_a_storage_service_that_is_away_is_told_once_and_when_it_is_back(host, clock, caplog):
    caplog.set_level('INFO')
    kept = HostUpkeep(host, host)
    host.away = 'no reply on topic bootcache'
    for _second in looks(clock, kept.once, 60):
        pass
    ((level, line),) = lines(caplog)
    assert level == 'WARNING' and 'no reply on topic bootcache' in line and 'stock way' in line
    host.away = ''
    for _second in looks(clock, kept.once, 60):
        pass
    assert [' is ready: ' in line for _level, line in lines(caplog)] == [True]


# Entries of an earlier version, which do not name the content.

def test_an_entry_that_does_not_name_its_content_gets_it_while_the_base_has_its_name(host, clock):
    host.holds(IMAGE)
    host.answers = {IMAGE: {**offered(), 'image_hash': 'sha512:ab', 'generation': 3,
                            'pinned': True}}
    keeper = HostUpkeep(host, host)
    for _now in looks(clock, keeper.note_contents, 3):
        pass
    entry = host.held[IMAGE]
    assert entry.remote == Remote(IMAGE, '10.0.0.1', 10810, f'base-{IMAGE}', 'sha512:ab')
    assert (entry.generation, entry.pinned) == (0, False), 'it is not used'
    assert host.asked == [IMAGE]
    assert host.waited == [False], 'a cache image that comes with patience does not make haste'
    # The storage node's manifest is made anew: the base has another name, and is the same one.
    again = Remote(IMAGE, '10.0.0.1', 10810, f'base-{IMAGE}-ab', 'sha512:ab')
    assert entry.is_of(again, 1 << 30)


@pytest.mark.parametrize('answer', [
    None, offered(), {'action': 'wait'},
    {**offered(), 'action': 'cold', 'base_export': 'base-other', 'image_hash': 'sha512:cd',
     'cache_image': {**INFO.to_dict(), 'sha256': 'cd'}}],
    ids=['away', 'earlier service', 'wait', 'another content'])
def test_nothing_is_noted_that_is_not_known(host, clock, answer):
    host.holds(IMAGE)
    host.answers = {IMAGE: answer}
    assert times_of(clock, HostUpkeep(host, host).note_contents, host.asked) == TRIES
    assert host.held[IMAGE].remote.image_hash == ''


def test_nobody_is_asked_about_what_no_server_needs(host, clock):
    host.holds(IMAGE)
    host.needed = set()
    HostUpkeep(host, host).note_contents()
    assert host.asked == []


def test_one_whose_storage_service_fails_keeps_no_other(host, clock, caplog, monkeypatch):
    for image in (IMAGE, OTHER):
        host.holds(image)
    host.answers = {OTHER: {**offered(OTHER), 'image_hash': 'sha512:ab'}}
    ask = host.ask

    def fails(image_id, server_id):
        if image_id == IMAGE:
            raise messaging.RemoteError('OSError', 'disk')
        return ask(image_id, server_id)

    monkeypatch.setattr(host, 'ask', fails)
    HostUpkeep(host, host).note_contents()
    assert host.held[OTHER].remote.image_hash == 'sha512:ab' and IMAGE in caplog.text
