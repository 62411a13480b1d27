"""A host makes a snapshot's cache image of its parent's, and only what differs travels.

Building, exporter, tiers, gateway and the way between them are real; Glance and RPC are stand-ins.
"""

import dataclasses
import os
import random
import subprocess
import types

import pytest
from compute_host import SERVER, boot
from functional_tools import qemu_img
from test_arrival import Way
from tiers_house import MIB, flip
from tiers_house import house as house  # the fixture
from tiers_house import memory as memory  # likewise

from bootcache import difference, differing, expansion, green, qemuimg, rpcapi, tier
from bootcache.clusterplaces import ClusterPlaces
from bootcache.manifest import Made, Manifest, Standing, WorkingSetInfo
from bootcache.tier import Medium
from bootcache.workingset import Extent, WorkingSet, total_bytes
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.images.states import States
from glance_bootcache.images.storagedisk import DiskRoom
from nova_bootcache.asking import offer

PARENT = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CHILD = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CLUSTER = 65536
SIZE = 24 * MIB
# Not in order; it ends where the parent does.
SET = (Extent(12 * MIB, 8 * MIB), Extent(0, 4 * MIB), Extent(22 * MIB, 2 * MIB))
# What the snapshot's server wrote: within the set 4 MiB and a few bytes of a block, and beyond.
WRITTEN = ((13 * MIB, 3 * MIB), (MIB, MIB), (3 * MIB + 100, 50), (21 * MIB, MIB // 2))
DIFFERING = 4 * MIB + 4096


class Cloud:
    """The storage node, with an image and a snapshot of a server of it."""

    def __init__(self, house):
        self.house, self.store = house, house.store
        self.jobs = Jobs(1, self.store.lock)
        shown = types.SimpleNamespace(show=lambda image_id: None)
        self.states = States(self.store, self.jobs, shown)
        self.facts = {}
        glance = types.SimpleNamespace(get=lambda image_id: self.facts.get(image_id))
        self.work = ImageWork(
            house.conf, self.store, glance, house.exporter, house.tiers, None, self.states,
            DiskRoom(self.store, self.jobs, house.exporter, house.tiers, shown), None)
        manager = types.SimpleNamespace(jobs=self.jobs, rebuild=lambda image_id: None)
        self.boots = ReportedBoots(house.conf, self.store, house.exporter, manager, house.tiers)
        self.watched = False

    def path(self, image):
        return f'{self.house.directory}/{image[:8]}.raw'

    def add(self, image, content, **properties):
        """Have an image's base."""
        with open(self.path(image), 'wb') as stream:
            stream.write(content)
        os.makedirs(self.store.directory(image), exist_ok=True)
        self.facts[image] = ImageFacts(image, 'active', 'raw', 'bare', len(content),
                                       f'sha512:{image[:2]}', 0, 0, properties, owner='one')
        self.store.save(Manifest(image, Standing.DONE, made=Made(
            base_path=self.path(image), base_hash=f'sha512:{image[:2]}', image_format='raw',
            virtual_bytes=len(content))).wishing(quota=64 * MIB, owner='one',
                                                 boot_marker='login:'))

    def learn(self, image, extents):
        manifest = self.store.load(image)
        made = manifest.made
        name = self.store.save_working_set(image, WorkingSet(
            image, made.base_hash, made.virtual_bytes, 4096, extents))
        self.store.save(manifest.making(working_set=WorkingSetInfo(
            name, total_bytes(extents), len(extents), 4096, 'nova', 'marker', 1.0, 'login:')))

    def build(self, image, inherits=False):
        job = self.jobs.begin(image)
        if inherits:
            assert self.work.inherit(self.facts[image], job)
        self.states.guarded(job, lambda: self.work.build_again(job))
        manifest = self.store.load(image)
        assert manifest.made.cache_image is not None, manifest.reason
        return manifest

    def plan_boot(self, image, host, server, token, owner='', certificate=''):
        answer = self.boots.plan_boot(image, host, server if self.watched else '', token, owner,
                                      certificate)
        return {**answer, 'server': ['127.0.0.1', self.way.port]}

    def stop(self):
        self.jobs.stop()


@pytest.fixture(autouse=True)
def no_head_moves(monkeypatch):
    monkeypatch.setattr(tier, 'spins', lambda directory: False)


@pytest.fixture
def contents():
    parent = bytearray(random.Random(0).randbytes(SIZE))
    # A boot reads zeros as well; and there are some nobody reads.
    parent[14 * MIB:14 * MIB + CLUSTER] = bytes(CLUSTER)
    parent[6 * MIB:7 * MIB] = bytes(MIB)
    # Some of it becomes smaller by compression.
    parent[17 * MIB:18 * MIB] = bytes(range(256)) * (MIB // 256)
    child = parent + bytearray(random.Random(2).randbytes(MIB))
    for number, (offset, length) in enumerate(WRITTEN):
        child[offset:offset + length] = random.Random(10 + number).randbytes(length)
    return bytes(parent), bytes(child)


@pytest.fixture
def cloud(house, contents):
    house.conf.set_override('cluster_size', CLUSTER, 'bootcache')
    made = Cloud(house)
    made.add(PARENT, contents[0])
    made.learn(PARENT, SET)
    made.build(PARENT)
    made.add(CHILD, contents[1], image_type='snapshot', base_image_ref=PARENT)
    made.way = Way(house.directory, house.conf.bootcache.export_port, 8_000_000_000)
    yield made
    made.way.end()
    made.stop()


@pytest.fixture
def child(cloud):
    return cloud.build(CHILD, inherits=True)


@pytest.fixture
def host(cloud, hosts, monkeypatch):
    """A host that has the parent's cache image."""
    made = hosts(settle_delay=0)
    monkeypatch.setattr(made.storage.api, 'plan_boot', cloud.plan_boot)
    fetch(made, cloud, PARENT)
    return made


def offered(cloud, image=CHILD):
    return offer.parse(image, cloud.plan_boot(image, 'host-1', '', None))


def fetch(host, cloud, image=CHILD, **changes):
    return host.fetches.fetch_offered(dataclasses.replace(offered(cloud, image), **changes),
                                      Medium.DISK)


def travelled(cloud, kind):
    return sum(length for _offset, length in cloud.way.reads(kind))


def assert_right(host, cloud, entry, is_made):
    """The host has the storage node's cache image, whichever way it came."""
    path = host.cache.path(CHILD)
    info = cloud.store.load(CHILD).made.cache_image
    assert entry == host.cache.entry(CHILD) and entry.cache_image == info
    assert entry.expanded is is_made and bool(ClusterPlaces(path).compressed) is not is_made
    qemu_img('check', qemuimg.file_node(path, 'qcow2'))
    whole = cloud.store.path(CHILD, info.file)
    there, wanted = expansion.layout(path), expansion.layout(whole)
    assert (there.data, there.zeros) == (wanted.data, wanted.zeros)
    qemu_img('compare', qemuimg.file_node(path, 'qcow2'), qemuimg.file_node(whole, 'qcow2'))
    assert not [name for name in os.listdir(host.cache.directory) if 'partial' in name]


def test_a_warm_host_gets_no_more_than_what_differs(cloud, child, host, directory):
    began = travelled(cloud, 'cache')
    server = dataclasses.replace(SERVER, image_id=CHILD)
    assert boot(host, f'{directory}/disk', server=server, size=SIZE + MIB) is True
    # The guest boots: it reads its working set.
    subprocess.run(['qemu-io', '-f', 'qcow2', '-r', f'{directory}/disk'], check=True, text=True,
                   input='\n'.join(f'read {extent.offset} {extent.length}' for extent in SET),
                   capture_output=True)
    got = {kind: travelled(cloud, kind) for kind in ('difference', 'base', 'cache')}
    print(f'{DIFFERING} bytes differ; {got}, all of the cache image'
          f' {child.made.cache_image.bytes}')
    assert DIFFERING <= got['difference'] <= 1.1 * DIFFERING
    assert got['base'] == 0 and got['cache'] == began
    assert_right(host, cloud, host.cache.entry(CHILD), True)
    qemu_img('compare', '-f', 'qcow2', '-F', 'raw', f'{directory}/disk', cloud.path(CHILD))


def test_its_clusters_lie_in_the_order_of_the_first_reads(cloud, child, host):
    assert fetch(host, cloud).expanded
    places = ClusterPlaces(host.cache.path(CHILD)).places
    order = [offset for offset in sorted(places, key=places.get)]
    assert order == [offset for extent in SET
                     for offset in range(extent.offset, extent.end, CLUSTER)
                     if offset in places]


def test_a_parents_that_was_expanded_does_as_well(cloud, child, host):
    host.expansions.expand(host.cache.entry(PARENT))
    assert host.cache.entry(PARENT).expanded
    assert_right(host, cloud, fetch(host, cloud), True)


def test_a_second_server_finds_it(cloud, child, host, directory):
    entry = fetch(host, cloud)
    inode = os.stat(host.cache.path(CHILD)).st_ino
    assert fetch(host, cloud) == entry and os.stat(host.cache.path(CHILD)).st_ino == inode


def test_a_host_without_the_parent_gets_all(cloud, child, host):
    host.cache.remove(PARENT)
    assert_right(host, cloud, fetch(host, cloud), False)
    assert not travelled(cloud, 'difference')


def test_so_does_one_whose_parent_has_another_content(cloud, child, host):
    found = offered(cloud)
    other = dataclasses.replace(found.difference, parent_hash='sha512:00')
    assert_right(host, cloud, fetch(host, cloud, difference=other), False)
    assert not travelled(cloud, 'difference')


@pytest.mark.parametrize('what', ['content', 'layout_at', 'sha256', 'parent'])
def test_what_is_not_as_it_was_told_never_takes_a_place(cloud, child, host, what, caplog):
    found = offered(cloud).difference
    wrong = {'content': found.content[:-1] + ('0' if found.content[-1] != '0' else '1'),
             'layout_at': found.layout_at - 1, 'sha256': 'ab' * 32, 'parent': 'ab'}[what]
    if what == 'parent':
        # Its file is another one than was verified.
        flip(host.cache.path(PARENT))
        wrong = PARENT
    entry = fetch(host, cloud, difference=dataclasses.replace(found, **{what: wrong}))
    assert_right(host, cloud, entry, False)
    assert 'all of it is fetched' in caplog.text


def test_a_parents_cache_image_that_lacks_clusters_makes_no_wrong_one(cloud, child, host, caplog):
    """It is of the same content, and an earlier one than what differs was compared with."""
    host.cache.remove(PARENT)
    cloud.learn(PARENT, SET[:1])
    cloud.build(PARENT)
    fetch(host, cloud, PARENT)
    assert_right(host, cloud, fetch(host, cloud), False)
    assert 'lacks some of what it is to be made of' in caplog.text


def test_damage_on_the_storage_node_costs_the_difference_and_nothing_else(cloud, child, host):
    flip(cloud.store.difference_path(CHILD, child.made.cache_image.file))
    assert_right(host, cloud, fetch(host, cloud), False)


def test_one_that_is_gone_is_not_told(cloud, child, host):
    os.unlink(cloud.store.difference_path(CHILD, child.made.cache_image.file))
    assert offered(cloud).difference is None
    assert_right(host, cloud, fetch(host, cloud), False)


def test_where_its_room_is_short_it_comes_as_a_whole(cloud, child, host, monkeypatch):
    """It is expanded, so it may not have what the storage node's would."""
    found = offered(cloud)
    monkeypatch.setattr(host.room, 'has_room', lambda medium, image_id, size:
                        medium is Medium.DISK and size <= child.made.cache_image.bytes)
    assert host.facts.of(CHILD, None, found).disk_room.name == 'FILE'
    assert host.fetches.room_here(found) > child.made.cache_image.bytes


def test_the_parent_is_used_by_that(cloud, child, host):
    path = f'{host.cache.path(PARENT)}.json'
    os.utime(path, (1000.0, 1000.0))
    assert fetch(host, cloud).expanded
    assert os.stat(path).st_mtime > 1000.0


def test_a_host_that_is_warmed_is_paced(cloud, child, host):
    entry = host.fetches.fetch_offered(offered(cloud), Medium.DISK, 100 * MIB)
    assert_right(host, cloud, entry, True)


def test_nova_compute_does_other_things_while_its_layout_is_read(cloud, child, host, monkeypatch):
    within, seen = [], []
    aside, unpacked = green.aside, difference.unpacked

    def beside(work):
        within.append(work)
        try:
            return aside(work)
        finally:
            within.pop()

    def read(packed):
        seen.append(len(within))
        return unpacked(packed)

    monkeypatch.setattr(green, 'aside', beside)
    monkeypatch.setattr(difference, 'unpacked', read)
    assert fetch(host, cloud).expanded and seen == [1]


# On the storage node.

def test_its_files_are_those_of_its_cache_image(cloud, child):
    def names():
        return sorted(name.partition('.')[2] for name in os.listdir(cloud.store.directory(CHILD)))

    assert names() == ['difference', 'difference.json', 'json', 'json', 'zstd.qcow2']
    again = cloud.build(CHILD)
    assert names() == ['difference', 'difference.json', 'json', 'json', 'zstd.qcow2']
    assert again.made.cache_image.file != child.made.cache_image.file
    cloud.store.sweep(again)
    assert cloud.store.load_difference(again).parent == PARENT
    cloud.store.put(again.making(cache_image=None))
    assert names() == ['json', 'json']


def made_meanwhile(monkeypatch, do):
    """Have something done while a difference is being made."""
    make = differing.make

    def made(*arguments, **named):
        do()
        return make(*arguments, **named)

    monkeypatch.setattr(differing, 'make', made)


def test_its_cache_image_is_served_before_what_differs_is_there(cloud, monkeypatch):
    answers = []

    def ask(server):
        answers.append(cloud.boots.plan_boot(CHILD, 'host-1', server, None))

    def look():
        ask('server')
        ask('')
        cloud.jobs.of(CHILD).wait_for_build(0.0)
        ask('server')

    made_meanwhile(monkeypatch, look)
    assert cloud.store.load_difference(cloud.build(CHILD, inherits=True)) is not None
    ask('server')
    # Its servers wait, not for ever; what is no server's does not.
    assert [answer['action'] for answer in answers] == ['wait', 'cache', 'cache', 'cache']
    assert ['difference' in answer for answer in answers] == [False] * 3 + [True]


def test_a_snapshot_that_goes_meanwhile_leaves_none(cloud, monkeypatch):
    made_meanwhile(monkeypatch, lambda: cloud.jobs.cancel(CHILD))
    manifest = cloud.build(CHILD, inherits=True)
    assert not [name for name in os.listdir(cloud.store.directory(CHILD)) if 'difference' in name]
    assert cloud.store.load_difference(manifest) is None


def test_one_that_was_not_finished_is_swept(cloud, child):
    os.unlink(f'{cloud.store.difference_path(CHILD, child.made.cache_image.file)}.json')
    cloud.store.sweep(child)
    assert not [name for name in os.listdir(cloud.store.directory(CHILD)) if 'difference' in name]


def test_glance_is_not_asked_again_whose_snapshot_it_is(cloud, child):
    del cloud.facts[CHILD]
    again = cloud.build(CHILD)
    assert again != child and cloud.store.load_difference(again).parent == PARENT


def test_an_earlier_version_reads_the_manifest_and_removes_the_files(cloud, child):
    assert 'difference' not in str(child.to_json())


@pytest.mark.parametrize('what', ['much differs', 'no snapshot', 'not visible', 'parent evicted'])
def test_where_it_would_not_be_worth_it_or_right_there_is_none(cloud, what):
    if what == 'much differs':
        cloud.add(CHILD, random.Random(5).randbytes(SIZE + MIB), image_type='snapshot',
                  base_image_ref=PARENT)
    cloud.learn(CHILD, SET)
    if what == 'no snapshot':
        cloud.facts[CHILD] = dataclasses.replace(cloud.facts[CHILD], properties={})
    if what == 'not visible':
        cloud.store.change(PARENT, lambda known: known.wishing(owner='another'))
    if what == 'parent evicted':
        cloud.store.change(PARENT, lambda known: known.making(cache_image=None))
    manifest = cloud.build(CHILD)
    assert cloud.store.load_difference(manifest) is None
    assert not [name for name in os.listdir(cloud.store.directory(CHILD)) if 'difference' in name]
    assert 'difference' not in cloud.plan_boot(CHILD, 'host-1', '', None)


def test_two_that_are_the_same_differ_in_nothing(cloud, host, contents):
    cloud.add(CHILD, contents[0], image_type='snapshot', base_image_ref=PARENT)
    child = cloud.build(CHILD, inherits=True)
    assert cloud.store.load_difference(child).data_bytes == 0
    assert_right(host, cloud, fetch(host, cloud), True)


def test_it_counts_for_the_quota_of_the_disk(cloud, child):
    item = cloud.house.tiers._on_disk(child, False)
    assert item.bytes == child.made.cache_image.bytes + cloud.store.load_difference(child).bytes


def test_it_is_served_while_somebody_asks(cloud, child):
    def exports():
        return [name for name in cloud.house.exporter.common._daemon.exports()
                if name.startswith('difference')]

    assert not exports()
    assert cloud.plan_boot(CHILD, 'host-1', '', None)['action'] == rpcapi.ACTION_CACHE
    assert len(exports()) == 1
    cloud.house.exporter.withdraw_idle(CHILD, 3600)
    assert len(exports()) == 1
    cloud.house.exporter.withdraw_idle(CHILD, 0)
    assert not exports()
    assert offered(cloud).difference is not None and len(exports()) == 1
    cloud.house.exporter.retire(CHILD, with_base=False)
    assert not exports()
