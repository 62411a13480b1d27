"""The exporter's name of a base names its content."""

import itertools
import os
import threading
import types

import pytest
from fakes_manager import until

from bootcache import exception, naming, savefile
from bootcache.manifest import Standing
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import PlanBoot, ReportBoot, ServeStored
from bootcache.rpc.report import HostReport
from glance_bootcache.images import controller as controller_module
from glance_bootcache.images import imagework, policy
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage import inspection
from glance_bootcache.storage.nodefiles import FileKind, NodeFiles
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def ready(house, content):
    house.images.put(IMAGE, content)
    house.changed(IMAGE)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.state == 'ready', manifest.reason
    return manifest


def test_another_content_gets_another_name(house):
    one = ready(house, b'1' * 4096)
    assert one.made.base_export == naming.content_export_name(IMAGE, one.image_hash)
    two = ready(house, b'2' * 4096)
    assert two.made.base_export == naming.content_export_name(IMAGE, two.image_hash)
    assert two.made.base_export != one.made.base_export


def test_a_base_whose_file_is_another_one_is_got_anew(house):
    one = ready(house, b'1' * 4096)
    assert one.made.base_file == savefile.signature(one.made.base_path)
    os.utime(one.made.base_path, ns=(1, 1))
    house.build(IMAGE)
    house.settle()
    two = house.store.load(IMAGE)
    assert two.state == 'ready' and two.made.base_path != one.made.base_path
    assert two.made.base_file == savefile.signature(two.made.base_path)


def test_older_content_is_given_to_no_new_server_and_never_taken_for_the_new_one(house):
    """Hosts read the older base, so that the new content cannot be had yet."""
    one = ready(house, b'1' * 4096)
    house.exporter.readers.add(IMAGE)
    house.images.put(IMAGE, b'2' * 4096)
    house.changed(IMAGE)
    house.settle()
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    assert answer['action'] == 'stock' and 'cache_export' not in answer
    assert answer['base_export'] and answer['image_hash'] == one.image_hash
    house.exporter.readers.clear()
    house.build(IMAGE)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.state == 'ready' and manifest.made.base_hash != one.made.base_hash
    with open(manifest.made.base_path, 'rb') as stream:
        assert stream.read() == b'2' * 4096
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'cache'


@pytest.mark.parametrize('who', ['a host', 'Nova'])
def test_older_content_stays_while_a_server_that_is_off_needs_it(house, who):
    """Nobody is connected, and an operator asks again and again for the new content."""
    one = ready(house, b'1' * 4096)
    house.needs.note('one', HostReport(needs=frozenset([IMAGE] if who == 'a host' else ())))
    house.boots.servers = {IMAGE} if who == 'Nova' else set()
    house.images.put(IMAGE, b'2' * 4096)
    for _try in range(2):
        house.build(IMAGE)
        house.settle()
        manifest = house.store.load(IMAGE)
        assert manifest.made.base_path == one.made.base_path and 'older content' in manifest.reason
        with open(one.made.base_path, 'rb') as stream:
            assert stream.read() == b'1' * 4096
    house.needs.note('one', HostReport(needs=frozenset()))
    house.boots.servers = set()
    house.build(IMAGE)
    house.settle()
    assert house.store.load(IMAGE).reason == '' and not os.path.exists(one.made.base_path)


def test_older_content_that_another_node_has_is_needed_as_well(house, database, tmp_path):
    """A node that is away has the base; this one has taken the image over."""
    one = ready(house, b'1' * 4096)
    house.boots.servers = {IMAGE}
    other = StorageNode(database, str(tmp_path / 'node.json'), 'other')
    files = NodeFiles(database, other.id, str(tmp_path))
    files.begin(IMAGE, FileKind.BASE, 'base-1.img')
    files.change(IMAGE, ready=['base-1.img'])
    house.store.change(IMAGE, lambda known: policy.taken_over(known, '', None))
    house.images.put(IMAGE, b'2' * 4096)
    house.build(IMAGE)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.made.base_hash == one.made.base_hash and 'older content' in manifest.reason
    # It gives the base up.
    files.change(IMAGE, retiring=['base-1.img'])
    house.build(IMAGE)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.made.base_hash != one.made.base_hash and manifest.made.base_path


def test_while_new_content_is_got_no_server_gets_the_older_one(house, monkeypatch):
    """It is another image by now: what it boots from has to be that."""
    ready(house, b'1' * 4096)
    go, begun, download = threading.Event(), threading.Event(), house.images.download

    def slowly(image_id):
        begun.set()
        assert go.wait(20)
        return download(image_id)

    house.images.download = slowly
    house.images.put(IMAGE, b'2' * 4096)
    house.changed(IMAGE)
    assert begun.wait(20)
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    assert answer['action'] == 'stock' and 'cache_image' not in answer
    go.set()
    house.settle()
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'cache'


@pytest.mark.parametrize('change', ['evicted', 'quota'])
def test_a_restart_while_a_cache_image_is_built_again_needs_no_new_recording(house, change):
    ready(house, b'1' * 4096)
    gate = threading.Event()
    house.qemu.building = lambda: gate.wait(20)
    if change == 'evicted':
        house.disk_room.evict(IMAGE)
        house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    else:
        house.images.put(IMAGE, b'1' * 4096, quota='1MiB')
        house.changed(IMAGE)
    until(lambda: house.state(IMAGE) == 'building', 'a build')
    house.controller.stop(wait=False)
    gate.set()
    until(lambda: not house.running.images(), 'its end')
    house.restart()
    house.recover()
    house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    house.settle()
    assert house.state(IMAGE) == 'ready' and len(house.boots.jobs) == 1


# The end of the older content.

@pytest.fixture
def waiting(house):
    """An image whose older content a host needs."""
    house.first = ready(house, b'1' * 4096)
    house.needs.note('one', HostReport(needs=frozenset([IMAGE])))
    house.images.put(IMAGE, b'2' * 4096)
    house.changed(IMAGE)
    house.settle()
    assert 'older content' in house.store.load(IMAGE).reason
    return house


def look(house, seconds=60):
    """Let time pass, and what is due be done."""
    house.later(seconds)
    house.settle()
    return house.store.load(IMAGE)


def test_the_new_content_is_got_by_itself_when_nobody_needs_the_older_one(waiting):
    """An operator need not look whether the last host has gone."""
    look(waiting)
    assert look(waiting).made.base_hash == waiting.first.made.base_hash
    waiting.needs.note('one', HostReport(needs=frozenset()))
    manifest = look(waiting, 300)
    assert (manifest.state, manifest.reason) == ('ready', '')
    assert manifest.made.base_hash == manifest.image_hash != waiting.first.made.base_hash
    assert waiting.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'cache'
    assert len(waiting.boots.jobs) == 2
    look(waiting, 24 * 3600)
    assert len(waiting.boots.jobs) == 2


def test_pauses_grow_while_it_is_needed(waiting):
    asked = [waiting.seconds.now]
    waiting.retiring.why_needed = lambda image_id: asked.append(waiting.seconds.now) or True
    for _half_a_minute in range(120 * 12):
        look(waiting, 30)
    pauses = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert pauses[:8] == [30, 60, 120, 240, 480, 960, 1920, 3600] and set(pauses[8:]) == {3600}


def test_nothing_is_downloaded_while_a_server_needs_the_older_content(waiting):
    waiting.images.download = lambda image_id: pytest.fail('downloaded')
    waiting.build(IMAGE)
    waiting.settle()
    assert 'older content' in waiting.store.load(IMAGE).reason


def test_nor_while_a_host_is_connected_that_does_not_tell_what_it_needs(waiting):
    waiting.needs.note('one', HostReport())
    waiting.exporter.readers.add(IMAGE)
    download = waiting.images.download
    waiting.images.download = lambda image_id: pytest.fail('downloaded')
    for _minute in range(60):
        assert 'older content' in look(waiting).reason
    # It is asked for all the same, so that the end is noticed within the hour.
    waiting.exporter.readers.clear()
    waiting.images.download = download
    look(waiting, 3600)
    assert waiting.state(IMAGE) == 'ready'


def test_new_content_that_fails_for_its_own_reason_is_got_less_and_less_often(waiting, monkeypatch):
    """Gigabytes came once an hour."""
    waiting.needs.note('one', HostReport(needs=frozenset()))
    downloads, download = [], waiting.images.download

    def get(image_id):
        downloads.append(waiting.seconds.now)
        return download(image_id)

    def full(*_arguments):
        raise exception.BuildFailed('no space left')

    waiting.images.download = get
    with monkeypatch.context() as patch:
        patch.setattr(inspection, 'read_through', full)
        for _time in range(6 * 24 * 5):
            look(waiting, 600)
        assert 'no space left' in waiting.store.load(IMAGE).reason
    pauses = [later - sooner for sooner, later in itertools.pairwise(downloads)]
    assert len(downloads) < 20 and pauses == sorted(pauses) and pauses[-1] >= 23 * 3600
    # It goes on by itself once it can.
    look(waiting, 25 * 3600)
    assert waiting.state(IMAGE) == 'ready'


def test_without_profile_boots_the_next_server_is_recorded(waiting):
    waiting.conf.set_override('profile_boots', False, 'bootcache')
    waiting.restart()
    waiting.recover()
    waiting.needs.note('one', HostReport(needs=frozenset()))
    look(waiting)
    assert look(waiting).state == 'served' and len(waiting.boots.jobs) == 1


@pytest.mark.parametrize('hours', [0, 48])
def test_it_goes_on_waiting_whatever_its_last_reason_was(waiting, hours):
    for _hour in range(hours):
        look(waiting, 3600)
    waiting.needs.note('one', HostReport(needs=frozenset()))
    download = waiting.images.download

    def away(image_id):
        raise exception.ServiceAway('Glance was away')

    waiting.images.download = away
    manifest = look(waiting, 3600)
    assert (manifest.state, manifest.reason) == ('failed', 'Glance was away')
    waiting.images.download = download
    # The long pauses were for servers that need the older content.
    manifest = look(waiting)
    assert manifest.state == 'ready' and manifest.made.base_hash != waiting.first.made.base_hash


def test_a_late_report_of_the_older_content_does_not_end_the_wait(waiting):
    """It was asked for before the content changed."""
    before = waiting.store.load(IMAGE)
    waiting.hosts._expected.expect(IMAGE, 'one', 'server', 1000)
    waiting.hosts.report_boot(ReportBoot(IMAGE, waiting.first.made.base_hash, 'one', 65536,
                                         [[131072, 65536]], 'marker', 1.0))
    waiting.controller.rebuild(IMAGE)
    waiting.settle()
    assert waiting.store.load(IMAGE) == before and len(waiting.qemu.builds) == 1


def test_exports_of_a_base_that_was_given_up_are_not_served_as_the_new_content(house):
    """A read error had it given up; a host is connected to its stored file."""
    one = ready(house, b'1' * 4096)
    storedimages.put(house.store, one.making(base_path='', cache_image=None).standing_at(
        Standing.FAILED, Cause(Reason.FAILED, 'it cannot be read')))
    house.exporter.readers.add(IMAGE)
    house.images.put(IMAGE, b'2' * 4096)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'failed' and 'older content' in house.store.load(IMAGE).reason
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')) is None
    house.exporter.readers.clear()
    assert look(house).state == 'ready'


@pytest.mark.parametrize('error', [OSError('no space'), exception.Cancelled('the image changed')])
def test_a_base_that_cannot_be_noted_is_removed(house, monkeypatch, error):
    """A full disk is not filled further."""
    save, errors = imagework.save, [error]

    def fails_once(*arguments):
        if errors:
            raise errors.pop()
        return save(*arguments)

    monkeypatch.setattr(imagework, 'save', fails_once)
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    base = house.store.load(IMAGE).made.base_path
    assert [name for name in os.listdir(house.store.directory(IMAGE)) if 'base' in name] \
        == [os.path.basename(base)] * bool(base)


@pytest.mark.parametrize(('created', 'ends'), [(999.0, False), (1059.0, False), (1061.0, True)])
def test_servers_of_the_new_content_do_not_need_the_older_one(house, monkeypatch, created, ends):
    """They went the stock way; an image in use always has some."""
    monkeypatch.setattr(controller_module, 'time', types.SimpleNamespace(time=lambda: now[0]))
    now = [500.0]
    one = ready(house, b'1' * 4096)
    now[0], house.boots.servers, house.boots.created = 1000.0, {IMAGE}, {IMAGE: 600.0}
    house.images.put(IMAGE, b'2' * 4096)
    house.changed(IMAGE)
    house.settle()
    assert 'older content' in house.store.load(IMAGE).reason
    # An operator who asks again changes nothing; the older servers are deleted then.
    now[0] = 5000.0
    house.build(IMAGE)
    house.settle()
    house.boots.created[IMAGE] = created
    look(house)
    assert (look(house).made.base_hash != one.made.base_hash) == ends
    # Of the content that is here, all count.
    if ends:
        house.boots.created[IMAGE] = 9000.0
        assert house.retiring.why_needed(IMAGE)


def test_an_image_that_a_job_skips_is_retired_without_a_restart(house):
    """Its new content is refused; nobody needs the base of the one before."""
    one = ready(house, b'1' * 4096)
    house.qemu.refuse = 'a backing file'
    house.images.put(IMAGE, b'2' * 4096)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'skipped'
    assert not os.path.exists(one.made.base_path)
    assert house.store.load(IMAGE).made.base_path == '' and IMAGE not in house.exporter.serving
