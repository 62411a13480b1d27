"""What differs from one content of an image is not sent onto another one: an image may get another
content under its id, as when Glance's database is restored.

Disks, bases and what is noted of them are real; the storage service is a stand-in.
"""

import os
import subprocess
import threading
import types

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from nova import objects
from nova.virt.libvirt import imagebackend
from oslo_utils.fixture import uuidsentinel

from bootcache import naming
from bootcache.rpc.messages import AbandonSnapshot, BeginSnapshot, FinishSnapshot, SnapshotProgress
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.settling import fullbase
from nova_bootcache.snapshots import sender
from nova_bootcache.snapshots.sender import SnapshotRefused
from nova_bootcache.storagenode import PLAIN, Remote

IMAGE, NAME = uuidsentinel.image, naming.cache_file_name(uuidsentinel.image)
OURS, OTHER = 'sha512:' + 'ab' * 64, 'sha512:' + 'cd' * 64


class Service:
    """The storage service: begins a snapshot of the content that it has."""

    hostname = 'compute-1'

    def __init__(self):
        self.content, self.export, self.abandoned = OURS, 'base-x', 0

    def send(self, message):
        if isinstance(message, AbandonSnapshot):
            self.abandoned += 1
            return None
        assert isinstance(message, BeginSnapshot)
        return SnapshotProgress(export='snapshot-x', server=('127.0.0.1', 1), disk_format='raw',
                                image_hash=self.content or '', base_export=self.export or '')


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with a server's disk; ``on`` gives it a base."""
    monkeypatch.setattr(imagebackend, 'CONF', types.SimpleNamespace(
        instances_path=str(tmp_path), force_raw_images=True,
        image_cache=types.SimpleNamespace(subdirectory_name='_base'),
        libvirt=types.SimpleNamespace(snapshot_image_format=None)))
    cache, service = CacheFiles(str(tmp_path / '_bootcache')), Service()
    os.makedirs(cache.directory, exist_ok=True)
    disk = BootCacheQcow2.__new__(BootCacheQcow2)
    disk.path, disk._instance = str(tmp_path / 'disk'), types.SimpleNamespace(
        image_ref=IMAGE, image_meta=objects.ImageMeta(disk_format='raw'))
    disk.bootcache = types.SimpleNamespace(cache=cache, storage=service, encryption=PLAIN)

    def on(base, form):
        os.makedirs(os.path.dirname(base), exist_ok=True)
        subprocess.run(['qemu-img', 'create', '-q', '-f', form, base, '1M'], check=True)
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', '-b', base, '-F', form,
                        disk.path], check=True)
        return base

    return types.SimpleNamespace(
        on=on, service=service, cache=cache, base=str(tmp_path / '_base' / NAME),
        snapshot=lambda: disk._sent_as(uuidsentinel.snapshot)[0],
        begin=lambda: disk._sent_as(uuidsentinel.snapshot)[0].begin())


@pytest.fixture(params=[OURS, ''])
def known(request, host):
    """A disk on a cache image, of which the content is known, or the export's name only."""
    remote = Remote(IMAGE, '10.0.0.1', 10810, 'base-x', image_hash=request.param)
    base = host.on(host.cache.path(IMAGE), 'qcow2')
    CacheEntry(remote, None, 'ab', 1 << 20).save(f'{base}.json')
    if not request.param:
        host.service.content = ''
    return host


def refused(host):
    with pytest.raises(SnapshotRefused) as caught:
        host.begin()
    assert host.service.abandoned == 1, 'nothing is left at the storage node'
    return str(caught.value)


def test_one_of_the_same_content_is_sent(known):
    assert known.begin().export == 'snapshot-x' and not known.service.abandoned


def test_one_on_a_cache_image_of_another_content_is_not(known):
    known.service.content, known.service.export = known.service.content and OTHER, 'base-y'
    assert 'another content' in refused(known)


def test_one_on_a_full_base_of_the_same_content_is_sent(host):
    fullbase.note(host.on(host.base, 'raw'), OURS)
    assert host.begin().export == 'snapshot-x' and not host.service.abandoned


@pytest.mark.parametrize('noted, told', [(OTHER, OURS), ('', OURS), (OURS, OTHER), (OURS, None)])
def test_one_on_a_full_base_of_another_or_an_unknown_content_is_not(host, noted, told):
    host.on(host.base, 'raw')
    if noted:
        fullbase.note(host.base, noted)
    host.service.content = told
    assert 'does not say' in refused(host)


@pytest.mark.parametrize('away', [0, 40])
def test_a_large_one_is_waited_for_for_hours(host, monkeypatch, away):
    """All of it is read twice before Glance can have it; the service may be away for a moment."""
    snapshot, clock = sender.Snapshot(host.service, PLAIN, IMAGE, uuidsentinel.snapshot, 1 << 40,
                                      None), Clock()
    monkeypatch.setattr(sender, 'time', clock)
    clock.retry_by(monkeypatch)

    def finish(message):
        assert isinstance(message, FinishSnapshot)
        if 600 < clock.now - began < 600 + away:
            clock.sleep(10)
            raise messaging.MessagingTimeout('no answer')
        return SnapshotProgress(
            url='bootcache://file/x' if clock.now - began > 5 * 3600 else '')

    began, host.service.send = clock.now, finish
    assert snapshot.finish() == 'bootcache://file/x'


def test_one_that_a_service_of_an_earlier_version_has_begun_anew_is_not_finished(
        known, monkeypatch):
    """What was sent is not in it: the service was started anew meanwhile."""
    snapshot = known.snapshot()
    snapshot.begin()
    monkeypatch.setattr(sender, '_TELL_SECONDS', 0.001)
    asked = threading.Event()

    def begun_anew(*arguments):
        asked.set()
        return SnapshotProgress(export='snapshot-y')

    known.service.send = begun_anew
    with snapshot.kept():
        assert asked.wait(20)
    with pytest.raises(SnapshotRefused, match='begun it anew'):
        snapshot.finish()
