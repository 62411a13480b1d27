"""A host makes a snapshot's cache image of its parent's, and only what differs travels.

Building, exporter, tiers, gateway and the way between them are real; Glance and RPC are stand-ins.
"""

import dataclasses
import os
import subprocess

import pytest
from compute_host import SERVER, boot
from differences_house import CHILD, CLUSTER, DIFFERING, PARENT, SET, SIZE, offered
from differences_house import child as child  # the fixture
from differences_house import cloud as cloud  # likewise
from differences_house import contents as contents
from differences_house import no_head_moves as no_head_moves
from functional_tools import qemu_img
from tiers_house import MIB, flip
from tiers_house import house as house  # the fixture
from tiers_house import memory as memory  # likewise

from bootcache import difference, expansion, qemuimg
from bootcache.clusterplaces import ClusterPlaces
from bootcache.tier import Medium
from bootcache.util import threads


@pytest.fixture
def host(cloud, hosts, monkeypatch):
    """A host that has the parent's cache image."""
    made = hosts(settle_delay=0)
    monkeypatch.setattr(made.service, 'plan_boot', cloud.plan_boot)
    fetch(made, cloud, PARENT)
    return made


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
    # It is seen whether the base is there, by reads of 4 KiB.
    assert {length for _offset, length in cloud.way.reads('base')} <= {4096}
    assert got['cache'] == began
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
    assert host.chains.facts(CHILD, None, found).disk_room.name == 'FILE'
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
    run_native, unpacked = threads.run_native, difference.unpacked

    def beside(work):
        within.append(work)
        try:
            return run_native(work)
        finally:
            within.pop()

    def read(packed):
        seen.append(len(within))
        return unpacked(packed)

    monkeypatch.setattr(threads, 'run_native', beside)
    monkeypatch.setattr(difference, 'unpacked', read)
    assert fetch(host, cloud).expanded and seen == [1]


def test_two_that_are_the_same_differ_in_nothing(cloud, host, contents):
    cloud.add(CHILD, contents[0], image_type='snapshot', base_image_ref=PARENT)
    child = cloud.build(CHILD, inherits=True)
    assert child.made.difference.data_bytes == 0
    assert_right(host, cloud, fetch(host, cloud), True)
