"""nbdkit plugin: a file that is as slow as a hard disk (diskmodel.py). Started by slowdisk.py.

Environment: BCR_FILE, BCR_ACCESS (seconds), BCR_RATE (bytes a second), BCR_FAST: a path; as long as
something is there, the disk is as fast as the file.
"""

import os
import threading
import time

import nbdkit

from bench.replay.diskmodel import Disk, following

API_VERSION = 2
_FILE = os.open(os.environ['BCR_FILE'], os.O_RDWR)
_FAST = os.environ['BCR_FAST']
_DISK = Disk(float(os.environ['BCR_ACCESS']), float(os.environ['BCR_RATE']))
_CHANGED = threading.Condition()
_WAITING: list[tuple[int, object]] = []
# Who has the head.
_TURN: tuple[int, object] | None = None


def thread_model():
    """Requests wait for the head, not for each other's callbacks."""
    return nbdkit.THREAD_MODEL_PARALLEL


def open(readonly):
    """All connections share the disk."""
    return 0


def get_size(handle):
    """Size in bytes."""
    return os.fstat(_FILE).st_size


def can_multi_conn(handle):
    """One disk behind all connections."""
    return True


def can_flush(handle):
    """Flushes wait for the medium."""
    return True


def can_trim(handle):
    """Trimming costs nothing."""
    return True


def can_zero(handle):
    """Zeros cost what a small write costs."""
    return True


def _next():
    """Give the head to one of those who wait."""
    global _TURN
    _TURN = None
    if _WAITING:
        _TURN = _WAITING.pop(following([one[0] for one in _WAITING], _DISK.position))
        _CHANGED.notify_all()


def _head(offset, work):
    """Wait for the head, and have it work; ``work`` tells when that is done."""
    me = (offset, object())
    with _CHANGED:
        _WAITING.append(me)
        if _TURN is None:
            _next()
        while _TURN is not me:
            _CHANGED.wait()
        done = work(time.monotonic())
    time.sleep(max(0.0, done - time.monotonic()))
    with _CHANGED:
        _next()


def pread(handle, buffer, offset, flags):
    """Read."""
    length = len(buffer)
    os.preadv(_FILE, [buffer], offset)
    if os.path.exists(_FAST):
        return
    with _CHANGED:
        now = time.monotonic()
        if _DISK.buffered(now, offset, length):
            return
    _head(offset, lambda now: _DISK.read(now, offset, length))


def pwrite(handle, buffer, offset, flags):
    """Write."""
    os.pwrite(_FILE, buffer, offset)
    if not os.path.exists(_FAST):
        _head(offset, lambda now: _DISK.write(now, offset, len(buffer)))


def zero(handle, count, offset, flags):
    """Write zeros."""
    os.pwrite(_FILE, bytes(count), offset)
    if not os.path.exists(_FAST):
        _head(offset, lambda now: _DISK.write(now, offset, 4096))


def trim(handle, count, offset, flags):
    """Let go of a range."""


def flush(handle, flags):
    """Wait until all is on the medium."""
    if not os.path.exists(_FAST):
        _head(_DISK.position, _DISK.flush)
