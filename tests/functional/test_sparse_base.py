"""A base that is holes for the most part is had at the pace of its data."""

import contextlib
import os
import threading
import types

import pytest
from functional_tools import qemu_img

from bootcache import qemuimg, savefile
from nova_bootcache.settling import fullbase, partial

MIB = 1 << 20
SIZE = 512 * MIB
DATA = 8 * MIB
RATE = 4 * MIB


@pytest.fixture
def sparse(directory):
    """A raw image of 512 MiB with 8 MiB of data, at its begin, in its midst and at its end."""
    path = f'{directory}/image'
    with open(path, 'wb') as stream:
        for place, length in ((0, MIB), (SIZE // 2, DATA - 2 * MIB), (SIZE - MIB, MIB)):
            stream.seek(place)
            stream.write(os.urandom(length))
    os.mkdir(f'{directory}/_base')
    return path


@pytest.fixture
def slept(monkeypatch):
    """How long was waited for the pace, in seconds that do not pass."""
    waited = types.SimpleNamespace(hashing=0.0, copying=0.0, pieces=0)

    def sleep(seconds):
        waited.hashing += seconds

    def wait(seconds, check):
        waited.copying += seconds

    def note(what):
        waited.pieces += what == 'settle: piece'

    monkeypatch.setattr(fullbase, 'time', types.SimpleNamespace(
        monotonic=lambda: waited.hashing, sleep=sleep))
    monkeypatch.setattr(qemuimg, '_wait', wait)
    monkeypatch.setattr(partial.steps, 'reached', note)
    return waited


def test_holes_cost_no_time(sparse, directory, slept):
    target, image_hash = f'{directory}/_base/{"0" * 40}', savefile.file_digest(sparse)
    assert fullbase.complete(
        {'driver': 'file', 'filename': sparse}, SIZE, f'sha256:{image_hash}', 'raw', target,
        raw=True, rate=RATE, keep_free=0, cancelled=threading.Event(),
        lock=contextlib.nullcontext())
    qemu_img('compare', '-f', 'raw', '-F', 'raw', sparse, target)
    assert os.stat(target).st_blocks * 512 < 2 * DATA
    # All of the data, and nothing else. What is copied is paced by QEMU, but for a first request.
    assert DATA / RATE - 1 <= slept.hashing <= DATA / RATE + 1
    assert slept.copying <= DATA / RATE
    assert slept.pieces <= 10
