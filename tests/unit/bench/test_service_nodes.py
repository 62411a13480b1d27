"""The storage nodes that the benchmark of the service's RPC starts: what each has of its own."""

import configparser

import pytest

from bench.service import stage
from bench.service.storagenode import StorageNode

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


@pytest.mark.parametrize(('connection', 'is_there'), [('', False), ('mysql://database', True)])
def test_the_database_is_named_unless_it_is_in_the_nodes_directory(connection, is_there):
    sections = stage._sections('/home', 'rabbit://bus', 'http://keystone',
                               stage.Database('any', connection))
    assert ('database' in sections) == is_there
