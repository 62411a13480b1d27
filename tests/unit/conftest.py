"""What all unit tests share: no processes, no network, files only in pytest's own directories."""

import contextlib
import os

# Before anything of Nova's imports oslo.service, which takes eventlet if nobody says otherwise: the
# commands and the storage service choose for the process. Beside Nova 31 there is no choice.
with contextlib.suppress(ImportError, ValueError):
    from oslo_service import backend
    backend.init_backend(backend.BackendType.THREADING)

import hypothesis
import pytest
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import locks
from bootcache.storagedaemon import StorageDaemon
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf

# In CI the same examples each time: what lands is not refused by chance. Hypothesis draws from the
# constants of the modules that are loaded, too, and other tests have loaded others each time.
if 'CI' in os.environ:
    with contextlib.suppress(ImportError):
        from hypothesis.internal.conjecture import providers
        providers._get_local_constants = lambda: providers._local_constants
hypothesis.settings.register_profile('unit', deadline=None, max_examples=150, database=None,
                                     derandomize='CI' in os.environ)
hypothesis.settings.load_profile('unit')


@pytest.fixture(autouse=True)
def no_daemons(monkeypatch):
    """A storage daemon would outlive the test that forgot to put a stand-in in its place."""
    launch = StorageDaemon._launch

    def refuse(daemon):
        if daemon._binary == 'qemu-storage-daemon':
            pytest.fail(f'a unit test starts the storage daemon {daemon.name}')
        return launch(daemon)

    monkeypatch.setattr(StorageDaemon, '_launch', refuse)


@pytest.fixture(autouse=True)
def locks_in_their_turn(monkeypatch):
    """A lock that is taken out of its turn is an error here, also where somebody catches it."""
    complaints = []

    def complain(what):
        complaints.append(what)
        raise AssertionError(what)

    monkeypatch.setattr(locks, 'complain', complain)
    yield complaints
    assert complaints == []


@pytest.fixture
def storage_conf(tmp_path):
    """The storage service's configuration, with its state below pytest's directory."""
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    glance_conf.register_opts(conf)
    db_conf.register_opts(conf)
    conf.set_override('state_dir', str(tmp_path / 'state'), bootcache_conf.GROUP)
    conf.set_override('run_dir', str(tmp_path / 'run'), bootcache_conf.GROUP)
    return conf
