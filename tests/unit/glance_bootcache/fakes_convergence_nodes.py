"""What the machine of images does not leave to threads, and to real services: a node's queue, its
steps, its exporter, and its way to the database."""

import functools
import os
import tempfile

from conftest import made_house
from fakes_manager import FakeExporter, FakeTiers
from oslo_config import cfg

from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage.store import ImageStore

# Of the machine itself, or of the product: neither a stand-in's, nor one that is to be expected.
MISTAKES = AssertionError, AttributeError, NameError, TypeError


class Killed(BaseException):
    """The process ends here."""


class Queue:
    """As WorkQueue; a key is worked on when the machine says so.

    :param wrong: gets the mistakes that the work has made.
    """

    def __init__(self, wrong, work, failed, clock):
        self.wrong, self.work, self.failed, self.clock = wrong, work, failed, clock
        self.due = {}

    def start(self):
        """As WorkQueue.start."""

    def stop(self, wait=True):
        """As WorkQueue.stop."""
        self.due = {}

    def wake(self):
        """As WorkQueue.wake."""

    def add(self, key, after=0.0):
        """As WorkQueue.add."""
        due = self.clock() + after
        self.due[key] = min(due, self.due.get(key, due))

    def ready(self):
        """Return the keys that are due."""
        return sorted(key for key, due in self.due.items() if due <= self.clock())

    def is_idle(self):
        """As WorkQueue.is_idle, where nobody waits for it."""
        return True

    def run(self, key):
        """Work on a key."""
        del self.due[key]
        try:
            self.work(key)
        except Exception as error:
            if isinstance(error, MISTAKES):
                self.wrong.append(error)
            self.failed(key, error)
            self.add(key, 5)


class Executor:
    """As futurist's; what is submitted is done when the machine says so.

    :param pending: has it until then.
    """

    def __init__(self, pending):
        self.pending = pending

    def submit(self, call, *arguments):
        """As futurist's."""
        self.pending.append(lambda: call(*arguments))

    def shutdown(self, wait=True):
        """As futurist's."""


class NodeDatabase:
    """The database as a node reaches it, and as one that several nodes share.

    :ivar file: as of another database than SQLite.
    """

    file = None

    def __init__(self, world, node):
        self.world, self.node = world, node

    def __str__(self):
        return 'the database'

    def read(self, query):
        """As Database.read."""
        return self.world.read_rows(self.node, query)

    def write(self, change):
        """As Database.write."""
        return self.world.write_rows(self.node, change)


class Node:
    """A storage node.

    :ivar house: its controller with its neighbours: see ``made_house``.
    :ivar row: its row in the database.
    :ivar pending: its steps that nobody has done yet.
    :ivar is_cut: the database does not answer it.
    :ivar kill_after: it is killed when so many steps were reached; None: it is not.
    """

    def __init__(self, world, name):
        self.world, self.name, self.directory = world, name, f'{world.directory}/{name}'
        self.pending, self.row = [], None
        self.is_killed = self.is_cut = self.is_in_step = False
        self.kill_after = None
        self.database = NodeDatabase(world, self)
        conf = cfg.ConfigOpts()
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        db_conf.register_opts(conf)
        conf.set_override('state_dir', f'{self.directory}/state', 'bootcache')
        conf.set_override('run_dir', f'{self.directory}/run', 'bootcache')
        conf.set_override('changes_per_hour', 0, 'bootcache')
        conf.set_override('glance_store_dirs', world.store_dirs, 'bootcache')
        os.makedirs(f'{self.directory}/state')
        with world.acting(self):
            self.house = world.stack.enter_context(made_house(conf, world.qemu, self.database))
            self.house.images, self.house.boots = world.glance, world.nova
            self.house.seconds, self.house.exporter = world.seconds, FakeExporter()
            self.house.tiers = FakeTiers(self.house.exporter, self.house.store)
            self.house.restart()
            world.wire(self)

    def open(self, *_arguments):
        """Return its images, as a process that starts does."""
        self.row = StorageNode(self.database, f'{self.directory}/state/node.json', self.name,
                               lambda seconds: None)
        return ImageStore(f'{self.directory}/state', self.database, self.row.id,
                          lambda: not self.row.is_restored)


@functools.cache
def empty_database():
    """Return SQLite's file of a database with tables and no rows."""
    with tempfile.TemporaryDirectory() as directory:
        made = Database(database_conf(directory))
        schema.sync(made)
        made.close()
        with open(made.file, 'rb') as stream:
            return stream.read()


def database_conf(directory):
    """Return the configuration of a database in a directory."""
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    db_conf.register_opts(conf)
    conf.set_override('connection', f'sqlite:///{directory}/bootcache.sqlite', db_conf.GROUP)
    return conf
