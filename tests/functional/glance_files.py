"""Glance's file store and the storage service's snapshots on it, as tests make them."""

import contextlib
import itertools
import secrets

from functional_tools import until
from glanceclient import exc
from oslo_config import cfg
from real_glance import ADMIN

from bootcache import conf as bootcache_conf
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.filestore.registrars import Registrars
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.glance.registering import TrialImages
from glance_bootcache.snapshots.records import Record
from tools import databases, storedimages


class Known:
    """Stands for trials whose outcome is known."""

    def __init__(self, store):
        self._store = store

    def store_of(self, directory):
        return self._store

    def look(self):
        """Nothing is tried."""

    doubt = store_of


ALWAYS, NEVER = Known('file'), Known('')
MIB = 1 << 20
SIZE = 96 * MIB
BASE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
# Of a base that has data nearly everywhere.
PIECES = [(0, 40 * MIB, 'data'), (48 * MIB, 4 * MIB, 'zeros'), (56 * MIB, 40 * MIB, 'data')]
CHANGED = 4 * MIB


class Upload:
    """Glance as the service asks it, whose token stands for Keystone's: see real_glance.py."""

    def __init__(self, glance):
        self._images = glance.client(ADMIN).images

    def upload(self, image_id, stream, stored_bytes):
        self._images.upload(image_id, stream, image_size=stored_bytes)


class Trial(TrialImages):
    """The same, for trials."""

    def __init__(self, glance, token='bootcache.service.service-member.'):
        self._client = glance.client(token)

    def there(self):
        return [image['id'] for image in self._client.images.list(
            filters={'name': 'bootcache-trial', 'os_hidden': True})]


def configured(state, *directories):
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    glance_conf.register_opts(conf)
    db_conf.register_opts(conf)
    conf.set_override('state_dir', state, bootcache_conf.GROUP)
    conf.set_override('glance_store_dirs', list(directories), bootcache_conf.GROUP)
    conf.set_override('snapshot_exporters', 'common', bootcache_conf.GROUP)
    return conf


def made_of(path, image_format):
    return Manifest(BASE, Standing.DONE, made=Made(
        image_format=image_format, virtual_bytes=SIZE, base_path=path,
        base_export=f'base-{BASE}'))


def begun(snapshots, manifest, image, size=SIZE):
    """Begin a snapshot as the service does; return its record, and the node that is written."""
    return snapshots.begin(
        Record(image, snapshots.name, base=manifest.made.base_path,
               disk_format=manifest.made.image_format), manifest, size)


def finished(snapshots, record, directory):
    """Have a snapshot that was written be looked at and finished; return its record, and its URL.
    """
    records = [record]
    with snapshots.looked_at(record, directory, lambda: None) as path:
        assert path == record.work
    url = snapshots.finish(record, records.append)
    return records[-1], url


def looked(look):
    """Have it be tried, also where SQLite has Glance answer late as the machine has other work."""
    def once():
        with contextlib.suppress(exc.HTTPInternalServerError):
            look()
            return True

    until(once, 'the trial')


def tried(conf, glance):
    """Return the snapshots of a service that has tried what Glance registers."""
    # SQLite finds nothing below /proc/PID/root, where other mount namespaces are.
    database = databases.made(f'sqlite:///{glance.home}/{secrets.token_hex(4)}.sqlite')
    found = FileSnapshots(conf, Registrars([glance.images], Trial(glance),
                                           storedimages.opened(conf, database).files,
                                           clock=itertools.count(0, 1e6).__next__))

    looked(found.tidy)
    return found
