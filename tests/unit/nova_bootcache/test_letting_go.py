"""When a host may let go of what is below its servers' disks: chains in the making, and stores.

The gateway is a stand-in; tests/functional/test_compute_host.py and test_cold_boots.py have a real
one. A disk is opened here as QEMU opens it: with its image lock."""

import contextlib
import os
import threading
import types

import pytest
from fakes_letting_go import IMAGE, MIB, OTHER, SERVER, evict, fill, make_disk, opened, place
from fakes_letting_go import decides as decides  # the fixture
from fakes_letting_go import host as host  # the fixture

from bootcache import qemuimg, tier
from bootcache.tier import Medium
from nova_bootcache.asking import placement
from nova_bootcache.asking.placement import PlanStep
from nova_bootcache.gateway import hostneeds


def test_a_chain_whose_disk_nobody_has_opened_yet_is_kept(host, tmp_path):
    for image in (IMAGE, OTHER):
        place(host, image)
    make_disk(host, tmp_path / 'disk')
    assert host.needs.is_in_making(IMAGE) and not host.needs.is_in_making(OTHER)
    assert host.below.stop_serving(IMAGE) is False and host.removed == []
    assert host.below.stop_serving(OTHER) is True and host.removed == [OTHER]
    fill(host, 3 * MIB)
    assert os.path.exists(host.cache.path(IMAGE)) and not os.path.exists(host.cache.path(OTHER))
    assert host.removed == [OTHER, OTHER], 'what is evicted leaves the gateway'
    host.room.remove_unused([], 0)
    assert host.cache.known(IMAGE) is not None


def test_it_is_kept_while_it_is_being_made(host, tmp_path):
    place(host)
    with host.needs.making(IMAGE, str(tmp_path / 'disk')):
        # Fetching and making the disk may take longer than any patience with Nova.
        assert host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is False
        assert evict(host) == {IMAGE}
        (tmp_path / 'disk').touch()
        assert host.needs.is_in_making(IMAGE)


def test_one_whose_whole_cache_image_arrives_is_kept(host):
    """Servers that come meanwhile are promised its name, also if the first one is deleted."""
    place(host)
    host.needs.begin_arrival(IMAGE)
    assert evict(host) == {IMAGE}
    host.needs.end_arrival(IMAGE)
    assert evict(host) == set()


def test_it_is_a_server_s_own_once_its_disk_is_open(host, tmp_path):
    place(host)
    make_disk(host, tmp_path / 'disk')
    with opened(tmp_path / 'disk'):
        assert not host.needs.is_in_making(IMAGE)
    assert not host.needs.is_in_making(IMAGE), 'it was opened'
    assert host.below.stop_serving(IMAGE) is True and evict(host) == set()


@pytest.mark.parametrize('end', ['written', 'deleted', 'late'])
def test_it_is_nobodys_any_more(host, tmp_path, end):
    place(host)
    make_disk(host, tmp_path / 'disk')
    host.clock.now += hostneeds._OPENED_SECONDS
    assert host.needs.is_in_making(IMAGE)
    if end == 'written':
        # The server was started, and stopped, between two looks.
        os.utime(tmp_path / 'disk', (1, 1))
    elif end == 'deleted':
        (tmp_path / 'disk').unlink()
    else:
        host.clock.now += 1
    assert not host.needs.is_in_making(IMAGE) and host.needs._in_making == {}
    assert host.below.stop_serving(IMAGE) is True and evict(host) == set()


@pytest.mark.parametrize('end', [lambda host: host.room.remove_unused([], 0), evict],
                         ids=['unused', 'evicted'])
def test_nobody_begins_a_chain_on_a_cache_image_that_is_being_removed(host, tmp_path, monkeypatch,
                                                                      end):
    place(host)
    host.needs.note_unsettled([])
    begun, found = threading.Event(), []

    def begin():
        with host.needs.making(IMAGE, str(tmp_path / 'disk')):
            found.append(os.path.exists(host.cache.path(IMAGE)))
            begun.set()
            (tmp_path / 'disk').touch()

    server, remove = threading.Thread(target=begin), host.cache.remove_file

    def remove_slowly(image_id):
        server.start()
        begun.wait(0.5)
        remove(image_id)

    monkeypatch.setattr(host.cache, 'remove_file', remove_slowly)
    end(host)
    server.join(10)
    assert found == [False], 'it begins when the file is gone, and goes another way'


def test_what_a_server_came_for_meanwhile_is_not_evicted(host, tmp_path, monkeypatch):
    place(host)
    make_room = tier.make_room

    def choose(*arguments):
        room = make_room(*arguments)
        monkeypatch.setattr(tier, 'make_room', make_room)
        server = threading.Thread(target=make_disk, args=(host, tmp_path / 'disk'))
        server.start()
        server.join()
        return room

    monkeypatch.setattr(tier, 'make_room', choose)
    assert evict(host) == {IMAGE} and os.path.exists(host.cache.path(IMAGE))


@pytest.mark.parametrize('what', ['renamed', 'opened', 'late'])
def test_what_a_chain_needs_stays_until_novas_operation_has_ended(host, tmp_path, what):
    """A revert renames the directory of the disk, and files are put into it, before QEMU opens it.

    Waiting for a network can take longer than anybody believes that it is opened.
    """
    place(host)
    kept = tmp_path / 'server_resize'
    kept.mkdir()
    with host.needs.operating('server'):
        make_disk(host, kept / 'disk')
        with host.needs.operating('server'):
            if what == 'renamed':
                kept.rename(tmp_path / 'server')
            elif what == 'opened':
                with opened(kept / 'disk'):
                    host.needs.is_in_making(IMAGE)
                os.utime(kept / 'disk', (1, 1))
            else:
                host.clock.now += hostneeds._OPENED_SECONDS + 1
        assert host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is False
        assert evict(host) == {IMAGE}
    assert not host.needs.is_in_making(IMAGE) and evict(host) == set()


def test_a_chain_that_was_not_made_keeps_nothing(host, tmp_path):
    place(host)
    with pytest.raises(RuntimeError), host.needs.making(IMAGE, str(tmp_path / 'disk')):
        raise RuntimeError('no room')
    assert not host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is True


def test_what_a_server_is_decided_to_boot_from_is_not_evicted_before_it_is_made(
        host, tmp_path, decides, caplog):
    place(host)
    left = []
    decides(lambda: left.append((evict(host), host.below.stop_serving(IMAGE))))
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), MIB,
                                    False) is True
    assert left == [({IMAGE}, False)] and host.removed == []
    assert os.path.exists(host.cache.path(IMAGE)) and (tmp_path / 'disk').exists()
    assert host.needs.is_in_making(IMAGE), 'nobody has opened it yet'


def test_a_server_that_is_decided_to_go_stock_keeps_nothing(host, tmp_path, decides):
    decides(lambda: None)
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), MIB,
                                    False) is False
    assert not host.needs.is_in_making(IMAGE) and host.needs._in_making == {}


def test_a_chain_that_is_mended_while_it_is_looked_at_is_kept(host, tmp_path, monkeypatch):
    """The server was started and stopped long ago, and is started again just now."""
    place(host)
    make_disk(host, tmp_path / 'disk')
    was_opened = hostneeds._was_opened
    with contextlib.ExitStack() as stack:
        def look(path, made_at):
            monkeypatch.setattr(hostneeds, '_was_opened', was_opened)
            stack.enter_context(host.needs.making(IMAGE, path))
            return True

        monkeypatch.setattr(hostneeds, '_was_opened', look)
        host.needs.is_in_making(OTHER)
        assert host.needs.is_in_making(IMAGE)


def test_two_servers_of_one_image(host, tmp_path):
    place(host)
    make_disk(host, tmp_path / 'one')
    make_disk(host, tmp_path / 'two')
    with opened(tmp_path / 'one'):
        assert host.needs.is_in_making(IMAGE), 'the other one is still to be started'
        with opened(tmp_path / 'two'):
            assert not host.needs.is_in_making(IMAGE)


def test_a_disk_from_another_host_is_kept_until_the_server_starts(host, tmp_path, monkeypatch):
    place(host)
    (tmp_path / 'disk').write_bytes(b'overlay')
    entry = host.cache.known(IMAGE)
    monkeypatch.setattr(host.cache, 'entry', lambda image_id: entry)
    monkeypatch.setattr(host.gateway, 'ensure_base', lambda remote: None)
    monkeypatch.setattr(qemuimg, 'set_backing_pointer',
                        lambda path, backing, backing_format: os.utime(path, (5, 5)))
    assert host.chains.adopt(IMAGE, str(tmp_path / 'disk')) is True
    assert host.needs.is_in_making(IMAGE)
    with opened(tmp_path / 'disk'):
        assert not host.needs.is_in_making(IMAGE)


def test_a_chain_that_was_mended_is_kept_until_the_server_starts(host, tmp_path, monkeypatch):
    """``keep_chain`` before a start: its disk has long been there."""
    place(host)
    (tmp_path / 'disk').write_bytes(b'overlay')
    os.utime(tmp_path / 'disk', (1, 1))
    entry = host.cache.known(IMAGE)
    monkeypatch.setattr(host.cache, 'entry', lambda image_id: entry)
    monkeypatch.setattr(host.gateway, 'ensure_base', lambda remote: 'base-x')
    host.chains.keep_chain(IMAGE)
    assert not host.needs.is_in_making(IMAGE), 'no disk is about to be opened'
    host.chains.keep_chain(IMAGE, str(tmp_path / 'disk'))
    assert host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is False
    with opened(tmp_path / 'disk'):
        assert not host.needs.is_in_making(IMAGE)


def test_the_cache_asks_for_chains_in_the_making(host, tmp_path):
    """What is busy is asked of the host itself, each time."""
    place(host)
    busy = [item.busy for item in host.room._items(Medium.DISK)]
    make_disk(host, tmp_path / 'disk')
    assert busy + [item.busy for item in host.room._items(Medium.DISK)] == [False, True]
    assert not tier.is_open(host.cache.path(IMAGE))


def test_a_boot_that_cannot_be_watched_is_a_boot(host, decides, tmp_path, monkeypatch, caplog):
    """Its disk is there by then: the stock way would find a disk that nobody has noted."""
    def refuse(*_arguments):
        raise RuntimeError('can\'t start new thread')

    place(host)
    monkeypatch.setattr(placement, 'plan', lambda *_arguments: (
        PlanStep.SERVE_BASE, PlanStep.GROW, PlanStep.CHAIN, PlanStep.WATCH))
    monkeypatch.setattr(host.chains._stores, 'get',
                        lambda *_arguments: types.SimpleNamespace(spoilt=False))
    monkeypatch.setattr(host.boots, 'watch', refuse)
    disk = tmp_path / 'disk'
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(disk), None, False)
    assert disk.exists() and host.needs.is_in_making(IMAGE)
    assert 'server-1 is not watched' in caplog.text
