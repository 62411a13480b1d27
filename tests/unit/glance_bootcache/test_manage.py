"""The command bootcache-manage on a database and files of this node."""

import os

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from bootcache.manifest import Made, Manifest
from glance_bootcache.cli import manage
from glance_bootcache.db.models import StorageNodeRow
from glance_bootcache.nodes.node import RESTORED
from glance_bootcache.storage.servedexports import ServedExports
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def run(storage_conf, database, tmp_path, monkeypatch, capsys):
    """Runs it; returns its exit code, and what it said."""
    path = tmp_path / 'bootcache.conf'
    path.write_text(f'[bootcache]\nstate_dir = {storage_conf.bootcache.state_dir}\n')

    def run(*arguments):
        # Not the process's own, which other tests use.
        monkeypatch.setattr(manage.cfg, 'CONF', cfg.ConfigOpts())
        code = manage.main(['--config-file', str(path), *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.fixture
def store(storage_conf, database):
    return storedimages.opened(storage_conf, database)


def test_a_database_is_accepted(run, store, database):
    assert 'is that of all storage nodes' in run('db', 'accept')[1]
    database.write(lambda connection: connection.execute(
        sa.update(StorageNodeRow).values(state=RESTORED)))
    code, said = run('db', 'accept')
    assert code == 0 and 'is accepted by storage-1' in said
    assert database.read(lambda connection: connection.execute(
        sa.select(StorageNodeRow.state)).scalar()) == 'up'


def test_files_of_no_row_are_shown_and_removed_unless_they_are_served(run, store, storage_conf):
    os.makedirs(store.directory(IMAGE))
    for name in 'base-1.img', 'cache-1.qcow2':
        with open(store.path(IMAGE, name), 'w') as stream:
            stream.write('content')
    served = ServedExports(os.path.join(storage_conf.bootcache.state_dir, 'exports.json'))
    served.record(Manifest(IMAGE, made=Made(
        base_path=store.path(IMAGE, 'base-1.img'), base_export='base-x')), None)
    served.write({'': ['base-x']})
    base, cache = (store.path(IMAGE, name) for name in ('base-1.img', 'cache-1.qcow2'))
    assert run('files', 'list') == (0, f'{base} 7 served\n{cache} 7\n')
    assert run('files', 'remove') == (
        0, f'{base} 7 served, and so left\n{cache} 7 removed\n')
    assert os.listdir(store.directory(IMAGE)) == ['base-1.img']


def test_where_the_service_never_ran_it_says_so(run):
    code, said = run('files', 'list')
    assert code == 1 and 'start glance-bootcache here first' in said
