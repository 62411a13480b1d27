"""Completing a full base from a real exporter: right bytes, Nova's form, cancelling, crashes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from functional_tools import processes_of, qemu_img, until

from bootcache import exception, naming, qemuimg, savefile
from bootcache.cacheimage import Base
from bootcache.storagedaemon import UnixListener
from nova_bootcache.settling import fullbase
from nova_bootcache.storagenode import nbd_node

MIB = 1 << 20
NAME = '0' * 40
# No whole sectors, as the files of images may be.
ODD = 100


@pytest.fixture
def stored(directory, daemons, make_base):
    """Makes an image file and serves its bytes; gives its path and the exporter's node."""
    daemon = daemons('exporter')
    daemon.ensure_running()
    assert isinstance(daemon.listener, UnixListener)

    def make(image_format='qcow2', name='image', pieces=None):
        path = make_base(f'{directory}/{name}', 16 * MIB,
                         pieces or [(0, 3 * MIB, 'data'), (6 * MIB, MIB, 'zeros'),
                                    (9 * MIB, 2 * MIB, 'data')], image_format, seed=len(name))
        return path, serve(path)

    def serve(path):
        number = len(daemon.exports())
        daemon.add_nodes(*Base(path, 'raw', 0).nodes(f'file{number}'))
        daemon.add_export(f'stored-{number}', f'file{number}')
        return {**nbd_node('', 0, f'stored-{number}'),
                'server': {'type': 'unix', 'path': daemon.listener.path}}

    make.serve = serve
    os.mkdir(f'{directory}/_base')
    return make


@pytest.fixture
def target(directory):
    return f'{directory}/_base/{NAME}'


def complete(path, node, target, image_format='qcow2', digest=None, **changes):
    options = {'raw': True, 'rate': 0, 'keep_free': 0, 'cancelled': threading.Event(),
               'lock': contextlib.nullcontext(), **changes}
    digest = digest or savefile.file_digest(path, 'sha512')
    return fullbase.complete(node, os.path.getsize(path), f'sha512:{digest}', image_format, target,
                             **options)


def exporter_pid(directory):
    with open(f'{directory}/exporter/exporter.pid') as stream:
        return int(stream.read())


def only(target):
    return os.listdir(os.path.dirname(target)) == [os.path.basename(target)]


def nothing(target):
    return os.listdir(os.path.dirname(target)) == []


def test_a_qcow2_image_becomes_a_raw_base(stored, target):
    path, node = stored()
    assert complete(path, node, target) is True
    qemu_img('compare', '-f', 'qcow2', '-F', 'raw', path, target)
    status = os.stat(target)
    assert status.st_mode & 0o777 == 0o644 and only(target)
    assert status.st_size == 16 * MIB and status.st_blocks * 512 == 5 * MIB


def test_without_force_raw_images_the_base_is_the_file(stored, target):
    path, node = stored()
    with open(path, 'ab') as stream:
        stream.write(b'x' * ODD)
    node = stored.serve(path)
    assert complete(path, node, target, raw=False) is True
    assert savefile.file_digest(target) == savefile.file_digest(path) and only(target)


def test_a_raw_image_of_a_length_that_is_no_whole_sector(stored, target, directory):
    path, _node = stored('raw')
    os.truncate(path, 16 * MIB + ODD)
    assert complete(path, stored.serve(path), target, 'raw') is True
    assert savefile.file_digest(target) == savefile.file_digest(path) and only(target)
    assert os.stat(target).st_blocks * 512 < 6 * MIB


def test_the_base_is_what_stock_nova_makes(stored, target, directory):
    """The same conversion as nova.privsep.qemu.unprivileged_convert_image gives the same file."""
    path, node = stored()
    complete(path, node, target)
    qemu_img('convert', '-t', 'none', '-O', 'raw', '-f', 'qcow2', path, f'{directory}/stock')
    assert savefile.file_digest(f'{directory}/stock') == savefile.file_digest(target)
    assert os.stat(f'{directory}/stock').st_blocks == os.stat(target).st_blocks


def test_a_wrong_hash_leaves_nothing(stored, target):
    path, node = stored()
    with pytest.raises(exception.BootcacheError, match='but Glance says abc'):
        complete(path, node, target, digest='abc')
    assert nothing(target)


@pytest.mark.parametrize('image_hash', ['', 'nonsense:00'])
def test_an_image_without_a_usable_hash(stored, target, image_hash):
    path, node = stored()
    with pytest.raises(exception.BootcacheError, match='not known here'):
        fullbase.complete(node, os.path.getsize(path), image_hash, 'qcow2', target, raw=True,
                          rate=0, keep_free=0, cancelled=threading.Event(),
                          lock=contextlib.nullcontext())
    assert nothing(target)


def test_a_longer_file_is_not_copied_further_than_announced(stored, target, directory):
    path, _node = stored()
    longer, node = stored('raw', 'longer')
    assert os.path.getsize(longer) > os.path.getsize(path)
    with pytest.raises(exception.BootcacheError, match='Glance says'):
        complete(path, node, target)
    shorter, node = stored('raw', 'short', [(0, 512, 'data')])
    os.truncate(shorter, MIB)
    with pytest.raises(exception.BootcacheError, match='size'):
        complete(path, stored.serve(shorter), target)
    assert nothing(target)


def test_what_somebody_else_completed_stays(stored, target):
    path, node = stored()

    @contextlib.contextmanager
    def late():
        with open(target, 'w') as stream:
            stream.write('theirs')
        yield

    assert complete(path, node, target, lock=late()) is False
    with open(target) as stream:
        assert stream.read() == 'theirs' and only(target)


def test_what_somebody_else_completes_in_the_midst_ends_the_copy(stored, target):
    """Stock Nova may have made it for a server that did not come here: it is not copied to the end.

    At this rate that would take four minutes.
    """
    thread, _cancelled, raised = _slowly(stored, target, rate=65536)
    with open(target, 'w') as stream:
        stream.write('theirs')
    thread.join(120)
    assert not thread.is_alive() and not raised
    with open(target) as stream:
        assert stream.read() == 'theirs' and only(target)


@pytest.mark.parametrize('form, message', [('backing', 'safe'), ('datafile', 'safe'),
                                           ('raw', 'is raw'), ('hidden', 'is qcow2')])
def test_images_that_nova_refuses(stored, target, directory, form, message):
    """Backing files, data files, other formats than announced, and a qcow2 within a qcow2."""
    path, _node = stored()
    image_format, changed = 'qcow2', f'{directory}/changed'
    if form == 'backing':
        qemu_img('create', '-f', 'qcow2', '-b', path, '-F', 'qcow2', changed)
    elif form == 'datafile':
        qemu_img('create', '-f', 'qcow2', '-o', f'data_file={directory}/data', changed, MIB)
    elif form == 'raw':
        qemu_img('convert', '-f', 'qcow2', '-O', 'raw', path, changed)
    else:
        qemu_img('convert', '-f', 'raw', '-O', 'qcow2', path, changed)
    with pytest.raises(exception.ImageRefused, match=message):
        complete(changed, stored.serve(changed), target, image_format)
    assert nothing(target)


def test_no_room(stored, target):
    path, node = stored()
    with pytest.raises(exception.BootcacheError, match='bytes are free'):
        complete(path, node, target, keep_free=1 << 60)
    assert nothing(target)


def test_a_storage_node_that_is_away(stored, target):
    path, node = stored()
    with pytest.raises(exception.BootcacheError, match='not available'):
        complete(path, {**node, 'export': 'none'}, target)
    with pytest.raises(exception.BootcacheError, match='qemu-img convert failed'):
        complete(path, {**node, 'server': {'type': 'unix', 'path': f'{target}.none'}}, target)
    assert nothing(target)


def _slowly(stored, target, rate=4 * MIB):
    """Start to complete a base, slowly; gives the thread, its event and what it raised."""
    path, node = stored('raw', pieces=[(0, 16 * MIB, 'data')])
    cancelled, raised = threading.Event(), []

    def run():
        try:
            complete(path, node, target, 'raw', rate=rate, cancelled=cancelled)
        except exception.BootcacheError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: os.path.exists(f'{target}.bootcache')
          and os.stat(f'{target}.bootcache').st_blocks, 'the first bytes')
    return thread, cancelled, raised


def test_cancelling_ends_the_copy_and_leaves_nothing(stored, target, directory):
    thread, cancelled, raised = _slowly(stored, target)
    # The rate is kept: much of it is still to come.
    assert os.stat(f'{target}.bootcache').st_blocks * 512 < 12 * MIB
    cancelled.set()
    thread.join()
    assert isinstance(raised[0], exception.Cancelled) and nothing(target)
    assert processes_of(f'{directory}/_base') == []


def test_the_storage_node_dies_in_mid_copy(stored, target, directory):
    thread, _cancelled, raised = _slowly(stored, target)
    os.kill(exporter_pid(directory), signal.SIGKILL)
    thread.join()
    assert 'qemu-img convert failed' in str(raised[0]) and nothing(target)


@pytest.mark.parametrize('stage', ['', '.raw'])
def test_a_killed_process_takes_its_qemu_img_along(stored, target, directory, stage):
    path, node = stored(pieces=[(0, 12 * MIB, 'data')])
    digest = savefile.file_digest(path, 'sha512')
    # Hashing is not slowed down here, or the second stage would be long in coming.
    script = f"""
import contextlib, threading, os
from nova_bootcache.settling import fullbase
work = fullbase._Work
def copy(self, source, length, image_hash, path, piece_bytes):
    self._rate = {MIB} if path.endswith('.bootcache{stage}') else 0
    took(self, source, length, image_hash, path, piece_bytes)
    self._rate = 0
took, work.copy = work.copy, copy
fullbase.complete({node!r}, {os.path.getsize(path)}, 'sha512:{digest}', 'qcow2', {target!r},
                  raw=True, rate=0, keep_free=0, cancelled=threading.Event(),
                  lock=contextlib.nullcontext())
"""
    process = subprocess.Popen([sys.executable, '-c', script], cwd=os.getcwd())
    try:
        until(lambda: os.path.exists(f'{target}.bootcache{stage}')
              and os.stat(f'{target}.bootcache{stage}').st_blocks, 'the first bytes')
    finally:
        process.kill()
        process.wait()
    until(lambda: processes_of(f'{directory}/_base') == [], 'the end of qemu-img')
    assert not os.path.exists(target) and not nothing(target)
    with open(f'{directory}/_base/swap_1', 'w'):
        pass
    fullbase.sweep(f'{directory}/_base')
    # The copy was whole before the second stage.
    kept = {f'{NAME}.bootcache', f'{NAME}.bootcache.json'} if stage else set()
    assert set(os.listdir(f'{directory}/_base')) == {'swap_1'} | kept
    fullbase.sweep(f'{directory}/_base', wanted=())
    assert os.listdir(f'{directory}/_base') == ['swap_1']
    fullbase.sweep(f'{directory}/none')


def test_the_rate_holds_for_zeros_that_are_stored_as_data(stored, directory):
    """Over a network they cost as much as others; convert's own limit lets them pass."""
    _path, node = stored('raw', pieces=[(0, 6 * MIB, 'zeros')])
    began = time.monotonic()
    qemuimg.copy_paced(node, f'{directory}/copy', length=6 * MIB, rate=2 * MIB, seconds=60,
                       check=lambda: None)
    # A lower bound, which a busy host only lengthens; QEMU lets some of it pass at once.
    assert time.monotonic() - began > 1
    # QEMU's look for the right alignment leaves a block.
    assert os.stat(f'{directory}/copy').st_blocks * 512 <= 4096


def test_a_file_of_one_request_is_paced_too(stored, directory):
    _path, node = stored('raw', pieces=[(0, MIB, 'data')])
    began = time.monotonic()
    qemuimg.copy_paced(node, f'{directory}/copy', length=16 * MIB, rate=2 * MIB, seconds=60,
                       check=lambda: None)
    # A lower bound, which a busy host only lengthens.
    assert time.monotonic() - began >= 1
    assert os.path.getsize(f'{directory}/copy') == 16 * MIB


def test_a_copy_whose_first_request_waits_can_be_ended(stored, directory):
    _path, node = stored('raw', pieces=[(0, MIB, 'data')])
    looks = []

    def check():
        looks.append(1)
        if len(looks) == 3:
            raise exception.Cancelled('no more')

    with pytest.raises(exception.Cancelled):
        qemuimg.copy_paced(node, f'{directory}/copy', length=MIB, rate=1, seconds=60, check=check)
    assert not [pid for pid in processes_of(directory) if pid != exporter_pid(directory)]


def test_a_copy_that_takes_too_long(stored, directory):
    _path, node = stored('raw', pieces=[(0, 16 * MIB, 'data')])
    with pytest.raises(exception.BootcacheError, match='not done after'):
        qemuimg.copy_paced(node, f'{directory}/copy', length=16 * MIB, rate=MIB, seconds=0,
                           check=lambda: None)
    assert not [pid for pid in processes_of(directory) if pid != exporter_pid(directory)]


def test_names_that_nova_leaves_alone():
    """Nova's image cache manager takes names of 40 digits, and those with ``_`` behind, as its."""
    assert len(naming.cache_file_name('x')) == 40 and fullbase.SUFFIX[0] not in '_0123456789'


# A base that somebody else made.

CONTENT = 'sha512:ab'


def check(target, node, content=CONTENT, image_format='raw', rate=0):
    return fullbase.check(target, image_format, content, lambda: node, rate, lambda: None)


@pytest.mark.parametrize('form', ['raw', 'qcow2'])
def test_a_base_that_somebody_else_made_is_compared_once(stored, target, form):
    path, node = stored('raw')
    qemu_img('convert', '-f', 'raw', '-O', form, path, target)
    assert fullbase.noted(target) == ''
    assert check(target, node, image_format=form) == fullbase.identity(target)
    assert fullbase.noted(target) == CONTENT
    # It says so itself: nobody is asked.
    assert check(target, {'driver': 'no such'}, image_format=form)


@pytest.mark.parametrize('change', ['a sector', 'shorter', 'longer'])
def test_a_base_of_another_content_is_found_out(stored, target, change, monkeypatch):
    monkeypatch.setattr(fullbase, '_PIECE', 5 * MIB)
    path, node = stored('raw', pieces=[(0, MIB, 'data'), (13 * MIB, 3 * MIB, 'data')])
    shutil.copyfile(path, target)
    with open(target, 'r+b') as stream:
        if change == 'a sector':
            stream.seek(14 * MIB)
            stream.write(b'other')
        elif change == 'shorter':
            stream.truncate(15 * MIB)
        else:
            stream.seek(0, os.SEEK_END)
            stream.write(bytes(MIB) + b'other')
    with pytest.raises(exception.BootcacheError, match='another content than the disks'):
        check(target, node)
    assert fullbase.noted(target) == ''


def test_pieces_are_put_together(stored, target, monkeypatch):
    monkeypatch.setattr(fullbase, '_PIECE', 5 * MIB)
    path, node = stored('raw')
    shutil.copyfile(path, target)
    with open(target, 'ab') as stream:
        # What is longer reads as the zeros that a disk has there.
        stream.write(bytes(ODD))
    assert check(target, node, rate=200 * MIB)


def test_a_storage_node_that_is_away_tells_nothing_of_a_base(stored, target, directory):
    path, node = stored('raw')
    shutil.copyfile(path, target)
    node['server'] = {'type': 'unix', 'path': f'{directory}/nobody'}
    with pytest.raises(exception.BootcacheError, match='compare failed'):
        check(target, node)
    assert fullbase.noted(target) == ''


def test_a_base_that_is_made_here_says_of_what_it_is(stored, target):
    path, node = stored()
    complete(path, node, target)
    image_hash = f'sha512:{savefile.file_digest(path, "sha512")}'
    assert check(target, {'driver': 'no such'}, image_hash) == fullbase.identity(target)
    # A hash tells another content without reading it.
    with pytest.raises(exception.BootcacheError, match='another content than the disks'):
        check(target, {'driver': 'no such'})
