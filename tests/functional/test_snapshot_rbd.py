"""Snapshots in a real Ceph: made, written as a host does, given to Glance's real store."""

import contextlib
import json
import os
import signal
import subprocess
import uuid

import pytest
from functional_tools import until
from glance_rbd import CAPS, MIB, SIZE, files, go_on, obtained

from bootcache import conf as bootcache_conf
from bootcache import exception, qemuimg
from bootcache.ceph import places
from bootcache.ceph.snapshotcommands import SnapshotCommands
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.snapshots import flatcopies
from glance_bootcache.snapshots.rbdstore import RbdSnapshots
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.stores import SnapshotUnfit
from glance_bootcache.storage import inspection
from glance_bootcache.storage.nodefiles import FileKind, FileState
from tools.ceph.cluster import CephError

POOL = 'snapshots'
LARGE = 64 * MIB


def service(conf):
    """The store, of a service that was started just now."""
    rows = files(conf)
    # Bases of these tests are no images' rows, and so stay as if they were being made.
    copies = rows.named(FileKind.COPY, FileState.MAKING)
    for copy, image_id in copies.items():
        rows.abandon(image_id, copy)
    return RbdSnapshots(conf, rows)


def retire_base(conf, manifest):
    """Have a base be needed no more."""
    rows = files(conf)
    rows.abandon(manifest.image_id, manifest.made.base_path)
    CephBases(conf).remove_retired(rows)


@pytest.fixture
def snapshots(ceph_conf, glance_store):
    """The store, with its own pool, and the key of the page."""
    glance_store.ceph.make_user('bootcache', f'{CAPS}, profile rbd pool={POOL}')
    ceph_conf.set_override('rbd_snapshot_pool', POOL, bootcache_conf.GROUP)
    store = service(ceph_conf)
    yield store
    run, namespace = glance_store.ceph.run, 'bootcache/storage'
    # Bases that are snapshots keep these.
    for name in json.loads(run('rbd', 'ls', '--format', 'json', namespace)):
        # One that another test's daemon had open as it was killed is watched for a while.
        until(lambda name=name: is_removed(glance_store, f'{namespace}/{name}'),
              f'the end of {name}')
    for name in names(glance_store):
        with contextlib.suppress(ValueError):
            store.discard(Record(str(uuid.UUID(name.removeprefix('begun-')))))
    purge(glance_store)
    glance_store.ceph.make_user('bootcache', CAPS)


def is_removed(glance, image):
    try:
        glance.ceph.run('rbd', 'rm', '--no-progress', image)
    except CephError as error:
        assert 'watchers' in str(error), error
        return False
    return True


def names(glance, what='ls'):
    listed = json.loads(glance.ceph.run('rbd', *what.split(), '--format', 'json', POOL))
    return [entry['name'] if isinstance(entry, dict) else entry for entry in listed]


def purge(glance):
    # It says no where something has children.
    with contextlib.suppress(CephError):
        glance.ceph.run('rbd', 'trash', 'purge', '--no-progress', POOL)


def stored(glance, name):
    """Return the bytes that an image itself takes."""
    [told] = json.loads(glance.ceph.run('rbd', 'du', '--format', 'json',
                                        f'{POOL}/{name}@snap'))['images']
    return told['used_size']


def overlaid(path, directory, size, *commands):
    """Return an overlay on a raw file, written to by qemu-io."""
    overlay = f'{directory}/overlay-{uuid.uuid4()}'
    qemuimg.create_overlay(overlay, size, path, 'raw', cluster_bytes=131072, subclusters=True)
    for command in commands:
        subprocess.run(['qemu-io', '-f', 'qcow2', '-c', command, overlay], check=True,
                       stdout=subprocess.DEVNULL)
    return overlay


def send(overlay, base, node):
    subprocess.run(['qemu-img', 'convert', '-n', '-B', base, '-F', 'raw', '-f', 'qcow2', '-O',
                    'raw', overlay, 'json:' + json.dumps({'driver': 'raw', 'file': node})],
                   check=True)


def assert_same(glance, image, overlay):
    node = {'driver': 'raw', 'file': {'driver': 'rbd', 'pool': POOL, 'image': image,
                                      'snapshot': 'snap', 'conf': str(glance.ceph.conf),
                                      'user': 'glance'}}
    subprocess.run(['qemu-img', 'compare', '-q', 'json:' + json.dumps(node),
                    'json:' + json.dumps({'driver': 'qcow2', 'file': {
                        'driver': 'file', 'filename': overlay}})], check=True)


def made(store, base, directory, path, size=LARGE, *commands):
    """Make a snapshot from the first to the last step; return its id, and the overlay."""
    record = Record(str(uuid.uuid4()))
    overlay = overlaid(path, directory, size, *commands)
    send(overlay, path, store.begin(record, base, size)[1])
    store.finish(record, keep)
    assert store.settled(record, 0)
    return record.snapshot_id, overlay


def keep(record):
    raise AssertionError(f'all that there is to be known of {record} is its name')


def test_only_what_differs_is_stored_and_glance_reads_and_deletes_it(
        snapshots, ceph_conf, glance_store, ceph_image, directory):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    assert snapshots.refusal(manifest) == ''
    snapshot = str(uuid.uuid4())
    overlay = overlaid(path, directory, LARGE, 'write -P 7 2M 300k', 'write -z 10M 1M',
                       'write -P 9 50M 64k', f'discard {9 * MIB} 64k')
    record, node = snapshots.begin(Record(snapshot), manifest, LARGE)
    # Nobody takes it for an image while it is under way.
    assert names(glance_store) == [f'begun-{snapshot}'] and snapshots.left() == [snapshot]
    send(overlay, path, node)
    with snapshots.looked_at(record, directory, go_on) as look:
        assert inspection.inspect(look, 'raw').virtual_bytes == LARGE
    assert not os.path.exists(look)

    url = snapshots.finish(record, keep)
    assert url == f'rbd://{glance_store.ceph.fsid}/{POOL}/{snapshot}/snap'
    assert snapshots.left() == [] and names(glance_store) == [snapshot]
    assert_same(glance_store, snapshot, overlay)
    # 1.4 MB were changed, of an image of 21 MiB on a disk of 64 MiB.
    assert stored(glance_store, snapshot) <= 2 * MIB

    glance_store.note(snapshot, url)
    glance_store.delete(snapshot)
    assert names(glance_store) == []


def test_the_disk_has_a_size_of_its_own(snapshots, ceph_conf, glance_store, ceph_image, directory):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    for size in (SIZE, SIZE + 512, 1 << 30):
        snapshot, overlay = made(snapshots, manifest, directory, path, size, 'write -P 1 0 4k')
        assert_same(glance_store, snapshot, overlay)
    small = Record(str(uuid.uuid4()))
    with pytest.raises(SnapshotUnfit, match='fewer than its base'):
        snapshots.begin(small, manifest, SIZE - 512)
    assert snapshots.discard(small) and snapshots.left() == []


def test_what_is_deleted_in_any_order_leaves_others_right(snapshots, ceph_conf, glance_store,
                                                          ceph_image, directory):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    first, overlay = made(snapshots, manifest, directory, path, LARGE, 'write -P 1 1M 64k')
    url = f'rbd://{glance_store.ceph.fsid}/{POOL}/{first}/snap'
    # A server that was made of the first snapshot: the storage service reads that in its pool.
    content = f'{directory}/first.raw'
    subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', overlay, content],
                   check=True)
    again = obtained(ceph_conf, glance_store.described(first, content, url))
    assert again is not None
    second, other = made(snapshots, again, directory, content, LARGE, 'write -P 2 3M 64k')
    third, last = made(snapshots, again, directory, content, LARGE, 'write -P 3 4M 64k')

    glance_store.delete(facts.image_id)          # the base of all
    assert_same(glance_store, second, other)
    glance_store.note(first, url)
    glance_store.delete(first)                   # one in the middle
    assert names(glance_store, 'trash ls') == [first]
    snapshots.tidy()
    assert names(glance_store, 'trash ls') == [first], 'it has children, and stays'
    assert_same(glance_store, second, other)
    for snapshot in (second, third):
        assert_same(glance_store, third, last)
        glance_store.note(snapshot, f'rbd://{glance_store.ceph.fsid}/{POOL}/{snapshot}/snap')
        glance_store.delete(snapshot)
    retire_base(ceph_conf, again)
    fresh = service(ceph_conf)
    fresh.tidy()
    assert names(glance_store, 'trash ls') == [] and names(glance_store) == []


@pytest.fixture
def deep(snapshots, ceph_conf, glance_store, ceph_image, directory):
    """A base that is a snapshot, which one image more is below than may be below another one's;
    with a file of its content."""
    path, facts = ceph_image
    first, overlay = made(snapshots, obtained(ceph_conf, facts), directory, path, LARGE,
                          'write -P 1 1M 64k', 'write -z 9M 1M')
    content = f'{directory}/first.raw'
    subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', overlay, content],
                   check=True)
    url = f'rbd://{glance_store.ceph.fsid}/{POOL}/{first}/snap'
    glance_store.note(first, url)
    ceph_conf.set_override('snapshot_depth', 1, bootcache_conf.GROUP)
    yield obtained(ceph_conf, glance_store.described(first, content, url)), content
    for name in names(glance_store):
        if name.startswith('flat'):
            with contextlib.suppress(CephError):
                glance_store.ceph.run('rbd', 'snap', 'unprotect', f'{POOL}/{name}@snap')
            glance_store.ceph.run('rbd', 'snap', 'purge', '--no-progress', f'{POOL}/{name}')
            glance_store.ceph.run('rbd', 'trash', 'mv', f'{POOL}/{name}')
    purge(glance_store)


def copies(glance):
    return [name for name in names(glance) if name.startswith('flat')]


def flattened(store, base, glance):
    """Look after a store until snapshots of a base stand on a copy; return its name."""
    origin = store._rbd.origin(places.clone_of(base.made.base_path))

    def copy():
        store.tidy()
        return store._copies.parent(origin)

    return until(copy).image


@pytest.fixture
def flattening(monkeypatch):
    """The commands that fill copies; each is stopped as soon as it is begun."""
    begun, real = [], SnapshotCommands.flattening

    def flattening(*arguments):
        begun.append(real(*arguments))
        begun[-1].send_signal(signal.SIGSTOP)
        return begun[-1]

    monkeypatch.setattr(SnapshotCommands, 'flattening', flattening)
    yield begun
    for process in begun:
        process.kill()
        process.wait()


def parent_of(glance, name):
    return json.loads(glance.ceph.run('rbd', 'info', '--format', 'json', f'{POOL}/{name}'))\
        .get('parent', {}).get('image')


def test_too_many_on_each_other(ceph_conf, glance_store, deep, directory, monkeypatch):
    base, content = deep
    store = service(ceph_conf)
    with pytest.raises(SnapshotUnfit, match=r'1 others below it, as many as .*snapshot_depth'):
        store.begin(Record(str(uuid.uuid4())), base, LARGE)
    assert store.left() == []

    copy = flattened(store, base, glance_store)
    made_of_copy = [made(store, base, directory, content, size, f'write -P {number} 30M 64k')
                    for number, size in ((2, LARGE), (3, LARGE + MIB))]
    for snapshot, overlay in made_of_copy:
        assert parent_of(glance_store, snapshot) == copy
        assert_same(glance_store, snapshot, overlay)
        assert stored(glance_store, snapshot) <= MIB
    assert parent_of(glance_store, copy) is None
    service(ceph_conf).tidy()
    assert copies(glance_store) == [copy], 'it is needed, and there is one for all'
    # Of what was not looked at yet nothing is known.
    monkeypatch.setattr(flatcopies, '_LOOKS', 0)
    service(ceph_conf).tidy()
    assert copies(glance_store) == [copy]


def test_a_copy_goes_when_nothing_stands_on_it(ceph_conf, glance_store, deep, directory):
    base, content = deep
    store = service(ceph_conf)
    copy = flattened(store, base, glance_store)
    snapshot, overlay = made(store, base, directory, content, LARGE, 'write -P 2 30M 64k')
    retire_base(ceph_conf, base)
    service(ceph_conf).tidy()
    assert copies(glance_store) == [] and names(glance_store, 'trash ls') == [copy]
    assert_same(glance_store, snapshot, overlay)

    service(ceph_conf).tidy()
    assert names(glance_store, 'trash ls') == [copy], 'a snapshot stands on it'
    glance_store.note(snapshot, f'rbd://{glance_store.ceph.fsid}/{POOL}/{snapshot}/snap')
    glance_store.delete(snapshot)
    service(ceph_conf).tidy()
    assert names(glance_store, 'trash ls') == []


@pytest.mark.parametrize('ended', [signal.SIGKILL, signal.SIGCONT])
def test_a_copy_is_made_anew_after_the_service_has_ended(ceph_conf, glance_store, deep, directory,
                                                         flattening, ended):
    base, content = deep
    service(ceph_conf).tidy()
    [begun] = copies(glance_store)
    store = service(ceph_conf)
    store.tidy()
    # One outlives its service, or does not.
    for process, number in zip(flattening, (ended, signal.SIGCONT), strict=True):
        process.send_signal(number)
    copy = flattened(store, base, glance_store)
    assert copy != begun
    snapshot, overlay = made(store, base, directory, content, LARGE, 'write -P 2 30M 64k')
    assert parent_of(glance_store, snapshot) == copy
    assert_same(glance_store, snapshot, overlay)

    def removed():
        store._copies._rounds.forget()
        store.tidy()
        return copies(glance_store) == [copy]

    until(removed, 'the end of what the earlier one was making', 120)


def test_a_copy_that_cannot_be_made_is_tried_again_later(ceph_conf, glance_store, deep, flattening,
                                                         caplog):
    base, _content = deep
    store = service(ceph_conf)
    store.tidy()
    flattening[0].kill()

    def told():
        store.tidy()
        return 'the next try is in 600 s' in caplog.text

    until(told)
    assert len(flattening) == 1
    # What was begun of one that is no base any more goes with it.
    retire_base(ceph_conf, base)
    service(ceph_conf).tidy()
    assert copies(glance_store) == []


@pytest.mark.parametrize('is_finished', [False, True])
def test_what_is_given_up_leaves_nothing(snapshots, ceph_conf, glance_store, ceph_image,
                                         is_finished):
    _path, facts = ceph_image
    record = Record(str(uuid.uuid4()))
    snapshots.begin(record, obtained(ceph_conf, facts), LARGE)
    if is_finished:
        snapshots.finish(record, keep)
    assert snapshots.discard(record) and names(glance_store) == []
    assert snapshots.discard(record), 'there is none any more'


def test_one_that_is_open_stays_until_it_is_closed(snapshots, ceph_conf, glance_store, ceph_image):
    _path, facts = ceph_image
    record, node = snapshots.begin(Record(str(uuid.uuid4())), obtained(ceph_conf, facts), LARGE)
    writer = subprocess.Popen(['qemu-io', 'json:' + json.dumps({'driver': 'raw', 'file': node})],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        writer.stdin.write(b'write 0 64k\n')
        writer.stdin.flush()
        assert b'wrote' in writer.stdout.readline()
        assert not snapshots.discard(record) and snapshots.left() == [record.snapshot_id]
    finally:
        writer.stdin.close()
        writer.wait()
        writer.stdout.close()
    assert snapshots.discard(record) and snapshots.left() == []


def test_what_glance_has_deleted_is_the_base_of_nothing_new(snapshots, ceph_conf, glance_store,
                                                            ceph_image):
    _path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    glance_store.delete(facts.image_id)
    with pytest.raises(SnapshotUnfit, match='is gone'):
        snapshots.begin(Record(str(uuid.uuid4())), manifest, LARGE)
    assert snapshots.left() == []


def test_a_key_without_the_pool_is_told_with_the_cure(snapshots, ceph_conf, glance_store,
                                                      ceph_image):
    _path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    glance_store.ceph.make_user('bootcache', CAPS)
    with pytest.raises(exception.BootcacheError, match='profile rbd pool=snapshots'):
        snapshots.begin(Record(str(uuid.uuid4())), manifest, LARGE)
