"""The start of ``glance-bootcache`` as a process of its own: one line and an end, or it serves."""

import contextlib
import os
import re
import signal
import subprocess

import kombu
import pytest
from command import SERVICE, command
from functional_tools import free_port, until
from service_process import CONTENT, PATIENCE, known_base, lines, served, serves
from service_process import cloud as cloud  # a fixture
from service_process import images as images  # likewise
from service_process import service as service  # likewise

from bootcache.rpc import messages


@pytest.mark.parametrize('options, told', [
    ({'export_host': '192.0.2.10'}, ['export_host=192.0.2.10', 'no address of this machine']),
    ({'export_host': '0.0.0.0'}, ['advertise_host']),
    ({'run_dir': '/proc/no/run'}, ['run_dir=/proc/no/run']),
    ({'state_dir': '/proc/no/state'}, ['state_dir=/proc/no/state', 'give the service\'s user']),
    ({'run_dir': '/tmp/' + 'x' * 110}, ['run_dir', 'at most 88 bytes']),
    ({'glance_store_dirs': '/no/such/store'}, ['glance_store_dirs: /no/such/store']),
    ({'boot_marker': '(['}, ['boot_marker']),
    ({'high_watermark': 'much'}, ['high_watermark']),
    ({'default': {'transport_url': None}}, ['transport_url']),
    ({'auth': {'auth_type': None}}, ['[service_auth]auth_type']),
    ({'auth': {'auth_url': None}}, ['[service_auth]', 'auth_url']),
    ({'auth': {'password': None}}, ['[service_auth]password is not set']),
    ({'auth': {'auth_url': 'controller'}}, ['[service_auth]auth_url=controller', 'http://']),
    ({'default': {'transport_url': 'foo://user:secret@host/'}},
     ['transport_url begins with foo://', 'rabbit://']),
    ({'auth': {'password': 'wrong'}}, ['[service_auth]', 'refuses user bootcache', 'password']),
    ({'auth': {'region_name': 'Elsewhere'}}, ['region_name=Elsewhere']),
    ({'profile_flavor': 'm1.none'}, ['no flavor m1.none', 'profile_flavor', 'm1.tiny']),
    ({'profile_availability_zone': 'there'}, ['profile_availability_zone=there', 'nova']),
], ids=str)
def test_what_cannot_be_right_ends_it_with_one_line(service, directory, options, told):
    try:
        process = service(**options)
        assert process.wait(PATIENCE) == 1
        (line,) = lines(directory)
        assert line.startswith('glance-bootcache cannot be started: ')
        assert all(part in line for part in told)
        # Said once: oslo.log adds the error that is being handled to a line.
        assert 'wrong' not in line and line.count(told[0]) == 1
    finally:
        if options.get('run_dir', '').startswith('/tmp/'):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(options['run_dir'])


@pytest.mark.parametrize('options', [{'export_host': '192.0.2.10'}, {'run_dir': '/proc/no/run'},
                                     {'boot_marker': '(['}], ids=str)
def test_the_log_file_says_it_as_standard_error_does(service, directory, options):
    file = f'{directory}/own.log'
    process = service(default={'log_file': file}, **options)
    assert process.wait(PATIENCE) == 1
    (line,) = lines(directory)
    with open(file) as stream:
        assert [found.split(' [-] ')[1].strip() for found in stream if ' ERROR ' in found] == [line]


def test_a_port_that_another_has_ends_it(service, directory, cloud):
    # Keystone's stand-in listens there.
    port = re.search(r':(\d+)/', cloud)[1]
    process = service(export_port=port)
    assert process.wait(PATIENCE) == 1
    (line,) = lines(directory)
    assert f'exporter: cannot listen on 127.0.0.1:{port}' in line and 'ss -ltnp' in line
    assert '[bootcache]export_host, export_port' in line
    assert line.count('ddress already in use') == 1


@pytest.mark.parametrize('url', ['guest:wrong@{bus}/', '{bus}/none'])
def test_what_rabbitmq_refuses_ends_it_with_one_line(service, directory, rabbit, url):
    bus = re.search(r'@(.+?)/', rabbit)[1]
    url = url.format(bus=bus) if '@' in url else 'guest:guest@' + url.format(bus=bus)
    process = service(default={'transport_url': f'rabbit://{url}'})
    assert process.wait(PATIENCE) == 1
    (line,) = lines(directory)
    assert f'transport_url: RabbitMQ at guest@{bus} refuses: ' in line
    assert 'correct user, password and virtual host' in line and 'wrong' not in line


def test_a_queue_of_another_kind_ends_it(service, directory, rabbit, rabbitmqctl):
    """Made by a Glance whose queues are durable: not what the service's own are."""
    queue = 'refused_topic.info'
    with kombu.Connection(rabbit.replace('rabbit://', 'amqp://') + '/') as connection:
        kombu.Queue(queue, durable=True).bind(connection.channel()).queue_declare()
    process = service(default={'transport_url': rabbit}, notification_topic='refused_topic')
    assert process.wait(PATIENCE) == 1
    line = lines(directory)[-1]
    assert 'glance-bootcache cannot be started' in line and queue in line
    assert 'amqp_durable_queues' in line
    rabbitmqctl('delete_queue', queue)


@pytest.mark.parametrize('options', [
    {'glance_store_dirs': '/no/such/store'}, {'auth': {'password': 'wrong'}},
    {'auth': {'auth_url': None}}, {'auth': {'auth_type': None}}, {'boot_marker': '(['},
    {'storage_memory_directory': '/no/such/tmpfs'}, {'default': {'transport_url': None}}], ids=str)
def test_running_servers_are_served_whatever_else_is_wrong(service, directory, options):
    """The storage node was rebooted: there is no exporter, and servers wait for their base."""
    port, base = free_port(), known_base(directory)
    assert service(export_port=port, **options).wait(PATIENCE) == 1
    told = lines(directory)
    # Nor is it known by which database that was served.
    assert len([line for line in told if 'bootcache-manage db accept' not in line]) == 1, told
    assert served(port, base) == CONTENT


def test_it_tells_its_version(directory):
    argv, options = command(SERVICE, directory, '--version')
    done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, **options)
    assert done.returncode == 0 and f'(RPC {messages.VERSION})' in done.stdout


def test_when_all_is_right_it_serves_and_ends_when_told(service, directory):
    process = service(profile_flavor='m1.tiny', profile_availability_zone='nova')
    until(lambda: serves(directory) or process.poll() is not None, 'the service', PATIENCE)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert lines(directory) == []


def test_a_keystone_that_is_away_is_told_and_waited_for(service, directory):
    url = f'http://127.0.0.1:{free_port()}/v3'
    process = service(auth={'auth_url': url})
    until(lambda: serves(directory) or process.poll() is not None, 'the service', PATIENCE)
    assert process.poll() is None
    (line,) = (line for line in lines(directory)
               if line.startswith(f'Keystone does not answer ({url}: '))
    # Said once: oslo.log adds the error that is being handled to a line.
    assert line.endswith('all else is served')
