"""Servers that boot where no cache image is, and hosts with little room, with real daemons."""

import dataclasses
import os

from cold_boots import SET
from compute_host import boot, compare
from functional_tools import frozen, qemu_img, read_base, until
from storage_node import IMAGE, MIB, SIZE, content

from bootcache.tier import Medium

WATCH = {'quota': 64 * MIB, 'linger': 1, 'silence': 60, 'timeout': 100, 'marker': 'login:'}


def read(host, offset, length):
    """Read as a server's QEMU does, through the gateway."""
    return read_base(host, IMAGE, offset, length)


def cold(node, host):
    node.serve()
    host.service.watch = WATCH
    return host


def test_a_cold_server_s_disk_is_the_base_and_its_reads_are_reported(hosts, node, directory):
    host = cold(node, hosts())
    console = []
    assert boot(host, f'{directory}/disk', console=lambda: ''.join(console)) is True
    compare(f'{directory}/disk', node)
    entry = host.cache.entry(IMAGE)
    assert entry.cache_image is None and entry.virtual_bytes == SIZE
    console.append('\nsmall login: ')
    until(lambda: host.service.boots, 'the report')
    image, hash_, name, granularity, extents, ended_by, seconds = host.service.boots[0]
    assert (image, hash_, name, granularity, ended_by) \
        == (IMAGE, 'sha512:ab', 'host-1', 65536, 'marker')
    assert sum(extent[1] for extent in extents) > 3 * MIB and seconds > 0


def test_a_second_cold_server_fetches_nothing_twice(hosts, node, directory):
    host = cold(node, hosts())
    boot(host, f'{directory}/one')
    data = read(host, 3 * MIB, 3 * MIB)
    assert data == content(node)[3 * MIB:6 * MIB]
    size = host.below.stores.get(IMAGE).size()
    boot(host, f'{directory}/two')
    # It is in the store now: the storage node may go.
    node.kill()
    assert read(host, 3 * MIB, 3 * MIB) == data
    assert host.below.stores.get(IMAGE).size() == size


def test_what_a_server_read_until_it_was_stopped_is_reported(hosts, node, directory):
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    read(host, 5 * MIB, 4096)
    host.boots.server_goes('server-disk')
    (*_rest, extents, ended_by, _seconds), = host.service.boots
    assert ended_by == 'shutdown'
    assert [extent[:2] for extent in extents] == [[5 * MIB, 65536]]
    host.boots.server_goes('server-disk')
    assert len(host.service.boots) == 1


def test_a_server_that_was_never_started_is_no_boot(hosts, node, directory):
    """A boot that brings nothing new counts: after three of them no more is learned."""
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    host.boots.server_goes('server-disk')
    assert host.service.boots == []


def test_a_boot_that_begins_beside_another_tells_of_both(hosts, node, directory):
    """It reads from the store what the other one has read. Where it was the first to report, the
    rest of the boot was missing from the image's working set for good."""
    host = cold(node, hosts())
    boot(host, f'{directory}/one')
    read(host, 5 * MIB, 4096)
    boot(host, f'{directory}/two')
    read(host, 0, 4096)
    host.boots.server_goes('server-two')
    host.boots.server_goes('server-one')
    assert [[extent[:2] for extent in report[4]] for report in host.service.boots] \
        == [[[5 * MIB, 65536], [0, 65536]]] * 2


def test_what_a_boot_read_and_nobody_was_told_the_next_one_tells(hosts, node, directory):
    """It would read from the store what the first one has read, and be seen to read the rest."""
    host = cold(node, hosts())
    boot(host, f'{directory}/one')
    read(host, 5 * MIB, 4096)
    with frozen(node.exporter.common._daemon.pid()):
        host.boots.server_goes('server-one')
    assert host.service.boots == []
    boot(host, f'{directory}/two')
    read(host, 5 * MIB, 4096)
    read(host, 0, 4096)
    host.boots.server_goes('server-two')
    (*_rest, extents, _ended_by, _seconds), = host.service.boots
    assert [extent[:2] for extent in extents] == [[5 * MIB, 65536], [0, 65536]]
    for disk in ('one', 'two'):
        compare(f'{directory}/{disk}', node)


def test_what_a_boot_read_that_was_not_watched_the_next_one_tells(hosts, node, directory):
    """As while the storage service is away. Those that are not watched share a store."""
    host = cold(node, hosts())
    host.service.watch = None
    boot(host, f'{directory}/one')
    read(host, 5 * MIB, 4096)
    store = host.below.stores.get(IMAGE)
    boot(host, f'{directory}/two')
    assert host.below.stores.get(IMAGE) is store
    host.service.watch = WATCH
    boot(host, f'{directory}/three')
    read(host, 5 * MIB, 4096)
    host.boots.server_goes('server-three')
    (*_rest, extents, _ended_by, _seconds), = host.service.boots
    assert [extent[:2] for extent in extents] == [[5 * MIB, 65536]]
    for disk in ('one', 'two', 'three'):
        compare(f'{directory}/{disk}', node)


def test_what_nova_copies_while_servers_boot_is_reported_by_none(hosts, node, directory):
    """A live snapshot made the image worse for all: its reads were taken for the boot's."""
    host = cold(node, hosts())
    boot(host, f'{directory}/one')
    boot(host, f'{directory}/two')
    read(host, 5 * MIB, 4096)
    with host.boots.copying(IMAGE):
        read(host, 0, 2 * MIB)
        host.boots.server_goes('server-one')
        host.boots.server_goes('server-two')
        # Its reads would be in the same store as the copy's.
        boot(host, f'{directory}/three')
        assert not host.needs.is_booting(IMAGE)
        read(host, 3 * MIB, 65536)
    assert host.service.boots == []
    # The next one is watched again, and what the copy has read is not in the way.
    boot(host, f'{directory}/four')
    read(host, 0, 65536)
    host.boots.server_goes('server-four')
    (*_rest, extents, ended_by, _seconds), = host.service.boots
    assert ended_by == 'shutdown' and [extent[:2] for extent in extents] == [[0, 65536]]
    for disk in ('one', 'two', 'three', 'four'):
        compare(f'{directory}/{disk}', node)


def test_a_store_that_is_made_while_nova_copies_tells_of_no_boot(hosts, node, directory):
    host = cold(node, hosts())
    with host.boots.copying(IMAGE):
        boot(host, f'{directory}/one')
        assert host.below.stores.get(IMAGE).spoilt and not host.needs.is_booting(IMAGE)
    boot(host, f'{directory}/two')
    assert not host.below.stores.get(IMAGE).spoilt and host.needs.is_booting(IMAGE)
    host.boots.server_goes('server-two')


def test_what_nova_copies_of_another_image_does_not_matter(hosts, node, directory):
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    with host.boots.copying('11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'), host.boots.copying(None):
        read(host, 5 * MIB, 4096)
    host.boots.server_goes('server-disk')
    assert len(host.service.boots) == 1


def test_the_whole_cache_image_takes_the_empty_ones_place(hosts, node, directory):
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    host.boots.server_goes('server-disk')
    empty = os.stat(host.cache.path(IMAGE)).st_ino
    node.build(*SET)
    with open(host.cache.path(IMAGE), 'rb') as opened:
        host.upkeep.once()
        assert host.cache.entry(IMAGE).cache_image is not None
        assert os.stat(host.cache.path(IMAGE)).st_ino != empty
        # Who runs from the old one goes on with it.
        assert os.fstat(opened.fileno()).st_ino == empty
    compare(f'{directory}/disk', node)


def test_a_warm_boots_misses_are_reported_and_its_store_goes(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.service.watch = WATCH
    console = []
    boot(host, f'{directory}/disk', console=lambda: ''.join(console))
    read(host, 5 * MIB, 4096)
    console.append('small login:')
    until(lambda: host.service.boots, 'the report')
    assert [extent[:2] for extent in host.service.boots[0][4]] == [[5 * MIB, 65536]]
    until(lambda: host.below.stores.get(IMAGE) is None, 'the end of the store')
    until(lambda: not any(name.endswith('.store') for name in os.listdir(host.cache.directory)),
          'the end of its file')
    compare(f'{directory}/disk', node)


def test_a_warm_boot_that_misses_nothing_says_so(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.service.watch = WATCH
    boot(host, f'{directory}/disk', console=lambda: 'small login:')
    until(lambda: host.below.stores.get(IMAGE) is None, 'the end of the store')
    assert host.service.boots[0][4] == []


def test_a_gateway_that_somebody_else_restarted_has_no_stores(hosts, node, directory):
    """As systemd does; the driver adopts what it finds."""
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    host.gateway.daemon.stop()
    again = type(host.gateway)(host.gateway.daemon.directory, host.gateway.socket_path, 5,
                               host.connections)
    again.start()
    assert boot(host, f'{directory}/next') is True
    read(host, 3 * MIB, MIB)
    assert host.below.stores.get(IMAGE).is_there() and host.below.stores.get(IMAGE).size() > MIB
    compare(f'{directory}/disk', node)


def test_memory_that_was_lost_while_the_storage_service_is_away(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    boot(host, f'{directory}/disk')
    os.unlink(host.cache.path(IMAGE))
    host.service.away = True
    host.chains.keep_chain(IMAGE)
    compare(f'{directory}/disk', node)
    assert host.cache.entry(IMAGE).cache_image is None


def test_a_store_goes_with_the_whole_cache_image_but_not_while_the_storage_node_is_away(
        hosts, node, directory):
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    data = read(host, 3 * MIB, MIB)
    host.boots.server_goes('server-disk')
    node.build(*SET)
    host.upkeep.replace_empty()
    node.kill()
    host.drop_useless_stores()
    # What it has is all that servers can read now.
    assert read(host, 3 * MIB, MIB) == data
    node.serve()
    until(lambda: host.drop_useless_stores() or host.below.stores.get(IMAGE) is None,
          'the end of the store')
    assert host.room.has_room(Medium.DISK, '', host.room.limits[Medium.DISK].quota // 2)


def test_a_cache_image_that_cannot_be_fetched_is_done_without(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.service.extra = {'cache_export': 'cache-that-is-not-there'}
    assert boot(host, f'{directory}/disk') is True
    assert host.cache.entry(IMAGE).cache_image is None
    compare(f'{directory}/disk', node)


def test_a_storage_node_that_moved_is_asked_for(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    boot(host, f'{directory}/disk')
    entry = host.cache.entry(IMAGE)
    away = dataclasses.replace(entry.remote, port=1)
    host.cache.update(entry, away, False, 0)
    os.unlink(f'{directory}/disk')
    assert host.below.stop_serving(IMAGE)
    # It is read where it was, until that is looked at.
    host.chains.keep_chain(IMAGE)
    host.upkeep.connect_bases()
    assert host.cache.entry(IMAGE).remote == dataclasses.replace(
        node.remote(), image_hash=entry.remote.image_hash)


def test_a_base_that_is_being_prepared_is_waited_for(hosts, node, directory, monkeypatch):
    node.serve()
    host = hosts()
    answers = [{'action': 'wait', 'reason': 'the image\'s base is being prepared'}] * 2
    real = host.service.plan_boot
    monkeypatch.setattr(host.service, 'plan_boot', lambda *arguments: answers.pop() if answers
                        else real(*arguments))
    assert boot(host, f'{directory}/disk') is True
    compare(f'{directory}/disk', node)


def test_patience_ends_in_the_stock_way(hosts, node, directory, monkeypatch):
    host = hosts(cold_wait=0)
    monkeypatch.setattr(host.service, 'plan_boot', lambda *arguments: {'action': 'wait'})
    assert boot(host, f'{directory}/disk') is False


def test_without_room_for_anything_a_server_still_boots(hosts, node, directory):
    node.build(*SET)
    host = hosts(compute_disk_quota='1MiB', store_quota='1MiB')
    with host.room.for_fetch('other', Medium.DISK, 900_000):
        assert boot(host, f'{directory}/disk') is True
    assert host.cache.entry(IMAGE).cache_image is None and host.below.stores.get(IMAGE) is None
    compare(f'{directory}/disk', node)


def test_a_restarted_gateway_has_no_stores(hosts, node, directory):
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    read(host, 3 * MIB, MIB)
    host.gateway.daemon.stop()
    host.upkeep.once()
    assert host.below.stores.stores() == []
    assert not any(name.endswith('.store') for name in os.listdir(host.cache.directory))
    compare(f'{directory}/disk', node)


def test_a_restarted_driver_stops_the_growth(hosts, node, directory):
    host = cold(node, hosts())
    boot(host, f'{directory}/disk')
    read(host, 3 * MIB, MIB)
    again = hosts()
    size = os.path.getsize(host.below.stores.get(IMAGE).path)
    read(again, 5 * MIB, MIB)
    assert os.path.getsize(host.below.stores.get(IMAGE).path) == size
    compare(f'{directory}/disk', node)
    # The next cold server begins with a new one.
    host.below.stores.remove(IMAGE)
    assert boot(again, f'{directory}/next') is True
    compare(f'{directory}/next', node)
    assert again.below.stores.get(IMAGE) is not None


def test_a_lost_cache_image_of_an_image_that_is_gone_is_replaced_by_an_empty_one(hosts, node,
                                                                                directory):
    node.build(*SET)
    host = hosts()
    boot(host, f'{directory}/disk')
    host.cache.remove(IMAGE)
    host.service.extra = {'action': 'stock', 'reason': 'the image was deleted in Glance'}
    host.chains.keep_chain(IMAGE)
    compare(f'{directory}/disk', node)


def test_an_overlay_from_another_host_is_adopted(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    qemu_img('create', '-u', '-f', 'qcow2', '-b', '/nowhere/base', '-F', 'raw',
             f'{directory}/disk', SIZE)
    assert host.chains.adopt(IMAGE, f'{directory}/disk') is True
    compare(f'{directory}/disk', node)


def test_an_overlay_that_cannot_be_adopted_is_left_to_nova(hosts, node, directory):
    host = hosts()
    host.service.away = True
    assert host.chains.adopt(IMAGE, f'{directory}/disk') is False


def test_a_server_that_moves_needs_no_image_in_glance(hosts, node, directory):
    node.serve()
    host = hosts()
    host.service.extra = {'action': 'stock', 'reason': 'the image was deleted in Glance'}
    assert boot(host, f'{directory}/new') is False
    assert boot(host, f'{directory}/disk', is_moving=True) is True
    compare(f'{directory}/disk', node)
    assert host.service.boots == []
