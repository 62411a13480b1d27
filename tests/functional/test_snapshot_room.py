"""Snapshots on Glance's file store leave room for what others store there meanwhile: a fiftieth.

Real files and QEMU, on a small XFS that somebody else fills in the midst of a step.
"""

import os
import subprocess

import pytest
from glance_files import ALWAYS, BASE, MIB, SIZE, begun, configured, made_of
from reflinks import xfs

from bootcache import exception, qemuimg
from glance_bootcache.filestore import placing
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.stores import SnapshotUnfit

TOTAL = 400 * MIB


def free(place):
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def fill(place, left):
    with open(f'{place}/other', 'ab') as stream:
        os.posix_fallocate(stream.fileno(), 0, free(place) - left)


@pytest.fixture
def place(directory):
    with xfs(directory, size=TOTAL) as found:
        os.makedirs(f'{found}/images')
        yield found


@pytest.fixture
def snapshots(directory, place):
    return FileSnapshots(configured(f'{directory}/state', f'{place}/images'), ALWAYS)


@pytest.fixture
def written(make_base, place, snapshots):
    """The record of one that shares all of its base, of which a host has written 100 MiB."""
    record, _node = begun(snapshots, made_of(make_base(f'{place}/base', SIZE, [], 'raw'), 'raw'),
                          BASE, 2 * SIZE)
    commands = '\n'.join(f'write -q -P {number + 1} {number}M 1M' for number in range(100))
    subprocess.run(['qemu-io', '-f', 'qcow2', record.work + placing.OVERLAY],
                   input=commands, check=True, text=True, capture_output=True)
    snapshots.check_room(record)
    return record


@pytest.fixture
def look(snapshots, written, directory):
    """Has it be looked at."""
    def once():
        with snapshots.looked_at(written, directory, lambda: None):
            pass
    return once


def test_what_a_host_wrote_is_put_together_where_it_has_room_twice(snapshots, written, place, look):
    fill(place, 90 * MIB)
    snapshots.check_room(written)
    before = free(place)
    with pytest.raises(exception.StorageNodeFull):
        look()
    assert free(place) == before, 'nothing was begun'
    os.truncate(f'{place}/other', 0)
    look()


def test_what_a_host_wrote_is_not_left_out_as_it_cannot_be_looked_at(written, look):
    path = written.work + placing.OVERLAY
    os.rename(path, f'{path}.away')
    os.symlink(path, path)
    with pytest.raises(OSError, match='symbolic links'):
        look()
    os.rename(f'{path}.away', path)
    look()


def test_it_is_given_up_where_others_take_the_room_meanwhile(place, look, monkeypatch):
    send_own = qemuimg.send_own

    def others_first(*arguments, **named):
        fill(place, 6 * MIB)
        send_own(*arguments, **named)

    monkeypatch.setattr(qemuimg, 'send_own', others_first)
    with pytest.raises(exception.StorageNodeFull):
        look()
    # Nothing says that it was put together: it is done anew, or removed.
    os.truncate(f'{place}/other', 0)
    monkeypatch.undo()
    look()


def test_so_is_a_copy_where_others_begin_at_the_same_time(make_base, directory, place, snapshots,
                                                          monkeypatch):
    """Each looks before any of them has written anything."""
    base, copy = make_base(f'{directory}/base', SIZE, [(0, SIZE, 'data')], 'raw'), placing.copy

    def others_first(*arguments):
        fill(place, 6 * MIB)
        copy(*arguments)

    monkeypatch.setattr(placing, 'copy', others_first)
    with pytest.raises(SnapshotUnfit, match='no room'):
        begun(snapshots, made_of(base, 'raw'), BASE)
    snapshots.discard(Record(BASE))
    assert snapshots.left() == [] and os.listdir(f'{place}/images/.bootcache') == []
    assert free(place) >= 5 * MIB
