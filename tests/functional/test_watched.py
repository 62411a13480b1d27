"""How services are watched: real listeners over HTTP, and what fails behind ``/healthcheck``."""

import contextlib
import json
import os
import signal
import socket
import urllib.error
import urllib.request

import pytest
from cold_boots import SET
from compute_host import boot
from functional_tools import free_port, until
from oslo_config import cfg
from prometheus_client.parser import text_string_to_metric_families
from service_process import PATIENCE, known_base, lines, serves
from service_process import cloud as cloud  # a fixture
from service_process import images as images  # likewise
from service_process import service as service  # likewise
from storage_node import IMAGE

from bootcache import conf as bootcache_conf
from bootcache.manifest import Made, Manifest, Standing
from bootcache.rpc.report import PausedGuests
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database
from nova_bootcache import monitoring
from nova_bootcache.settling.unsettled import Unsettled
from tools import storedimages
from tools.databases import MariaDB


def get(port, path, **headers):
    """Return an answer's status and text."""
    request = urllib.request.Request(f'http://127.0.0.1:{port}{path}', headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(port):
    """Read all metrics: by name, and by their labels' values in the order of their names."""
    status, text = get(port, '/metrics')
    assert status == 200
    return {(sample.name, *(value for _name, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def health(port):
    """Return the status, and what is said of each backend."""
    status, text = get(port, '/healthcheck')
    return status, dict(line.split(': ', 1) for line in text.splitlines())


@contextlib.contextmanager
def frozen(kill, pid):
    kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(pid, signal.SIGCONT)


WELL = 200, dict.fromkeys(('bus', 'database', 'exporter'), 'it answers')


@pytest.fixture
def mariadb(storage_conf):
    """A server, and the URL of a database that has the tables."""
    server = MariaDB()
    server.bootcache_url = server.database()
    storage_conf.set_override('connection', server.bootcache_url, db_conf.GROUP)
    database = Database(storage_conf)
    schema.sync(database)
    storedimages.put(storedimages.opened(storage_conf, database), Manifest(
        IMAGE, Standing.DONE, made=Made(image_format='raw', virtual_bytes=512, base_path='/gone',
                                        base_export=f'base-{IMAGE}')))
    database.close()
    yield server
    server.remove()


@pytest.fixture
def watched(service, directory, mariadb):
    """The port of a service that serves."""
    known_base(directory)
    port = free_port()
    # Where a server is frozen the test waits for its driver's limit of time.
    process = service(others={'database': {
        'connection': f'{mariadb.bootcache_url}&read_timeout=5&connect_timeout=5'}},
        metrics_port=port)
    until(lambda: serves(directory) or process.poll() is not None, 'the service', PATIENCE)
    assert process.poll() is None, lines(directory)
    return port


def test_what_fails_behind_it_is_said_and_passes(watched, directory, rabbit_node, mariadb):
    until(lambda: health(watched) == WELL, 'health')
    assert json.loads(get(watched, '/healthcheck', Accept='application/json')[1])['reasons'] \
        == [f'{name}: it answers' for name in WELL[1]]
    found = scrape(watched)
    assert found['bootcache_images', 'served'] == 1
    for name in WELL[1]:
        assert found['bootcache_backend_up', name] == 1
    assert found['bootcache_rpc_seconds_count', 'get_image', 'answered'] >= 1
    assert get(watched, '/')[0] == 404

    with frozen(os.killpg, rabbit_node.pids[-1]):
        until(lambda: health(watched)[0] == 503, 'a bus that hangs')
        said = health(watched)[1]
        assert said == {**WELL[1], 'bus': said['bus']} and said['bus'] != 'it answers'
        assert scrape(watched)['bootcache_backend_up', 'bus'] == 0
    until(lambda: health(watched) == WELL, 'the bus', PATIENCE)

    mariadb.freeze(True)
    until(lambda: health(watched)[0] == 503, 'a database that hangs')
    assert health(watched)[1]['database'].startswith(('no answer', 'the database'))
    mariadb.freeze(False)
    until(lambda: health(watched) == WELL, 'the database', PATIENCE)
    mariadb.stop()
    until(lambda: 'does not answer' in health(watched)[1]['database'], 'a database that is away')
    assert scrape(watched)['bootcache_database_errors_total',] > 0
    mariadb.start()
    until(lambda: health(watched) == WELL, 'the database again', PATIENCE)

    with open(f'{directory}/run/exporter.pid') as stream:
        pid = int(stream.read())
    with frozen(os.kill, pid):
        until(lambda: health(watched)[0] == 503, 'an exporter that hangs')
        said = health(watched)[1]
        assert said == {**WELL[1], 'exporter': said['exporter']}
    until(lambda: health(watched) == WELL, 'the exporter', PATIENCE)


def test_a_port_that_somebody_has_ends_the_service_with_one_line(service, directory):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        process = service(metrics_port=port)
        assert process.wait(PATIENCE) == 1
    line = lines(directory)[-1]
    assert f'[bootcache]metrics_address=127.0.0.1, metrics_port={port}: nothing can listen' in line
    assert 'Address already in use' in line


def listen(host, port):
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    bootcache_conf.register_opts(conf)
    conf.set_override('metrics_port', port, bootcache_conf.GROUP)
    monitoring.sample(host, Unsettled(is_off=False), lambda: PausedGuests(2, ()))
    return monitoring.listen(conf, host)


def test_a_compute_host_tells_what_it_alone_sees(hosts, node, directory):
    port, host = free_port(), hosts()
    listener = listen(host, port)
    try:
        node.build(*SET)
        node.serve()
        assert boot(host, f'{directory}/cold')
        until(lambda: host.cache.known(IMAGE).cache_image is not None, 'the cache image')
        until(lambda: not host.needs.is_arriving(IMAGE), 'its arrival')
        assert boot(host, f'{directory}/warm')
        host.service.extra = {'action': 'stock', 'reason': 'it is off'}
        assert not boot(host, f'{directory}/stock')
        found = scrape(port)
    finally:
        listener.stop()
    size = host.cache.known(IMAGE).cache_image.bytes
    assert found['bootcache_boots_total', 'stock'] == 1
    assert sum(count for key, count in found.items() if key[0] == 'bootcache_boots_total') == 3
    assert found['bootcache_boots_total', 'cache_image'] >= 1
    assert found['bootcache_cache_image_bytes_total', 'storage_node'] == size
    assert found['bootcache_cache_image_bytes_total', 'local'] == size
    assert found['bootcache_fetch_seconds_count', 'done'] == 1
    assert found['bootcache_boot_phase_seconds_count', 'done', 'ask'] == 3
    assert found['bootcache_boot_phase_seconds_count', 'done', 'chain'] == 2
    assert found['bootcache_boot_phase_seconds_count', 'done', 'use_local'] == 1
    assert found['bootcache_tier_used_bytes', 'compute_disk'] >= size
    assert found['bootcache_tier_quota_bytes', 'compute_disk'] == 10 << 30
    assert found['bootcache_guests_paused',] == 2
    assert ('bootcache_servers_unsettled',) not in found, 'nobody has looked'
    assert found['bootcache_servers_unsettled_oldest_seconds',] == 0
    assert not any(IMAGE in value for key in found for value in key[1:])


def test_a_port_that_somebody_has_keeps_no_compute_host_from_starting(hosts, caplog):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        assert listen(hosts(), port) is None
    assert 'nobody can watch this host' in caplog.text
    assert f'metrics_port={port}' in caplog.text
