"""bootcache-exchange as a process: killed, twice, and with what makes no sense."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import command
from exchanging import PROGRAM, fetch, has_some
from functional_tools import until

from bootcache import exception


def test_a_host_that_was_killed_begins_again(swarm):
    source, one = swarm.source(exchange_upload_rate='1MiB'), swarm.host()
    one.client.fetch(swarm.torrent.data, one.file, [source.peer])
    until(lambda: has_some(one), 'the first bytes')
    one.kill()
    with pytest.raises(exception.ExchangeFailed, match='see whether its unit runs'):
        one.client.files()
    one.start()
    assert not os.listdir(f'{one.home}/run/files')
    fetch(swarm, one, source)
    assert one.content() == swarm.content()


def test_its_socket_is_for_its_user_only(swarm):
    host = swarm.host()
    assert os.stat(host.socket).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(host.socket)).st_mode & 0o777 == 0o700


@pytest.mark.parametrize('change, says', [
    ({'exchange_address': None}, 'exchange_address is not set'),
    ({'exchange_address': '192.0.2.1', 'exchange_networks': '192.0.2.0/24'},
     'nothing can listen there'),
    ({'exchange_networks': None}, 'exchange_networks is empty'),
    ({'tls_directory': None}, 'tls_directory is not set'),
    ({'tls_directory': '/nowhere'}, 'exchange-cert.pem cannot be read'),
    ({'exchange_upload_rate': 'much'}, 'exchange_upload_rate'),
    ({'exchange_connections': '1000000'}, 'exchange_connections')])
def test_it_says_why_it_cannot_be_started(swarm, change, says):
    host = swarm.host()
    host.stop()
    host.options.update(change)
    host.start(has_to=False)
    assert host.process.returncode == 1 and says in host.log()


def test_a_second_process_that_cannot_be_started_takes_nothing_from_the_first(swarm):
    source, one = swarm.source(), swarm.host()
    argv, options = command(PROGRAM, source.home, '--config-file', f'{source.home}/conf')
    second = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                            check=False, **options)
    assert second.returncode == 1 and 'nothing can listen there' in second.stdout
    fetch(swarm, one, source)
    assert one.content() == swarm.content()


def test_two_cannot_have_one_port(swarm):
    first, second = swarm.host(), swarm.host()
    second.stop()
    second.options['exchange_address'] = first.address
    second.start(has_to=False)
    assert 'nothing can listen there' in second.log()


@pytest.mark.parametrize('message', [
    {}, {'method': 'none'}, {'method': 'fetch'}, {'method': 'look'}, {'method': 'look', 'name': 5},
    {'method': 'look', 'name': 'x' * 64}, {'method': 'connect', 'name': 'x' * 64, 'peers': [[1]]},
    {'method': 'fetch', 'torrent': 'eA==', 'peers': []}, {'method': 'describe'},
    {'method': 'keep', 'name': 'x' * 64, 'for_seconds': -1}])
def test_what_makes_no_sense_is_refused(swarm, message):
    host = swarm.host()
    method = message.pop('method', '')
    with pytest.raises(exception.ExchangeFailed):
        host.client._ask(method, **message)
    assert host.client.files()['files'] == {}


@pytest.mark.parametrize('peer', [['no address', 1], ['127.0.7.1', 1e400], [['127.0.7.1'], 1],
                                  ['127.0.7.1', 0]])
def test_peers_that_are_none_are_refused_and_the_file_is_as_before(swarm, peer):
    source, one = swarm.source(), swarm.host()
    name = one.client.fetch(swarm.torrent.data, one.file, [])
    for ask in (one.client.connect, one.client.start_over):
        with pytest.raises(exception.ExchangeFailed, match='peers'):
            ask(name, [peer])
    one.client.connect(name, [source.peer])
    until(lambda: one.client.look(name).is_complete, 'all of it')


def test_what_a_killed_service_left_is_not_written_into_what_the_next_one_fetches(swarm):
    """The storage service, too, was started anew, and gives out another torrent of the file."""
    source, one = swarm.source(), swarm.host()
    torrent, _name = source.client.describe(swarm.path)
    source.client.give(torrent, swarm.path, 600)
    left = one.client.fetch(swarm.torrent.data, one.file, [])
    beside = one.client.fetch(source.client.describe(swarm.path)[0], f'{one.file}-beside', [])
    name = one.client.fetch(torrent, one.file, [source.peer])
    assert set(one.client.files()['files']) == {beside, name} and left != name
    until(lambda: one.client.look(name).is_complete, 'all of it')
    assert one.content() == swarm.content()


@pytest.mark.parametrize(('programs', 'never'), [
    (('nova_bootcache.novadriver.driver', 'nova_bootcache.chains.computehost'), 'libtorrent'),
    (('glance_bootcache.service', 'glance_bootcache.rpc.endpoints'), 'libtorrent'),
    (('glance_bootcache.hook', 'glance_bootcache.filestore.driver'), 'libtorrent'),
    (('bootcache.exchange.daemon', 'bootcache.exchange.session'), 'rados')])
def test_no_process_loads_libtorrent_and_ceph(programs, never):
    """Of Debian 13's Ceph and libtorrent's wheel one corrupts the other's heap: see apart.py."""
    code = f'import sys, {", ".join(programs)}; print({never!r} in sys.modules)'
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], check=True, text=True,
                          cwd=Path(__file__).parents[2], capture_output=True)
    assert done.stdout == 'False\n'
