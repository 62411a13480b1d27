"""The storage nodes that the benchmark of the service's RPC starts: what each has of its own."""

import configparser

import prometheus_client
import pytest

from bench.service import stage
from bench.service.storagenode import StorageNode
from glance_bootcache.metrics import CallOutcome, ServiceMetrics

SECTIONS = {'DEFAULT': {'transport_url': 'rabbit://bus'},
            'bootcache': {'glance_store_dirs': '/glance'},
            'database': {'connection': 'mysql://database'}}


def options(home, node):
    parser = configparser.ConfigParser(default_section='none', interpolation=None)
    parser.read(home / node.name / 'bootcache.conf')
    return {section: dict(parser[section]) for section in parser.sections()}


def test_nodes_have_bus_database_and_glance_in_common_and_all_else_of_their_own(tmp_path):
    nodes = [StorageNode(str(tmp_path), f'storage-{number}', SECTIONS) for number in range(1, 4)]
    found = [options(tmp_path, node) for node in nodes]
    for one, node in zip(found, nodes, strict=True):
        assert one['DEFAULT'] == {'transport_url': 'rabbit://bus', 'host': node.name}
        assert one['database'] == SECTIONS['database']
        assert one['bootcache']['glance_store_dirs'] == '/glance'
    for option in 'state_dir', 'run_dir':
        assert len({one['bootcache'][option] for one in found}) == 3
    # What nodes have in common is not changed by one of them.
    assert SECTIONS['DEFAULT'] == {'transport_url': 'rabbit://bus'}


def test_messages_are_counted_by_method_whatever_came_of_them(tmp_path, monkeypatch):
    metrics = ServiceMetrics()
    for method, outcome in [('plan_boot', CallOutcome.ANSWERED), ('plan_boot', CallOutcome.FAILED),
                            ('plan_boot', CallOutcome.TOO_MANY),
                            ('report_holdings', CallOutcome.ANSWERED)]:
        metrics.count_call(method, outcome, 0.1)
    server, thread = prometheus_client.start_http_server(0, '127.0.0.1', metrics.registry)
    try:
        monkeypatch.setattr('bench.service.storagenode.free_port', lambda: server.server_port)
        node = StorageNode(str(tmp_path), 'storage-1', SECTIONS)
        assert [node.messages(method) for method in (
            'plan_boot', 'report_holdings', 'get_image')] == [3, 1, 0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(('connection', 'is_there'), [('', False), ('mysql://database', True)])
def test_the_database_is_named_unless_it_is_in_the_nodes_directory(connection, is_there):
    sections = stage._sections('/home', 'rabbit://bus', 'http://keystone',
                               stage.Database('any', connection))
    assert ('database' in sections) == is_there
