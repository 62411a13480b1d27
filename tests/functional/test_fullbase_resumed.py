"""A copy of an image file that is interrupted goes on where it was: from a real exporter."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from functional_tools import processes_of, until
from test_fullbase import MIB, NAME, ODD, complete, exporter_pid, nothing, only
from test_fullbase import stored as stored  # the fixtures
from test_fullbase import target as target

from bootcache import exception, qemuimg, savefile
from nova_bootcache.settling import fullbase

PIECE = 4 * MIB


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(fullbase, '_PIECE', PIECE)


@pytest.fixture
def image(stored):
    """A raw image file without holes in the first pieces, its node and its hash."""
    path, _node = stored('raw', pieces=[(0, 10 * MIB, 'data'), (14 * MIB, MIB, 'data')])
    os.truncate(path, 16 * MIB + ODD)
    return path, stored.serve(path), savefile.file_digest(path, 'sha512')


def interrupted(image, target, monkeypatch, at=2 * PIECE, **changes):
    """Have the piece at a place miss its deadline: no time is left for it."""
    copy_piece = qemuimg.copy_piece

    def late(*arguments, offset, seconds, **how):
        return copy_piece(*arguments, offset=offset, seconds=0 if offset >= at else seconds,
                          **how)

    with monkeypatch.context() as patch:
        patch.setattr(qemuimg, 'copy_piece', late)
        with pytest.raises(exception.BootcacheError, match='not done after 0 s'):
            complete(image[0], image[1], target, 'raw', image[2], **changes)


def done(target):
    with open(f'{target}.bootcache.json') as stream:
        return json.load(stream)['done_bytes']


def overwrite(path, offset, length, content=b'\xee'):
    with open(path, 'r+b') as stream:
        stream.seek(offset)
        stream.write(content * length)


def test_after_a_missed_deadline_only_the_rest_is_copied(image, target, monkeypatch):
    path, node, digest = image
    interrupted(image, target, monkeypatch)
    assert done(target) == 2 * PIECE and not os.path.exists(target)
    with open(f'{target}.bootcache.json') as stream:
        assert json.load(stream) == {
            'version': 1, 'image_hash': f'sha512:{digest}', 'total_bytes': 16 * MIB + ODD,
            'done_bytes': 2 * PIECE}
    # The storage node has something else there now: whoever asked again would get that.
    overwrite(path, 0, 2 * PIECE)
    assert complete(path, node, target, 'raw', digest) is True
    assert savefile.file_digest(target, 'sha512') == digest and only(target)
    # Holes stay holes; QEMU's look for the right alignment leaves a block.
    assert os.stat(target).st_blocks * 512 <= 11 * MIB + 8192


def test_what_a_piece_under_way_left_is_not_taken_for_its_content(image, target, monkeypatch):
    path, node, digest = image
    interrupted(image, target, monkeypatch)
    # The image has zeros behind 10 MiB, which are not written.
    overwrite(f'{target}.bootcache', 2 * PIECE, 7 * MIB)
    overwrite(path, 0, 2 * PIECE)
    assert complete(path, node, target, 'raw', digest) is True
    assert savefile.file_digest(target, 'sha512') == digest


def test_a_killed_process_is_gone_on_from(image, target, directory):
    path, node, digest = image
    script = f"""
import contextlib, threading
from nova_bootcache.settling import fullbase
fullbase._PIECE = {PIECE}
fullbase.complete({node!r}, {os.path.getsize(path)}, 'sha512:{digest}', 'raw', {target!r},
                  raw=True, rate={4 * MIB}, keep_free=0, cancelled=threading.Event(),
                  lock=contextlib.nullcontext())
"""
    process = subprocess.Popen([sys.executable, '-c', script], cwd=os.getcwd())
    try:
        until(lambda: os.path.exists(f'{target}.bootcache.json'), 'the first piece')
    finally:
        process.kill()
        process.wait()
    until(lambda: processes_of(f'{directory}/_base') == [], 'the end of qemu-img')
    # As nova-compute does when it starts.
    fullbase.sweep(f'{directory}/_base')
    assert 0 < done(target) < 16 * MIB
    overwrite(path, 0, done(target))
    assert complete(path, node, target, 'raw', digest) is True
    assert savefile.file_digest(target, 'sha512') == digest and only(target)


def test_stopping_and_going_on(image, target):
    path, node, digest = image
    cancelled, raised = threading.Event(), []

    def run():
        try:
            complete(path, node, target, 'raw', digest, rate=4 * MIB, cancelled=cancelled)
        except exception.Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: os.path.exists(f'{target}.bootcache.json'), 'the first piece')
    cancelled.set()
    thread.join()
    assert raised
    overwrite(path, 0, done(target))
    assert complete(path, node, target, 'raw', digest) is True


def test_a_storage_node_that_is_away_takes_nothing_back(image, target, directory, monkeypatch):
    path, node, digest = image
    interrupted(image, target, monkeypatch)
    os.kill(exporter_pid(directory), signal.SIGKILL)
    with pytest.raises(exception.BootcacheError, match='qemu-img convert failed'):
        complete(path, node, target, 'raw', digest)
    assert done(target) == 2 * PIECE


def test_an_earlier_part_that_is_wrong_is_copied_anew_once(image, target, monkeypatch, caplog):
    path, node, digest = image
    interrupted(image, target, monkeypatch)
    overwrite(f'{target}.bootcache', MIB, MIB)
    assert complete(path, node, target, 'raw', digest) is True
    assert savefile.file_digest(target, 'sha512') == digest and only(target)
    assert caplog.text.count('is copied anew') == 1


def test_what_is_wrong_also_anew_leaves_nothing(image, target, monkeypatch, caplog):
    path, node, digest = image
    interrupted(image, target, monkeypatch)
    overwrite(f'{target}.bootcache', MIB, MIB)
    overwrite(path, MIB, MIB)
    with pytest.raises(exception.BootcacheError, match='but Glance says'):
        complete(path, node, target, 'raw', digest)
    assert caplog.text.count('is copied anew') == 1 and nothing(target)


def test_another_content_meanwhile_is_copied_from_the_start(image, target, monkeypatch, caplog):
    path, node, _digest = image
    interrupted(image, target, monkeypatch)
    overwrite(path, MIB, MIB)
    assert complete(path, node, target, 'raw') is True
    assert savefile.file_digest(target) == savefile.file_digest(path) and only(target)
    assert 'is copied anew' not in caplog.text, 'it was not even tried with the earlier part'


def test_an_interrupted_conversion_goes_on_too(stored, target, directory, monkeypatch):
    path, node = stored(pieces=[(0, 12 * MIB, 'data')])
    monkeypatch.setattr(fullbase, '_CONVERTED_PIECE', PIECE)
    copy_piece, asked, is_slow = qemuimg.copy_piece, [], True

    def piece(source, place, *, offset, seconds, **how):
        asked.append((os.path.basename(place), offset))
        is_late = is_slow and place.endswith('.raw') and offset == 2 * PIECE
        return copy_piece(source, place, offset=offset, seconds=0 if is_late else seconds, **how)

    monkeypatch.setattr(qemuimg, 'copy_piece', piece)
    with pytest.raises(exception.BootcacheError, match='not done after 0 s'):
        complete(path, node, target)
    # What the storage node served is here: it is not asked again.
    os.kill(exporter_pid(directory), signal.SIGKILL)
    asked.clear()
    is_slow = False
    assert complete(path, node, target) is True and only(target)
    assert asked == [(f'{NAME}.bootcache.raw', 2 * PIECE), (f'{NAME}.bootcache.raw', 3 * PIECE)]
    subprocess.run(['qemu-img', 'compare', '-f', 'qcow2', '-F', 'raw', path, target], check=True)


def test_without_room_what_was_copied_goes(image, target, monkeypatch):
    interrupted(image, target, monkeypatch)
    with pytest.raises(exception.BootcacheError, match='bytes are free'):
        complete(image[0], image[1], target, 'raw', image[2], keep_free=1 << 60)
    assert nothing(target)


def test_a_directory_whose_name_has_a_comma(stored, directory):
    path, node = stored('raw', pieces=[(0, 3 * MIB, 'data')])
    os.mkdir(f'{directory}/a,b')
    assert complete(path, node, f'{directory}/a,b/{NAME}', 'raw') is True
    assert savefile.file_digest(f'{directory}/a,b/{NAME}') == savefile.file_digest(path)
