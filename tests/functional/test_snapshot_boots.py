"""Boots from a snapshot as the benchmark measures them, of a tiny made-up image and boot."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from functional_tools import qemu_img

from bench.replay.node import HOST_DIRECTORY
from bench.replay.trace import Header, Request, Trace
from bench.snapshots import bootfigures, boots
from bench.snapshots.bootfigures import ARRIVES, FETCHED, MADE, MADE_EXPANDED, STOCK

MIB = 1 << 20
SIZE = 24 * MIB
READ = 12 * MIB

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='network namespaces are made by root')


def boot():
    """Reads, in pieces of 1 MiB, from the end on."""
    made = Trace(Header('tiny', '', SIZE, READ // MIB, 0.1, 0.0, {}), tuple(
        Request('r', offset, MIB, number - 1, 0.0, 0.0)
        for number, offset in enumerate(range(READ - MIB, -1, -MIB))))
    made.check()
    return made


def hosts_files():
    return {name for name in os.listdir('/dev/shm') if name.startswith('bcr-snap-')}


@pytest.fixture
def image(directory):
    """A tiny made-up image, and a place for what is measured; nothing may be left of that."""
    raw, image, home = (f'{directory}/{name}' for name in ('raw', 'image', 'home'))
    Path(raw).write_bytes(random.Random(0).randbytes(SIZE))
    qemu_img('convert', '-f', 'raw', '-O', 'qcow2', raw, image)
    os.mkdir(home)
    before = hosts_files()
    yield home, image
    listed = subprocess.run(['ip', 'netns', 'list'], check=True, capture_output=True, text=True)
    assert f'bcr{os.getpid()}-' not in listed.stdout
    assert hosts_files() == before and not os.path.exists(HOST_DIRECTORY)


def test_what_travels_is_counted_in_every_way(image):
    runs = boots.measured(*image, [boot(), boot()], [2 * MIB], 3 * MIB, 1, [1_000_000_000])
    found = {run['way']: run for run in runs}
    assert list(found) == [MADE, MADE_EXPANDED, ARRIVES, FETCHED, STOCK]
    for run in runs:
        assert 0 < run['seconds_to_chain'] < run['seconds_to_booted']
        assert run['differing_bytes'] == 2 * MIB and run['changed_bytes'] == 3 * MIB
        assert run['data_bytes'] == READ
    for way in (MADE, MADE_EXPANDED):
        assert 2 * MIB < found[way]['network_bytes'] <= 1.1 * 2 * MIB
    for way in (ARRIVES, FETCHED):
        assert found[way]['network_bytes'] > READ
    assert found[STOCK]['network_bytes'] > found[STOCK]['image_bytes'] > SIZE
    assert [one['met'] for one in bootfigures.judged(runs)] == [True, True, None]


def test_what_the_disk_has_no_room_for_is_not_resumed_and_told(image, monkeypatch, capsys):
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: shutil._ntuple_diskusage(1, 1, 0))
    assert boots.resumed(*image, [boot(), boot()], 3, 2 * MIB, 3 * MIB, 1) == []
    assert '3 servers are not resumed' in capsys.readouterr().err


def test_a_deployment_is_resumed_on_as_many_hosts(image):
    runs = boots.resumed(*image, [boot(), boot()], 3, 2 * MIB, 3 * MIB, 1)
    found = {run['way']: run for run in runs}
    assert list(found) == [MADE, ARRIVES, STOCK]
    for run in runs:
        assert run['servers'] == 3 and run['differing_bytes'] == 3 * 2 * MIB
        assert run['median_seconds_to_booted'] <= run['seconds_to_booted']
    assert 3 * 2 * MIB < found[MADE]['network_bytes'] <= 1.1 * 3 * 2 * MIB
    assert found[ARRIVES]['network_bytes'] > 3 * READ
    assert found[STOCK]['network_bytes'] > found[STOCK]['image_bytes'] > 3 * SIZE
