"""Tiers: what is evicted, for any items and limits; which directories and quotas are refused."""

import errno
import os
import subprocess
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache import tier
from bootcache.exception import ConfigurationError
from bootcache.tier import Eviction, Item, TierLimits

LIMITS = TierLimits(quota=100, high=95, low=85)


def item(key, size, last_used=0.0, **flags):
    return Item(key, size, last_used, **flags)


# The policy.

@pytest.mark.parametrize('items, incoming, room', [
    ([], 0, Eviction(True, ())),
    ([], 100, Eviction(True, ())),
    ([], 101, Eviction(False, ())),
    ([item('a', 50), item('b', 45)], 0, Eviction(True, ())),
    ([item('a', 50), item('b', 45)], 1, Eviction(True, ('a',))),
    ([item('a', 50, 2), item('b', 45, 1)], 1, Eviction(True, ('b',))),
    ([item('a', 5, 1), item('b', 10, 2), item('c', 75, 3)], 10, Eviction(True, ('a', 'b'))),
    ([item('a', 50, 1, pinned=True), item('b', 40, 2, busy=True), item('c', 9, 3)], 0,
     Eviction(True, ('c',))),
    ([item('a', 50, pinned=True), item('b', 50, busy=True)], 0, Eviction(True, ())),
    # Nothing goes for what does not fit anyway.
    ([item('a', 60, pinned=True), item('b', 20)], 50, Eviction(False, ())),
    ([item('a', 20), item('b', 20)], 200, Eviction(False, ()))])
def test_examples(items, incoming, room):
    assert tier.make_room(items, LIMITS, incoming) == room


times = st.floats(0, 10) | st.just(1.0)
sizes = st.integers(0, 60)
stocks = st.lists(st.tuples(sizes, times, st.booleans(), st.booleans()), max_size=12).map(
    lambda rows: [Item(f'image-{index}', *row) for index, row in enumerate(rows)])
limits = st.lists(st.integers(0, 200), min_size=3, max_size=3).map(
    lambda values: TierLimits(*sorted(values, reverse=True)))


@given(stocks, limits, st.integers(0, 150), st.randoms())
def test_the_policy_holds_for_any_tier(items, bounds, incoming, random):
    room = tier.make_room(items, bounds, incoming)
    by_key = {entry.key: entry for entry in items}
    gone = [by_key[key] for key in room.evict]
    used = sum(entry.bytes for entry in items) + incoming
    left = used - sum(entry.bytes for entry in gone)
    movable = sorted((entry for entry in items if not entry.pinned and not entry.busy),
                     key=lambda entry: (entry.last_used, entry.key))
    assert len(set(room.evict)) == len(gone)
    # Least recently used first, none left out, none that must stay.
    assert gone == movable[:len(gone)]
    if room.fits:
        assert left <= bounds.quota
        if used <= bounds.high:
            assert not gone
        else:
            assert left <= bounds.low or len(gone) == len(movable)
        if gone:
            assert left + gone[-1].bytes > bounds.low
    else:
        assert not gone
        assert used - sum(entry.bytes for entry in movable) > bounds.quota
    shuffled = list(items)
    random.shuffle(shuffled)
    assert tier.make_room(shuffled, bounds, incoming) == room


@pytest.mark.parametrize('values', [(1, 2, 0), (2, 1, 2), (1, 1, -1)])
def test_limits_are_in_order(values):
    with pytest.raises(ValueError):
        TierLimits(*values)


def test_limits_from_percentages():
    assert TierLimits.from_percent(1000, 95, 85) == TierLimits(1000, 950, 850)


# Directories.

def test_a_directory_that_can_be_used(tmp_path):
    tier.check_directory('cache_directory', str(tmp_path))
    tier.check_directory('cache_directory', str(tmp_path / 'a' / 'b'), make=True)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob('*')] == ['a', 'a/b']


@pytest.mark.parametrize('path, make, reason', [
    ('relative', True, 'absolute'), ('', True, 'absolute'), ('/missing', False, 'exist'),
    ('/file', False, 'not a directory'), ('/file', True, 'not a directory'),
    ('/file/below', True, 'cannot be written'), ('/dangling', False, 'not a directory')])
def test_a_directory_that_cannot_be_used(tmp_path, path, make, reason):
    (tmp_path / 'file').touch()
    (tmp_path / 'dangling').symlink_to(tmp_path / 'nowhere')
    path = f'{tmp_path}{path}' if path.startswith('/') else path
    with pytest.raises(ConfigurationError, match=reason) as caught:
        tier.check_directory('cache_directory', path, make=make)
    assert str(caught.value).startswith(f'[bootcache]cache_directory={path}: ')


def test_a_tmpfs_that_is_not_mounted_is_told_before_rights(tmp_path, monkeypatch):
    """The directory below is often root's, and it would help nobody to make it writable."""
    quota = 'compute_memory_quota', 1
    monkeypatch.setattr(tier, 'file_system', lambda directory: 'ext4')
    monkeypatch.setattr(tempfile, 'TemporaryFile', lambda **_arguments: pytest.fail('written'))
    with pytest.raises(ConfigurationError, match='does not lie in memory; mount a tmpfs there'):
        tier.check_directory('compute_memory_directory', str(tmp_path), memory=quota)
    with pytest.raises(ConfigurationError, match='make the directory, and mount a tmpfs there'):
        tier.check_directory('compute_memory_directory', str(tmp_path / 'none'), memory=quota)


@pytest.mark.parametrize('number', [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch, number):
    def refuse(**_arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, 'TemporaryFile', refuse)
    with pytest.raises(ConfigurationError, match=os.strerror(number)):
        tier.check_directory('cache_directory', str(tmp_path))


@pytest.mark.parametrize('first, second', [
    ('/a', '/a'), ('/a', '/a/b'), ('/a/b', '/a'), ('/a', '/link'), ('/link/x', '/a'),
    ('/a', '/b/../a/c')])
def test_tiers_that_overlap(tmp_path, first, second):
    (tmp_path / 'a').mkdir()
    (tmp_path / 'b').mkdir()
    (tmp_path / 'link').symlink_to('a')
    with pytest.raises(ConfigurationError, match='state_dir') as caught:
        tier.check_apart({'state_dir': f'{tmp_path}{first}',
                          'storage_memory_directory': f'{tmp_path}{second}'})
    assert '[bootcache]storage_memory_directory' in str(caught.value)


def test_tiers_that_lie_apart(tmp_path):
    tier.check_apart({'a': f'{tmp_path}/a', 'b': f'{tmp_path}/ab', 'c': f'{tmp_path}/c/a'})


def test_what_lies_in_memory(tmp_path):
    assert not tier.is_memory('/proc')
    with pytest.raises(OSError):
        tier.is_memory(str(tmp_path / 'missing'))


# Quotas.

def test_limits_from_options():
    assert tier.parse_limits('q', '4GiB', 95, 85, 1 << 30).quota == 4 << 30
    assert tier.parse_limits('q', '1000', 100, 0, 1000) == TierLimits(1000, 1000, 0)


@pytest.mark.parametrize('values, option', [
    (('much', 95, 85), 'q=much'), (('', 95, 85), 'q='), (('-1', 95, 85), 'q=-1'),
    (('999', 95, 85), 'q=999: is below 1000 bytes'), (('0', 95, 85), 'q=0'),
    (('1000', 101, 85), 'high_watermark=101'), (('1000', 0, 85), 'high_watermark=0'),
    (('1000', 85, 85), 'low_watermark=85'), (('1000', 50, 85), 'low_watermark=85'),
    (('1000', 50, -1), 'low_watermark=-1')])
def test_limits_that_make_no_sense(values, option):
    with pytest.raises(ConfigurationError) as caught:
        tier.parse_limits('q', *values, minimum=1000)
    assert f'[bootcache]{option}' in str(caught.value)


def test_the_kernel_tells_whether_a_disk_has_a_head(tmp_path):
    def told(*command):
        return subprocess.run(command, check=False, text=True, capture_output=True).stdout.split()

    source = told('findmnt', '-no', 'SOURCE', '-T', str(tmp_path))
    found = told('lsblk', '-ndo', 'ROTA', source[0]) if source else []
    if not found:
        pytest.skip('no disk of its own is below the folder for temporary files')
    assert tier.spins(str(tmp_path)) is (found == ['1'])


def test_what_is_on_no_disk_has_none():
    assert not tier.spins('/dev/shm') and not tier.spins('/proc') and not tier.spins('/missing')
