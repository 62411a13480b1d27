"""Images, working sets and files as rows of SQLite, MariaDB and PostgreSQL."""

import dataclasses
import os
import random
import signal
import subprocess
import threading

import pytest
import sqlalchemy as sa
from command import command
from test_database import configured
from test_database import database as database  # the fixture
from test_database import servers as servers  # likewise
from test_database import url as url

from bootcache.manifest import (
    Availability,
    CacheDifference,
    CacheInfo,
    Goal,
    Made,
    Manifest,
    Standing,
    Wished,
    WorkingSetInfo,
)
from bootcache.reasons import Cause, Reason
from bootcache.workingset import Extent, WorkingSet
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import FileRow
from glance_bootcache.nodes import node
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage.nodefiles import FileKind
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
LARGE = 1 << 62
# Builds cache images, each in the place of the last one, and says what it is about to do.
BUILDING = '''
import dataclasses, sys
from oslo_config import cfg
from bootcache.manifest import CacheInfo, Manifest
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.storage.nodefiles import FileKind
from tools import storedimages
conf = cfg.ConfigOpts()
conf([], default_config_files=[], default_config_dirs=[])
glance_conf.register_opts(conf)
db_conf.register_opts(conf)
conf.set_override('connection', sys.argv[1], 'database')
conf.set_override('state_dir', sys.argv[2], 'bootcache')
store = storedimages.opened(conf)
store.retire_left()
store.add(Manifest(sys.argv[3]))
for count in range(1_000_000):
    name = store.begin_file(sys.argv[3], FileKind.CACHE_IMAGE, '.qcow2')
    print('begun', flush=True)
    with open(store.path(sys.argv[3], name), 'w'):
        pass
    print('there', flush=True)
    info = CacheInfo(name, 13, 8192, 2, 'ab', 8192, 4096, 1 << 20, 'nbd:', 1.0, 1)
    store.change(sys.argv[3], lambda known: known.making(cache_image=info))
    print('named', flush=True)
'''


@pytest.fixture
def store(database, url, directory):
    return storedimages.opened(configured(directory, url), database)


def test_what_is_known_of_an_image_comes_back(store, database, url, directory):
    """Also what is as large as it can be, and what no database can keep as it is."""
    working_set = WorkingSet(IMAGE, 'sha512:' + 'f' * 128, LARGE, 4096, tuple(
        Extent(number * 8192, 4096, number / 7) for number in range(40_000)))
    store.add(Manifest(IMAGE))
    sha256 = store.save_working_set(IMAGE, working_set)
    full = Manifest(
        IMAGE, Standing.FAILED, Cause(Reason.UNSUPPORTED_PROPERTY, '\U0001f4be' * 20_000),
        'sha512:' + 'f' * 128, Wished(
            True, True, True, LARGE, '\U0001f4be' * 256, False, LARGE, 'community', True,
            'a\0b\ud800' + '\U0001f4be' * 300, 'o' * 255, Availability.DELETION_NOTIFIED),
        Made('/' + 'p' * 4000, 'sha512:' + 'f' * 128, 'b' * 128, 'qcow2', LARGE, LARGE,
             WorkingSetInfo(sha256, LARGE, LARGE, 4096, 'server', 'shutdown', 1e9, 'm' * 256, 7),
             CacheInfo('cache-12345678.zstd.qcow2', LARGE, LARGE, LARGE, 'a' * 64, LARGE, 65536,
                       LARGE, 'nbd+unix:' + 'u' * 300, 1 / 3, 9), 'b' * 64, 3, 'c' * 64, 'd' * 64,
             ((1 << 64) - 1, LARGE, LARGE),
             CacheDifference(IMAGE, 'sha512:' + 'f' * 128, LARGE, 'e' * 64, LARGE, LARGE,
                             'f' * 64)), taken_up_at=1763697600.123456, goal=Goal.RECORD)
    kept = storedimages.put(store, full)
    assert kept.wished.name.startswith('a?b?') and len(kept.wished.name) == 255
    again = storedimages.opened(configured(directory, url), database)
    assert again.load(IMAGE) == kept and again.load_working_set(kept) == working_set
    assert again.change(IMAGE, lambda known: dataclasses.replace(
        full, updated_at=known.updated_at)) == kept, 'it says nothing new'


def test_each_change_of_several_processes_counts(store, url, directory):
    store.add(Manifest(IMAGE))
    others = [Database(configured(directory, url)) for _process in range(2)]

    def count(mine):
        for _change in range(15):
            mine.change(IMAGE, lambda known: known.wishing(quota=known.wished.quota + 1))

    threads = [threading.Thread(target=count, args=[storedimages.opened(
        configured(directory, url), other)]) for other in others for _thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = storedimages.opened(configured(directory, url), others[0])
    assert again.load(IMAGE).wished.quota == 60
    for other in others:
        other.close()


@pytest.mark.parametrize('seed', range(4))
def test_a_killed_process_leaves_what_the_rows_name_and_what_is_removed(
        store, database, url, directory, seed):
    argv, options = command(BUILDING, directory, url, f'{directory}/state', IMAGE)
    chance = random.Random(seed)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, **options) as process:
        for _step in range(chance.randrange(3, 15)):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    again = storedimages.opened(configured(directory, url), database)
    again.retire_left()
    cache = again.load(IMAGE).made.cache_image
    assert os.listdir(again.directory(IMAGE)) == [cache.file]
    assert [(row.name, row.state) for row in database.read(lambda connection: connection.execute(
        sa.select(FileRow.name, FileRow.state)).all())] == [(cache.file, 'ready')]
    assert again.files.unnamed() == []


def test_another_database_has_nothing_removed(store, database, url, directory):
    """That it is another one is what the node's file says."""
    path = f'{directory}/state/node.json'
    first = StorageNode(database, path, 'storage-1')
    for _beat in range(3):
        assert first.beat()
    database.write(lambda connection: connection.execute(
        sa.text('UPDATE storage_nodes SET beat = 1')))
    assert not first.beat()
    first._save()
    again = StorageNode(database, path, 'storage-1')
    assert again.is_restored and again.beat() and node.accept(database) == ['storage-1']
    assert again.beat() and not again.is_restored
    name = store.begin_file(IMAGE, FileKind.BASE, '.img')
    store.files.abandon(IMAGE, name)
    store.files.remove_retired()
    database.write(lambda connection: connection.execute(sa.text('DELETE FROM identity')))
    assert not again.beat()
