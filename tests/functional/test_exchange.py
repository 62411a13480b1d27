"""Hosts give a file to each other: who has it, who lies, who dies, and who is no member."""

import os
import shutil
import subprocess
import threading

import pytest
from command import command
from exchanging import MIB, NETWORK, Liar, fetch, has_some
from functional_tools import until

from bootcache import exception, savefile
from bootcache.exchange import client


def test_a_host_gets_a_file_and_gives_it_on(swarm):
    source, one, two = swarm.source(), swarm.host(), swarm.host()
    progress = fetch(swarm, one, source, keep_seconds=60)
    assert one.content() == swarm.content()
    assert progress.got >= swarm.torrent.size and set(progress.peers) <= {source.address}
    source.stop()
    assert fetch(swarm, two, source, one).peers.keys() <= {one.address}
    assert two.content() == swarm.content()
    given = one.client.files()
    assert given['given'] >= swarm.torrent.size
    # What was not to be kept is not held.
    assert two.client.files()['files'] == {}


@pytest.fixture
def make_session(swarm):
    """Makes an exchange without a daemon around it."""
    made = []

    def make(**settings):
        made.append(swarm.apart.Session('127.0.7.100', swarm.port, NETWORK, swarm.ca.issue(
            'host-100'), f'{swarm.directory}/links', settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def empty(swarm):
    """Make the file that something comes into; its path."""
    path = f'{swarm.directory}/got'
    with open(path, 'wb'):
        return path


def test_who_is_known_when_it_begins_is_connected_with_before_a_second_is_full(
        swarm, make_session):
    """libtorrent connects with others once a second, when it looks after all of its torrents."""
    source, host, got = swarm.source(), make_session(tick_interval=3_600_000), empty(swarm)
    name = host.fetch(swarm.torrent.data, got, [source.peer])
    until(lambda: source.address in host.look(name)['peers'], 'the source')


def test_what_cannot_be_begun_leaves_nothing(swarm, make_session):
    host, nobody, got = make_session(), [('no address', 1)], empty(swarm)
    with pytest.raises(exception.ExchangeFailed, match='connect_peer'):
        host.fetch(swarm.torrent.data, got, nobody)
    assert host.files()['files'] == {} and os.listdir(f'{swarm.directory}/links') == []
    name = host.fetch(swarm.torrent.data, got, [])
    with pytest.raises(exception.ExchangeFailed, match='connect_peer'):
        host.start_over(name, nobody)
    assert host.files()['files'] == {} and os.listdir(f'{swarm.directory}/links') == []
    assert host.fetch(swarm.torrent.data, got, []) == name


def test_a_chain_of_hosts_gets_it_while_it_comes(swarm):
    """Nobody but the first is told of the source."""
    source = swarm.source()
    hosts = [swarm.host() for _number in range(3)]
    before = [source, *hosts]
    threads = [threading.Thread(target=fetch, args=(swarm, host, before[number]),
                                kwargs={'keep_seconds': 60})
               for number, host in enumerate(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [host.content() == swarm.content() for host in hosts] == [True] * 3
    assert source.client.files()['given'] < 1.1 * swarm.torrent.size


def test_what_is_renamed_and_removed_meanwhile_is_given_all_the_same(swarm):
    source, one, two = swarm.source(), swarm.host(), swarm.host()
    fetch(swarm, one, source, keep_seconds=60)
    source.stop()
    os.rename(one.file, f'{one.file}.moved')
    os.unlink(f'{one.file}.moved')
    fetch(swarm, two, one)
    assert two.content() == swarm.content()


def test_what_is_removed_is_given_no_longer_where_its_space_is_needed(swarm):
    medium = f'{swarm.directory}/medium'
    os.mkdir(medium)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=16M', 'tmpfs', medium], check=True)
    try:
        source = swarm.host()
        path = shutil.copy(swarm.path, medium)
        source.client.give(swarm.torrent.data, path, 600)
        with open(f'{medium}/other', 'wb') as stream:
            stream.write(bytes(11 * MIB))
        # It has a name, and counts as what it is.
        until(lambda: shutil.disk_usage(medium).free < MIB, 'little space')
        assert source.client.files()['files']
        os.unlink(path)
        until(lambda: shutil.disk_usage(medium).free > 4 * MIB, 'its space')
        assert not source.client.files()['files']
    finally:
        subprocess.run(['umount', '-l', medium], check=True)


def test_what_is_there_already_is_not_fetched_again(swarm):
    source, one = swarm.source(), swarm.host()
    with open(one.file, 'wb') as stream:
        stream.write(swarm.content()[:3 * MIB])
    progress = fetch(swarm, one, source)
    assert one.content() == swarm.content()
    assert progress.got < swarm.torrent.size - 2 * MIB


def test_no_wrong_byte_comes_from_a_liar_and_the_honest_are_not_lost(swarm):
    source, one = swarm.source(), swarm.host()
    liars = [Liar(swarm, number) for number in (101, 102)]
    fetch(swarm, one, *liars, source)
    assert one.content() == swarm.content()
    assert any(liar.sent() for liar in liars)


def test_of_liars_alone_it_is_left_and_nothing_is_taken(swarm):
    one = swarm.host()
    liar = Liar(swarm, 101)
    with pytest.raises(exception.ExchangeStalled) as stalled:
        fetch(swarm, one, liar)
    assert liar.sent()
    assert sum(length for _offset, length in stalled.value.missing) >= swarm.torrent.size
    assert one.client.files()['files'] == {}


def test_a_host_that_dies_is_not_missed(swarm):
    source, dead, one = swarm.source(exchange_upload_rate='1MiB'), swarm.host(), swarm.host()
    dead.client.fetch(swarm.torrent.data, dead.file, [source.peer])
    thread = threading.Thread(target=fetch, args=(swarm, one, source, dead))
    thread.start()
    until(lambda: has_some(dead) and has_some(one), 'the first bytes')
    dead.kill()
    thread.join()
    assert one.content() == swarm.content()


def test_who_can_finish_without_the_storage_node_does(swarm):
    """Together they have all of it."""
    source, one, two = swarm.source(), swarm.host(), swarm.host()
    content = swarm.content()
    for host, begin, end in ((one, 0, 3 * MIB), (two, 2 * MIB, None)):
        with open(host.file, 'wb') as stream:
            stream.seek(begin)
            stream.write(content[begin:end])
    source.kill()
    threads = [threading.Thread(target=fetch, args=(swarm, host, source, other),
                                kwargs={'keep_seconds': 60})
               for host, other in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.content() == two.content() == content


def test_where_nobody_has_the_rest_what_is_missing_is_told(swarm):
    source, one, two = swarm.source(), swarm.host(), swarm.host()
    with open(one.file, 'wb') as stream:
        stream.write(swarm.content()[:MIB])
    source.kill()
    one.client.fetch(swarm.torrent.data, one.file, [])
    with pytest.raises(exception.ExchangeStalled) as stalled:
        fetch(swarm, two, source, one)
    (offset, length), = stalled.value.missing
    assert offset == MIB and offset + length >= swarm.torrent.size
    with open(two.file, 'rb') as stream:
        assert stream.read(MIB) == swarm.content()[:MIB]


def test_a_slow_host_holds_up_nobody_else(swarm):
    slow, source, one = swarm.source(exchange_upload_rate='64KiB'), swarm.source(), swarm.host()
    # What it was asked for is still to come when all is here, and the file is given on.
    progress = fetch(swarm, one, slow, source, keep_seconds=60)
    assert one.client.files()['files'][swarm.torrent.name]['is_complete']
    assert one.content() == swarm.content()
    assert progress.peers.get(source.address, 0) > progress.peers.get(slow.address, 0)


def test_the_limit_of_what_is_given_holds_on_private_addresses(swarm):
    """4 MiB at 1 MiB a second; without the limit it takes a fraction of a second."""
    source, one = swarm.source(exchange_upload_rate='1MiB'), swarm.host()
    seen = []

    def note(progress):
        seen.append(progress.done)
    fetch(swarm, one, source, check=note)
    # It was looked at ten times a second.
    assert len(seen) > 20 and one.content() == swarm.content()


# What is given.

def test_a_file_that_rotted_is_given_no_longer_and_not_written_to(swarm):
    good, rotten, one = swarm.source(), swarm.host(), swarm.host()
    with open(rotten.file, 'wb') as stream:
        stream.write(bytes(swarm.torrent.size))
    before = savefile.file_digest(rotten.file)
    rotten.client.give(swarm.torrent.data, rotten.file, 600)
    rotten.client.connect(swarm.torrent.name, [good.peer])
    fetch(swarm, one, rotten, good)
    assert one.content() == swarm.content()
    until(lambda: not rotten.client.files()['files'], 'that it is given no longer')
    assert savefile.file_digest(rotten.file) == before


def test_a_file_that_is_given_may_not_be_writable(swarm):
    source = swarm.host()
    os.chmod(swarm.path, 0o444)
    source.client.give(swarm.torrent.data, swarm.path, 600)
    fetch(swarm, swarm.host(), source)


def test_what_is_given_ends(swarm):
    source = swarm.source(seconds=0.1)
    until(lambda: not source.client.files()['files'], 'the end')
    assert not os.listdir(f'{source.home}/run/files')


def test_more_files_than_are_allowed_are_not_fetched(swarm):
    host = swarm.host(exchange_files=1)
    host.client.give(swarm.torrent.data, swarm.path, 600)
    other, name = host.client.describe(swarm.path)
    # Two of one file are not of one name.
    assert name != swarm.torrent.name
    assert host.client.fetch(other, host.file, []) == name
    assert list(host.client.files()['files']) == [name]
    with pytest.raises(exception.ExchangeFailed, match='exchange_files'):
        host.client.fetch(swarm.torrent.data, f'{host.file}-other', [])


def test_another_file_than_was_built_is_not_taken(swarm):
    """As if whoever makes torrents was wrong: our own hash counts."""
    source, one = swarm.source(), swarm.host()
    wanted = client.Exchanged(swarm.torrent.data, '0' * 64, (source.peer,))
    with pytest.raises(exception.ExchangeFailed, match='instead of 0000'):
        client.fetch(one.client, wanted, one.file, keep_seconds=60)
    assert one.client.files()['files'] == {}


def test_without_its_certificate_a_host_begins_nothing_until_it_is_there_again(swarm):
    source, one = swarm.source(), swarm.host()
    path = f'{one.options["tls_directory"]}/exchange-key.pem'
    os.rename(path, f'{path}.away')
    with pytest.raises(exception.ExchangeFailed, match=r'exchange-key\.pem cannot be read'):
        fetch(swarm, one, source)
    assert one.client.files()['files'] == {} and not os.listdir(f'{one.home}/run/files')
    os.rename(f'{path}.away', path)
    fetch(swarm, one, source)
    assert one.content() == swarm.content()


def test_without_its_certificate_nothing_is_started_over_and_all_else_goes_on(swarm):
    host = swarm.source()
    other, name = host.client.describe(swarm.path)
    host.client.fetch(other, host.file, [])
    path = f'{host.options["tls_directory"]}/exchange-key.pem'
    os.rename(path, f'{path}.away')
    with pytest.raises(exception.ExchangeFailed, match=r'exchange-key\.pem cannot be read'):
        host.client.start_over(name, [])
    assert list(host.client.files()['files']) == [swarm.torrent.name]
    assert len(os.listdir(f'{host.home}/run/files')) == 1
    host.client.drop(name)


EVENTLET = '''
import eventlet, sys
eventlet.monkey_patch()
from bootcache.exchange import client
from bootcache.exchange.client import ExchangeClient
ticks = []
def tick():
    while True:
        ticks.append(1)
        eventlet.sleep(0.01)
eventlet.spawn(tick)
torrent, sha256, address, port, control, path = sys.argv[1:]
with open(torrent, 'rb') as stream:
    wanted = client.Exchanged(stream.read(), sha256, ((address, int(port)),))
client.fetch(ExchangeClient(control), wanted, path)
assert len(ticks) > 1
'''


def test_a_service_with_eventlet_gets_it_as_well_and_its_others_go_on(swarm):
    pytest.importorskip('eventlet')
    source, one = swarm.source(), swarm.host()
    with open(f'{swarm.directory}/torrent', 'wb') as stream:
        stream.write(swarm.torrent.data)
    argv, options = command(EVENTLET, one.home, f'{swarm.directory}/torrent', swarm.sha256,
                            *source.peer, one.socket, one.file)
    subprocess.run(argv, check=True, timeout=60, **options)
    assert one.content() == swarm.content()


def test_nothing_is_written_when_a_file_was_dropped(swarm):
    """A write that comes later would make a file beside the others' links, and go to nobody."""
    source, one = swarm.source(), swarm.host()
    torrents = [source.client.describe(swarm.path)[0] for _number in range(8)]
    for torrent in torrents:
        source.client.give(torrent, swarm.path, 600)
    for _round in range(12):
        names = [one.client.fetch(torrent, f'{one.file}-{number}', [source.peer])
                 for number, torrent in enumerate(torrents)]
        for name in names:
            until(lambda name=name: one.client.look(name).done, 'the first bytes')
            one.client.drop(name)
        for number in range(len(names)):
            os.unlink(f'{one.file}-{number}')
        assert not os.listdir(f'{one.home}/run/files')
