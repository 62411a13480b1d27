"""What a host holds: only a whole, right file with a right entry counts."""

import dataclasses
import errno
import json
import os
import threading
import time
import types
from unittest import mock

import pytest
from fakes_letting_go import opened

from bootcache import cacheimage, exception, naming, savefile
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium, TierLimits
from nova_bootcache.asking.client import Offered
from nova_bootcache.asking.placement import Offer, Storage
from nova_bootcache.cache import cachefiles
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.metrics import HostMetrics
from nova_bootcache.storagenode import Remote
from nova_bootcache.tiers import fetches, room
from nova_bootcache.tiers.fetches import Fetches, Readable, WrongFiles
from nova_bootcache.tiers.room import Room

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SOCKET = '/run/bootcache/gateway.sock'
LIMITS = TierLimits(1 << 30, 1 << 29, 1 << 28)


@pytest.fixture
def cache(tmp_path):
    cache = CacheFiles(str(tmp_path / '_bootcache'))
    cache.prepare()
    return cache


def place(cache, image=IMAGE, content=b'x' * 512, **changes):
    """Put a small file with its entry into the cache, as a fetch does."""
    path = cache.path(image)
    with open(path, 'wb') as stream:
        stream.write(content)
    info = CacheInfo('cache-1', len(content), 900, 3, savefile.file_digest(path), 1 << 30, 65536,
                     1 << 29, 'nbd:', 1.5, cacheimage.VERIFY_RULES)
    entry = CacheEntry(Remote(image, '10.0.0.1', 10810, f'base-{image}'),
                       dataclasses.replace(info, **changes), info.sha256, info.virtual_bytes)
    entry.save(f'{path}.json')
    return entry


def another_process(cache):
    """A cache on the same directory that has verified nothing yet."""
    return CacheFiles(cache.directory)


def test_a_placed_file_counts(cache):
    entry = place(cache)
    assert cache.entry(IMAGE) == entry and cache.entries() == [entry]
    assert another_process(cache).entry(IMAGE) == entry
    assert cache.entry(OTHER) is None


def test_the_files_name_is_what_nova_takes_for_a_bases(cache):
    assert os.path.basename(cache.path(IMAGE)) == naming.cache_file_name(IMAGE)


@pytest.mark.parametrize('content', [b'', b'x' * 511, b'x' * 513, b'x' * 511 + b'y'],
                         ids=['empty', 'truncated', 'longer', 'flipped'])
def test_a_damaged_file_does_not_count(cache, content):
    place(cache)
    with open(cache.path(IMAGE), 'wb') as stream:
        stream.write(content)
    assert cache.entry(IMAGE) is None


@pytest.mark.parametrize('number', [errno.EPERM, errno.EACCES, errno.EROFS])
def test_a_use_that_cannot_be_noted_is_nobodys_fault(cache, monkeypatch, number):
    """The entry may be another user's, as after a restore."""
    place(cache)
    noting = mock.Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(os, 'utime', noting)
    cache.touch(IMAGE)
    assert noting.called


def test_damage_is_seen_after_a_first_good_look(cache):
    place(cache)
    assert cache.entry(IMAGE) is not None
    with open(cache.path(IMAGE), 'r+b') as stream:
        stream.write(b'y')
    status = os.stat(cache.path(IMAGE))
    os.utime(cache.path(IMAGE), ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert cache.entry(IMAGE) is None


def test_the_content_is_read_once_a_process(cache, monkeypatch):
    place(cache)
    looks = []
    real = cacheimage.verify
    monkeypatch.setattr(cacheimage, 'verify',
                        lambda *arguments: looks.append(1) or real(*arguments))
    for _ in range(3):
        assert cache.entry(IMAGE) is not None
        cache.touch(IMAGE)
    assert len(looks) == 1
    assert another_process(cache).entry(IMAGE) is not None
    assert len(looks) == 2


def test_of_files_that_are_gone_or_replaced_nothing_is_remembered(cache):
    for number in range(20):
        image = f'{number:08x}{IMAGE[8:]}'
        place(cache, image)
        for content in (b'x' * 512, b'y' * 512):
            place(cache, image, content)
            assert cache.entry(image) is not None
        if number:
            cache.remove(image)
    assert len(cache._verified) == 1


def test_a_file_verified_under_older_rules_is_verified_each_time(cache, monkeypatch):
    place(cache, verify_rules=cacheimage.VERIFY_RULES - 1)
    looks = []
    real = cacheimage.verify
    monkeypatch.setattr(cacheimage, 'verify',
                        lambda *arguments: looks.append(1) or real(*arguments))
    assert cache.entry(IMAGE) is not None and cache.entry(IMAGE) is not None
    assert len(looks) == 2


def test_a_file_without_an_entry_does_not_count(cache):
    place(cache)
    os.unlink(f'{cache.path(IMAGE)}.json')
    assert cache.entry(IMAGE) is None and cache.entries() == []


def test_an_entry_without_a_file_does_not_count(cache):
    place(cache)
    os.unlink(cache.path(IMAGE))
    assert cache.entry(IMAGE) is None


@pytest.mark.parametrize('change', [
    {'version': 3}, {'version': None}, {'remote': None}, {'remote': {'image_id': IMAGE}},
    {'cache_image': {}}, {'cache_image': None, 'virtual_bytes': 'x'}], ids=repr)
def test_a_damaged_entry_does_not_count_and_hides_no_other(cache, change):
    place(cache)
    other = place(cache, OTHER)
    path = f'{cache.path(IMAGE)}.json'
    with open(path) as stream:
        document = json.load(stream)
    with open(path, 'w') as stream:
        json.dump({**document, **change}, stream)
    with pytest.raises(exception.InvalidManifest):
        CacheEntry.load(path)
    assert cache.entry(IMAGE) is None
    assert cache.entries() == [other]


@pytest.mark.parametrize('content', [b'', b'{', b'[]', b'null', b'5', b'\xff'])
def test_no_document_does_not_count(cache, content):
    place(cache)
    with open(f'{cache.path(IMAGE)}.json', 'wb') as stream:
        stream.write(content)
    assert cache.entry(IMAGE) is None and cache.entries() == []


def test_what_a_crash_left_is_removed(cache):
    entry = place(cache)
    other = naming.cache_file_name(OTHER)
    for name in (f'{OTHER}.partial', f'{other}.json.x1.tmp', f'{other}.partial', f'{other}.tmp',
                 'of-somebody-else.partial'):
        with open(os.path.join(cache.directory, name), 'w'):
            pass
    cache.prepare()
    assert sorted(os.listdir(cache.directory)) == sorted(
        [naming.cache_file_name(IMAGE), naming.cache_file_name(IMAGE) + '.json'])
    assert cache.entry(IMAGE) == entry


def test_a_file_whose_entry_a_crash_took_is_removed_unless_a_server_has_it(cache):
    """No quota counts it, and no server is started on it."""
    for image in (IMAGE, OTHER):
        place(cache, image)
    os.unlink(f'{cache.path(IMAGE)}.json')
    with opened(cache.path(IMAGE)):
        cache.prepare()
        assert os.path.exists(cache.path(IMAGE))
    cache.prepare()
    assert sorted(os.listdir(cache.directory)) == sorted(
        [naming.cache_file_name(OTHER), naming.cache_file_name(OTHER) + '.json'])


def test_which_paths_are_cache_images(cache):
    assert cache.holds_path(cache.path(IMAGE)) is True
    for path in (None, '', '/', cache.directory, os.path.join(cache.directory, 'sub', 'x'),
                 f'/var/lib/nova/instances/_base/{naming.cache_file_name(IMAGE)}',
                 naming.cache_file_name(IMAGE)):
        assert cache.holds_path(path) is False


@pytest.mark.parametrize('option', [
    '{0}/cache/', '{0}/cache//', '{0}//cache', '/{0}/cache', '{0}/./cache/.', '{0}/a/../cache/',
    '{0}/link', '{0}/link/', '{0}/a/b/../c/../../cache', '{0}/inside/../cache'])
def test_a_directory_is_the_same_however_its_option_is_written(tmp_path, option):
    """A trailing slash once made a host deny its own cache images."""
    (tmp_path / 'a' / 'b').mkdir(parents=True)
    (tmp_path / 'cache' / 'd').mkdir(parents=True)
    (tmp_path / 'link').symlink_to('cache')
    # What lies above it is the cache's directory, not that of the link.
    (tmp_path / 'inside').symlink_to('a/b')
    (tmp_path / 'a' / 'cache').symlink_to('../cache')
    (tmp_path / 'a' / 'c').mkdir()
    given = CacheFiles(option.format(tmp_path))
    plain = CacheFiles(str(tmp_path / 'cache'))
    given.prepare()
    entry = place(plain)
    assert given.entry(IMAGE) == entry
    for one, other in ((given, given), (given, plain), (plain, given)):
        assert one.holds_path(other.path(IMAGE))
    # An overlay's header may have been written under the option as it was given once.
    assert plain.holds_path(os.path.join(option.format(tmp_path), naming.cache_file_name(IMAGE)))
    assert cachefiles.is_same_name(given.path(IMAGE), plain.path(IMAGE))
    assert not cachefiles.is_same_name(given.path(IMAGE), plain.path(OTHER))
    assert not given.holds_path(str(tmp_path / naming.cache_file_name(IMAGE)))


def test_a_link_that_an_operator_made_stays_in_the_names(tmp_path):
    (tmp_path / 'disk').mkdir()
    (tmp_path / 'link').symlink_to('disk')
    cache = CacheFiles(f'{tmp_path}/link/')
    assert cache.directory == str(tmp_path / 'link')


def test_age_and_touch(cache):
    place(cache)
    path = cache.path(IMAGE)
    written = os.stat(path).st_mtime_ns
    os.utime(f'{path}.json', (0, 0))
    assert cache.age(IMAGE) > 10**9
    cache.touch(IMAGE)
    assert cache.age(IMAGE) < 10**6
    # The content's time is what says that it was verified.
    assert os.stat(path).st_mtime_ns == written
    assert cache.age(OTHER) == 0.0


def test_removing(cache):
    place(cache)
    assert cache.entry(IMAGE) is not None
    cache.remove(IMAGE)
    assert os.listdir(cache.directory) == [] and cache.entry(IMAGE) is None
    cache.remove(IMAGE)


def test_a_remote_out_of_an_answer():
    assert Remote.from_answer(IMAGE, {'server': ['host', '10810'], 'base_export': 'base-x'}) \
        == Remote(IMAGE, 'host', 10810, 'base-x')
    assert Remote.from_answer(IMAGE, {'server': ['host', 1], 'base_export': 'x', 'tls': True}).tls
    for answer in ({}, {'server': ['host', 1]}, {'server': ['host', 'port'], 'base_export': 'x'},
                   {'server': ['host'], 'base_export': 'x'}):
        with pytest.raises((KeyError, ValueError)):
            Remote.from_answer(IMAGE, answer)


@pytest.fixture
def two_tiers(tmp_path):
    """A disk tier and a memory tier; what the memory lies on does not matter here."""
    (tmp_path / 'memory').mkdir()
    return CacheFiles(str(tmp_path / '_bootcache'), str(tmp_path / 'memory'))


def test_what_is_not_ours_in_the_memory_directory_stays(two_tiers, tmp_path):
    two_tiers.prepare()
    memory = tmp_path / 'memory'
    (memory / 'directory').mkdir()
    for name in ('of-somebody-else', 'theirs.partial', f'{IMAGE}.store',
                 naming.cache_file_name(OTHER), f'{IMAGE}.partial', f'{IMAGE}.map.partial',
                 f'{IMAGE}.exchanged.partial'):
        (memory / name).touch()
    two_tiers.prepare()
    # A cache image without a name in the disk tier is nobody's; a store may be the gateway's.
    assert sorted(file.name for file in memory.iterdir()) == sorted(
        ['directory', 'of-somebody-else', 'theirs.partial', f'{IMAGE}.store'])


def test_names_of_a_memory_tier_that_is_gone_are_removed(two_tiers, tmp_path):
    two_tiers.prepare()
    place(two_tiers)
    path = two_tiers.path(IMAGE)
    os.rename(path, tmp_path / 'memory' / os.path.basename(path))
    os.symlink(tmp_path / 'memory' / os.path.basename(path), path)
    two_tiers.prepare()
    assert two_tiers.entry(IMAGE) is not None
    without = CacheFiles(two_tiers.directory)
    without.prepare()
    assert without.entry(IMAGE) is None and without.known(IMAGE) is not None


class NoStores:
    """Stands for a gateway without growing stores."""

    def room_of_stores(self, medium):
        return {}


@pytest.fixture
def tiers(cache):
    return Room(cache, NoStores(), HostNeeds(), {Medium.DISK: LIMITS}, HostMetrics())


def test_the_medium_itself_has_to_have_room(tiers, monkeypatch):
    monkeypatch.setattr(room.shutil, 'disk_usage', lambda path: types.SimpleNamespace(free=1000))
    with pytest.raises(exception.BootcacheError, match='1000 bytes are free'), \
            tiers.for_fetch(IMAGE, Medium.DISK, 1001):
        pass
    with tiers.for_fetch(IMAGE, Medium.DISK, 1000):
        assert tiers.arriving() == [IMAGE]
    with tiers.for_store(IMAGE, Medium.DISK, 1000):
        assert tiers.arriving() == [], 'a growing store does not arrive'
    assert tiers.arriving() == []


def test_an_update_does_not_bring_an_older_file_back(cache):
    older = place(cache)
    newer = place(cache, content=b'y' * 512)
    moved = Remote(IMAGE, '10.0.0.2', 10810, f'base-{IMAGE}')
    assert cache.update(older, moved, True, 3).file_sha256 == newer.file_sha256
    assert (cache.entry(IMAGE).remote, cache.entry(IMAGE).generation) == (moved, 3)


@pytest.mark.parametrize('act', [
    lambda cache, bring, entry: cache.update(entry, entry.remote, entry.pinned, 7),
    lambda cache, bring, entry: bring.make_empty(entry.remote, 1 << 30)],
    ids=['update', 'make_empty'])
def test_nobody_waits_for_a_paced_fetch(cache, tiers, monkeypatch, act):
    bring = Fetches(cache, tiers, WrongFiles(), Readable(), SOCKET, HostMetrics())
    entry = place(cache)
    offered = Offered(
        Storage(Offer.CACHE), remote=entry.remote, cache_export='cache-x',
        cache_image=dataclasses.replace(entry.cache_image, sha256='cd' * 32))
    fetching, ended = threading.Event(), []

    def copy(node, target, *, length, rate, seconds, check):
        fetching.set()
        for _tenth in range(100):
            check()
            time.sleep(0.01)

    monkeypatch.setattr(fetches.qemuimg, 'copy_paced', copy)

    def fetch():
        with pytest.raises(exception.Cancelled):
            bring.fetch_offered(offered, Medium.DISK, rate=1 << 16)
        ended.append(True)

    warming = threading.Thread(target=fetch)
    warming.start()
    assert fetching.wait(10)
    act(cache, bring, entry)
    warming.join(10)
    assert ended == [True]
