"""A compute host with real daemons: overlays, recordings, cleaning. The RPC is a stand-in."""

import os
import signal

import pytest
from compute_host import PROFILE_WATCH, boot, compare, end_profile
from functional_tools import qemu_img, read_base, until
from storage_node import IMAGE, MIB, SIZE

from bootcache import exception, naming
from bootcache.workingset import Extent

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


@pytest.mark.parametrize('size', [SIZE, None, SIZE + MIB])
def test_a_servers_disk_is_the_base(hosts, node, directory, size):
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk', size=size) is True
    compare(f'{directory}/disk', node)
    assert not os.path.exists(f'{directory}/disk.partial')


def test_the_second_server_fetches_nothing(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/one') is True
    inode = os.stat(host.cache.path(IMAGE)).st_ino
    os.unlink(node.cache_path)
    assert boot(host, f'{directory}/two') is True
    assert os.stat(host.cache.path(IMAGE)).st_ino == inode
    compare(f'{directory}/two', node)


def test_a_warm_host_goes_on_when_the_driver_and_the_gateway_restart(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    boot(host, f'{directory}/disk')
    os.kill(host.gateway.daemon.pid(), signal.SIGKILL)
    until(lambda: host.gateway.daemon.pid() is None, 'the end of the gateway')
    again = hosts()
    assert again.gateway.daemon.exports() == {f'base-{IMAGE}': naming.node_name('g', IMAGE)}
    again.chains.keep_chain(IMAGE)
    compare(f'{directory}/disk', node)


def test_a_warm_host_needs_no_storage_service_and_a_cold_one_goes_stock(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.service.away = True
    assert boot(host, f'{directory}/cold') is False
    host.service.away = False
    assert boot(host, f'{directory}/one') is True
    host.service.away = True
    assert boot(host, f'{directory}/two') is True
    compare(f'{directory}/two', node)


def test_a_recording_of_an_earlier_driver_is_removed(hosts, node, directory):
    node.serve()
    host = hosts()
    boot(host, f'{directory}/profile', token='secret')
    assert 'recording-server-profile' in host.gateway.daemon.exports()
    again = hosts()
    assert again.gateway.daemon.exports() == {} and os.listdir(again.cache.directory) == []
    # The next profile boot starts from nothing.
    assert boot(again, f'{directory}/next', token='secret') is True
    compare(f'{directory}/next', node)
    end_profile(again, 'server-next')
    assert len(again.service.reports) == 1


def test_two_recordings_of_one_image_do_not_touch_each_other(hosts, node, directory):
    """A server whose deletion takes its time, while the profile boot is tried once more."""
    node.serve()
    host = hosts()
    boot(host, f'{directory}/first', token='one')
    boot(host, f'{directory}/second', token='two')
    compare(f'{directory}/first', node)
    end_profile(host, 'server-first')
    compare(f'{directory}/second', node)
    end_profile(host, 'server-second')
    assert len(host.service.reports) == 2
    assert host.gateway.daemon.exports() == {} and host.gateway.daemon.nodes() == set()


def test_a_lost_cache_image_is_fetched_again_for_a_server_that_has_it(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    boot(host, f'{directory}/disk')
    host.cache.remove(IMAGE)
    host.chains.keep_chain(IMAGE)
    compare(f'{directory}/disk', node)


def test_a_storage_node_that_is_away_leaves_no_half_disk(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.service.freeze()
    node.exporter.stop()
    assert boot(host, f'{directory}/disk') is False
    assert sorted(name for name in os.listdir(directory) if name.startswith('disk')) == []
    # An empty cache image is as good as none, and nobody has looked who may need it.
    assert host.cache.entry(IMAGE).cache_image is None and not host.needs.is_in_making(IMAGE)
    host.needs.note_unsettled([])
    assert boot(host, f'{directory}/disk') is False
    assert os.listdir(host.cache.directory) == [] and host.gateway.daemon.nodes() == set()


def test_a_profile_boot_reports_what_it_read(hosts, node, directory):
    node.serve()
    host = hosts()
    path = f'{directory}/profile'
    assert boot(host, path, token='secret') is True
    qemu_img('bench', '-c', '1', '-s', '8192', '-o', 5 * MIB, '-f', 'qcow2', path)
    qemu_img('bench', '-c', '1', '-s', '4096', '-o', 0, '-f', 'qcow2', path)
    end_profile(host, 'server-profile')
    (token, reported, ended_by), = host.service.reports
    assert (token, ended_by) == ('secret', 'shutdown')
    assert [(extent.offset, extent.length) for extent in reported.extents] == [(5 * MIB, 8192),
                                                                              (0, 4096)]
    assert os.listdir(host.cache.directory) == [] and host.gateway.daemon.nodes() == set()
    end_profile(host, 'server-profile')
    assert len(host.service.reports) == 1


def test_a_profile_boot_that_did_not_start_here_is_not_over(hosts, node, directory):
    """Nova starts it on another host then, which has the same token."""
    node.serve()
    host = hosts()
    boot(host, f'{directory}/profile', token='secret')
    end_profile(host, 'server-profile')
    assert host.service.reports == [] and host.gateway.daemon.nodes() == set()


def test_the_end_of_a_profile_boot_is_seen_by_its_host(hosts, node, directory):
    """Its server runs on until the storage service has heard."""
    node.serve()
    host = hosts()
    console = []
    host.service.profile_watch = {**PROFILE_WATCH, 'linger': 0}
    boot(host, f'{directory}/profile', token='secret', console=lambda: ''.join(console))
    qemu_img('bench', '-c', '1', '-s', '8192', '-o', 5 * MIB, '-f', 'qcow2',
             f'{directory}/profile')
    until(lambda: host.service.told and host.service.told[-1][1] >= 8192, 'progress')
    assert host.service.told[-1][0] == 'secret' and host.service.reports == []
    console.append('\nsmall login: ')
    until(lambda: host.service.reports, 'the report')
    (token, reported, ended_by), = host.service.reports
    assert (token, ended_by) == ('secret', 'marker')
    assert [extent.offset for extent in reported.extents] == [5 * MIB]
    compare(f'{directory}/profile', node)
    end_profile(host, 'server-profile')
    assert len(host.service.reports) == 1 and host.gateway.daemon.nodes() == set()


def test_a_profile_boot_fails_that_nobody_says_the_end_of(hosts, node, directory):
    node.serve()
    host = hosts()
    host.service.profile_watch = None
    with pytest.raises(exception.ProfileBootFailed, match='does not say when it is over'):
        boot(host, f'{directory}/profile', token='secret')
    assert host.gateway.daemon.nodes() == set()


def test_a_profile_boot_that_cannot_be_recorded_fails_and_leaves_nothing(hosts, node, directory):
    node.serve()
    host = hosts()
    host.service.freeze()
    node.exporter.stop()
    with pytest.raises(exception.ProfileBootFailed):
        boot(host, f'{directory}/profile', token='secret')
    assert host.recordings._recordings == {} and os.listdir(host.cache.directory) == []
    end_profile(host, 'server-profile')
    assert host.service.reports == []


def test_unused_cache_images_are_removed(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    boot(host, f'{directory}/disk')
    host.room.remove_unused([IMAGE], 0)
    host.room.remove_unused([], 3600)
    assert host.cache.entry(IMAGE) is not None
    host.room.remove_unused([], 0)
    # Its server is about to start.
    assert host.cache.entry(IMAGE) is not None
    os.unlink(f'{directory}/disk')
    host.room.remove_unused([], 0)
    # Nobody has looked yet whose servers still read what it lacks.
    assert host.cache.entry(IMAGE) is not None
    host.needs.note_unsettled([IMAGE])
    host.room.remove_unused([], 0)
    assert host.cache.entry(IMAGE) is not None
    host.needs.note_unsettled([])
    host.room.remove_unused([], 0)
    assert os.listdir(host.cache.directory) == [] and host.gateway.daemon.exports() == {}


def test_a_restart_ends_no_boot(hosts, node, directory):
    """What the guest has read by then was its image's working set, ended by the quota."""
    node.serve()
    host = hosts()
    host.service.watch = PROFILE_WATCH
    boot(host, f'{directory}/disk')
    read_base(host, IMAGE, 5 * MIB, 4096)
    watch = host.boots._watches['server-disk']
    host.stop()
    watch.join(60)
    assert host.service.boots == []
    # The next server's boot is recorded, whole.
    again = hosts()
    boot(again, f'{directory}/next')
    read_base(again, IMAGE, 5 * MIB, 4096)
    read_base(again, IMAGE, 0, 4096)
    again.boots.server_goes('server-next')
    (*_rest, extents, _ended_by, _seconds), = again.service.boots
    assert [extent[:2] for extent in extents] == [[5 * MIB, 65536], [0, 65536]]
