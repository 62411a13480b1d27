"""doc/source/nodes.rst: the database is backed up and restored by its commands."""

import re
import subprocess
from pathlib import Path

import pytest
from command import command
from test_database import MANAGE

from glance_bootcache.nodes.node import StorageNode
from tools import databases

PAGE = (Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'nodes.rst').read_text()


@pytest.fixture
def server():
    made = databases.MariaDB()
    made.sql('CREATE DATABASE bootcache')
    yield made
    made.remove()


@pytest.fixture
def run(server):
    """Runs a command of the page on the database's machine."""
    def run(line):
        program, _, rest = line.partition(' ')
        server.run('sh', '-c', f'{program} --no-defaults --socket={server.home}/socket'
                               f' --user=root {rest}')
    return run


@pytest.fixture
def manage(server, directory):
    """Runs bootcache-manage of the page on a storage node."""
    conf = Path(directory, 'bootcache.conf')
    conf.write_text(f'[bootcache]\nstate_dir = {directory}\n'
                    f'[database]\nconnection = {server.url("bootcache")}\n')

    def manage(line):
        argv, options = command(MANAGE, directory, '--config-file', str(conf), *line.split())
        done = subprocess.run(argv, capture_output=True, check=False, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return manage


def test_a_database_is_backed_up_and_restored(server, run, manage, directory):
    backup, *restore = re.findall(r'^ +(mariadb.*)$', PAGE, re.M)
    sync, accept, remove = re.findall(r'^ +/opt/bootcache/bin/bootcache-manage (.*)$', PAGE, re.M)
    database = databases.made(server.url('bootcache'))

    def start(name):
        node = StorageNode(database, f'{directory}/{name}.json', name)
        node.start(lambda: None)
        return node

    nodes = [start(name) for name in ('storage1', 'storage2')]
    run(backup)
    # The backup is an older state for both; one was added after it.
    nodes.append(start('storage3'))
    for node in nodes:
        assert node.beat() and not node.is_restored
        node.stop()
    for line in restore:
        run(line)
    manage(sync)
    nodes = [start(name) for name in ('storage1', 'storage2', 'storage3')]
    assert all(node.is_restored for node in nodes)
    assert 'is accepted by storage1, storage2, storage3' in manage(accept)
    for node in nodes:
        assert node.beat() and not node.is_restored
        node.stop()
    Path(directory, 'node.json').write_text(Path(directory, 'storage1.json').read_text())
    left = Path(directory, 'images', '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 'base-1.img')
    left.parent.mkdir(parents=True)
    left.write_text('of before')
    assert str(left) in manage(remove) and not left.exists()
    database.close()
