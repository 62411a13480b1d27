"""What is noted of a copy that was interrupted, and when it is worth its space.

The copying itself is stood for; tests/functional/test_fullbase_resumed.py has the real one.
"""

import contextlib
import json
import os

import pytest

from bootcache import exception
from nova_bootcache.settling import fullbase, partial
from nova_bootcache.settling.partial import Partial

MIB = 1 << 20
TOTAL = 10 * MIB + 100
HASH = 'sha512:ab'
PIECE = 4 * MIB
BASE = '0' * 40


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / f'{BASE}.bootcache')


@pytest.fixture
def pieces(monkeypatch):
    """Notes the pieces that are copied, and fails at one."""
    asked = []

    def copy_piece(source, target, *, offset, length, target_bytes, rate, seconds, check):
        check()
        asked.append((offset, length, seconds))
        assert os.path.getsize(target) >= offset + target_bytes >= offset + length
        with open(target, 'r+b') as stream:
            stream.seek(offset)
            # QEMU's first block may be there.
            assert not any(stream.read()), 'the place has nothing but zeros'
            stream.seek(offset)
            stream.write(b'x' * length)
        if offset == copy_piece.fails_at:
            raise exception.BootcacheError('away')
        return offset not in copy_piece.holes

    copy_piece.fails_at, copy_piece.holes = -1, ()
    copy_piece.asked = asked
    monkeypatch.setattr(partial.qemuimg, 'copy_piece', copy_piece)
    return copy_piece


def copy(path, image_hash=HASH, total=TOTAL, rate=0):
    return Partial(path, image_hash, total).copy({}, piece_bytes=PIECE, rate=rate,
                                                 check=lambda: None)


def interrupt(path, pieces, at=2 * PIECE):
    pieces.fails_at = at
    with pytest.raises(exception.BootcacheError):
        copy(path)
    pieces.fails_at = -1
    pieces.asked.clear()


def offsets(pieces):
    return [offset for offset, _length, _seconds in pieces.asked]


def test_pieces_grow_where_nothing_but_holes_comes(path, pieces):
    pieces.holes = (0, 4 * MIB)
    Partial(path, HASH, 40 * MIB).copy({}, piece_bytes=PIECE, rate=0, check=lambda: None)
    assert [(offset // MIB, length // MIB) for offset, length, _seconds in pieces.asked] \
        == [(0, 4), (4, 8), (12, 16), (28, 4), (32, 4), (36, 4)]


def test_it_is_copied_in_pieces_with_a_deadline_each(path, pieces):
    assert copy(path, rate=MIB) == 0
    assert [entry[:2] for entry in pieces.asked] == [
        (0, PIECE), (PIECE, PIECE), (2 * PIECE, 2 * MIB + 512)]
    assert [seconds for _offset, _length, seconds in pieces.asked[:2]] == [600 + 3 * 4] * 2
    assert os.path.getsize(path) == TOTAL and partial.is_usable(path)


def test_what_is_whole_is_not_copied_again(path, pieces):
    copy(path)
    pieces.asked.clear()
    assert copy(path) == TOTAL and pieces.asked == [] and os.path.getsize(path) == TOTAL


def test_it_goes_on_with_the_piece_that_was_under_way(path, pieces):
    interrupt(path, pieces)
    assert partial.is_usable(path)
    assert copy(path) == 2 * PIECE and offsets(pieces) == [2 * PIECE]
    with open(path, 'rb') as stream:
        assert stream.read() == b'x' * TOTAL


def test_the_first_piece_under_way_counts_for_nothing(path, pieces):
    interrupt(path, pieces, at=0)
    assert not partial.is_usable(path)
    assert copy(path) == 0 and offsets(pieces) == [0, PIECE, 2 * PIECE]


@pytest.mark.parametrize('changed', [{'image_hash': 'sha512:cd'}, {'total': TOTAL + 1}], ids=str)
def test_another_content_is_copied_from_the_start(path, pieces, changed):
    interrupt(path, pieces)
    assert copy(path, **changed) == 0 and offsets(pieces) == [0, PIECE, 2 * PIECE]


@pytest.mark.parametrize('damage', [
    lambda journal: {**journal, 'version': 2}, lambda journal: {**journal, 'done_bytes': -512},
    lambda journal: {**journal, 'done_bytes': 0}, lambda journal: {**journal, 'done_bytes': True},
    lambda journal: {**journal, 'done_bytes': 12 * MIB},
    lambda journal: {**journal, 'done_bytes': 1000},
    lambda journal: {**journal, 'done_bytes': 2 * PIECE + 0.0},
    lambda journal: {**journal, 'image_hash': ['sha512:ab']}, lambda journal: {},
    lambda journal: [], lambda journal: None, lambda journal: {**journal, 'more': 'x' * 5000}])
def test_a_journal_that_cannot_be_used(path, pieces, damage):
    interrupt(path, pieces)
    with open(path + '.json') as stream:
        journal = json.load(stream)
    with open(path + '.json', 'w') as stream:
        json.dump(damage(journal), stream)
    assert not partial.is_usable(path)
    assert copy(path) == 0 and offsets(pieces)[0] == 0


def test_a_file_that_has_less_than_its_journal_says(path, pieces):
    interrupt(path, pieces)
    os.truncate(path, 2 * PIECE - 1)
    assert copy(path) == 0 and offsets(pieces)[0] == 0
    os.unlink(path)
    assert not partial.is_usable(path) and copy(path) == 0


def test_a_file_to_which_the_exchange_may_still_write_is_left_for_another(path, pieces):
    """Of a process that was killed: what is verified here is to stay as it is."""
    interrupt(path, pieces)
    assert Partial(path, HASH, TOTAL).scatter()
    with open(path, 'r+b') as left:
        assert copy(path) == 0
        left.write(b'what a host sends that lies')
        left.flush()
        with open(path, 'rb') as stream:
            assert stream.read() == b'x' * TOTAL


def test_an_empty_file(path, pieces):
    assert copy(path, total=0) == 0
    assert os.path.getsize(path) == 0 and pieces.asked == []


# What stays when nobody is at work.

def sweep(path, *arguments, **keywords):
    """Sweep, and give what stays of the copy: nothing of it, or all."""
    directory = os.path.dirname(path)
    fullbase.sweep(directory, *arguments, **keywords)
    left = {name.removeprefix(BASE) for name in os.listdir(directory)} - {''}
    assert left in (set(), {'.bootcache', '.bootcache.json'})
    return bool(left)


def test_a_copy_stays_while_it_is_wanted(path, pieces):
    interrupt(path, pieces)
    assert sweep(path) and sweep(path, {BASE, 'other'})
    assert not sweep(path, {'other'})


def test_a_copy_goes_when_its_base_is_there(path, pieces):
    interrupt(path, pieces)
    open(path.removesuffix('.bootcache'), 'w').close()
    assert not sweep(path, {BASE})


def test_a_copy_goes_when_space_is_short(path, pieces):
    interrupt(path, pieces)
    assert not sweep(path, {BASE}, keep_free=1 << 60)


@pytest.mark.parametrize('hours, stays', [(23, True), (25, False), (-25, False)])
def test_a_copy_goes_a_day_after_its_last_piece(path, pieces, hours, stays):
    interrupt(path, pieces)
    there = os.stat(path + '.json').st_mtime - 3600 * hours
    os.utime(path + '.json', (there, there))
    assert sweep(path, {BASE}) is stays


@pytest.mark.parametrize('lost', ['', '.json'])
def test_neither_stays_without_the_other(path, pieces, lost):
    interrupt(path, pieces)
    os.unlink(path + lost)
    assert not sweep(path)


def test_what_a_crash_left_of_a_journal_goes(path, pieces):
    interrupt(path, pieces)
    open(path + '.json.abc_12.tmp', 'w').close()
    assert sweep(path) and not os.path.exists(path + '.json.abc_12.tmp')


def test_files_of_others_stay(path):
    directory = os.path.dirname(path)
    others = {BASE, f'{BASE}_20', 'swap_1', f'{BASE}.part', f'{BASE}.bootcache.other',
              'bootcache.json'}
    for name in others:
        with contextlib.closing(open(os.path.join(directory, name), 'w')):
            pass
    fullbase.sweep(directory, (), keep_free=1 << 60)
    assert set(os.listdir(directory)) == others
