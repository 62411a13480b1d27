"""A manager among stand-ins; see fakes_manager.py for what they stand for."""

import contextlib
import os
import shutil
import types

import fakes_manager
import fakes_nodes
import pytest
from fakes_clock import Clock
from fakes_rpc import Sender
from oslo_config import cfg
from sqlalchemy import event

from bootcache import cacheimage, exception, savefile, workingset
from bootcache.cacheimage import CacheImage
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database
from glance_bootcache.db.writer import Writer
from glance_bootcache.exchange.offers import ExchangeOffers
from glance_bootcache.glance.listener import ImageEvents
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images import controller as controller_module
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.deletions import Deletions
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.policy import Step
from glance_bootcache.images.publishing import StatePublisher
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes.commands import NodeCommands
from glance_bootcache.nodes.homes import Homes
from glance_bootcache.nodes.leftovers import Leftovers
from glance_bootcache.nodes.membership import Membership
from glance_bootcache.rpc.endpoints import Endpoints
from glance_bootcache.rpc.operators import Operators
from glance_bootcache.rpc.rejected import RejectedMessages
from glance_bootcache.snapshots.records import Records
from glance_bootcache.storage import inspection
from glance_bootcache.storage.inspection import Inspected
from glance_bootcache.upkeep import ServiceUpkeep
from glance_bootcache.warming.runner import Warming
from glance_bootcache.warming.warmrequests import WarmRequests
from tools import storedimages


@pytest.fixture
def no_qemu(monkeypatch):
    """Inspecting and building without QEMU, which tests/functional runs for real."""
    return without_qemu(monkeypatch)


def without_qemu(monkeypatch):
    """As ``no_qemu``."""
    controls = types.SimpleNamespace(refuse=None, building=lambda: None, builds=[])

    def inspect(path, disk_format, max_virtual_bytes):
        if controls.refuse:
            raise exception.ImageRefused(controls.refuse)
        return Inspected(disk_format, fakes_manager.SIZE)

    def build(base, extents, target, *, quota, cluster_bytes, backing_uri, compression):
        controls.building()
        controls.builds.append((list(extents), quota))
        controls.compression = compression
        with open(target, 'wb') as stream:
            stream.write(b'cache image')
        return CacheImage(target, 11, workingset.total_bytes(extents),
                          savefile.file_digest(target), base.virtual_bytes, cluster_bytes,
                          tuple(extents))

    monkeypatch.setattr(inspection, 'inspect', inspect)
    monkeypatch.setattr(cacheimage, 'build', build)
    return controls


@pytest.fixture(scope='session')
def empty_database(tmp_path_factory):
    """The file of a database with tables and no rows."""
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    db_conf.register_opts(conf)
    path = tmp_path_factory.mktemp('database') / 'empty.sqlite'
    conf.set_override('connection', f'sqlite:///{path}', db_conf.GROUP)
    made = Database(conf)
    schema.sync(made)
    made.close()
    return path


@pytest.fixture
def database(storage_conf, empty_database):
    """The storage service's default database."""
    os.makedirs(storage_conf.bootcache.state_dir, exist_ok=True)
    shutil.copy(empty_database, db_conf.default_file(storage_conf))
    database = Database(storage_conf)
    # A commit that is synced is for tests/functional, which end processes.
    event.listen(database._engine, 'connect',
                 lambda connection, _record: connection.execute('PRAGMA synchronous = OFF'))
    yield database
    database.close()


@pytest.fixture
def house(storage_conf, no_qemu, database):
    """A controller with its neighbours; ``restart`` makes another one on the same state.

    A deletion is believed at once, and a final state shown, unless a test says otherwise.
    """
    with made_house(storage_conf, no_qemu, database) as house:
        yield house


@contextlib.contextmanager
def made_house(storage_conf, no_qemu, database):
    """As ``house``, in a block."""
    storage_conf.set_override('deletion_delay', 0, 'bootcache')
    storage_conf.set_override('show_state_after', 0, 'bootcache')
    with contextlib.ExitStack() as stack:
        house = types.SimpleNamespace(
            images=fakes_manager.FakeImages(), exporter=fakes_manager.FakeExporter(),
            boots=fakes_manager.FakeBoots(), qemu=no_qemu,
            conf=storage_conf, nova=fakes_manager.FakePrecache(), seconds=Clock(),
            store=storedimages.opened(storage_conf, database))
        house.tiers = fakes_manager.FakeTiers(house.exporter, house.store)

        def restart(has_hosts=True):
            house.needs, house.orders = ReportedNeeds(database), Orders(database)
            house.requests = WarmRequests(database)
            house.writer = Writer(database, [house.needs.changes, house.orders.changes,
                                             house.requests.changes])
            house.table = Hosts(house.store, house.tiers, house.orders, house.seconds)
            house.metrics = ServiceMetrics()
            house.running = Running(storage_conf.bootcache.concurrent_builds)
            house.retiring = Retiring(house.store, house.exporter, house.tiers, house.boots,
                                      house.needs, house.orders)
            house.disk_room = DiskRoom(house.store, house.running, house.exporter, house.tiers)
            house.deletions = Deletions(storage_conf.bootcache.deletion_delay, house.store,
                                        house.images, house.seconds)
            house.work = ImageWork(storage_conf, house.store, house.images, house.exporter,
                                   house.tiers, house.boots, house.disk_room, house.retiring,
                                   house.metrics)
            house.controller = Controller(
                storage_conf, house.store, house.images, house.work, house.running, house.retiring,
                house.deletions,
                StatePublisher(storage_conf, house.images, clock=house.seconds), house.seconds)
            house.hosts = ReportedBoots(storage_conf, house.store, house.exporter,
                                        house.controller, house.running, house.tiers)
            house.events = ImageEvents(house.controller.image_changed,
                                       house.controller.image_deleted,
                                       house.controller.let_go,
                                       house.controller.has_looked)
            house.upkeep = ServiceUpkeep(storage_conf, house.store, house.images, house.exporter,
                                         house.tiers, house.boots, house.controller,
                                         house.running, house.disk_room, house.needs,
                                         Leftovers(house.store, Homes(
                                             house.store, Membership(1), ()), house.exporter,
                                                   house.tiers, Records(database, 1),
                                                   house.retiring.why_needed, house.seconds),
                                         house.seconds)
            house.offers = ExchangeOffers(storage_conf, house.store, house.tiers)
            house.operators = Operators(house.store, house.tiers, house.controller, house.running,
                                        house.retiring, house.table, house.offers.given, 'storage')
            house.warming = Warming(storage_conf, house.store, house.table, house.nova,
                                    house.requests, house.seconds)
            house.rejected = RejectedMessages(house.seconds)
            house.endpoints = Sender(Endpoints(
                house.controller, house.hosts, house.table, house.operators, house.warming,
                house.needs, house.rejected,
                house.offers, fakes_manager.FakeSnapshots(), house.metrics,
                NodeCommands(database, Membership(1), house.store)), house.rejected,
                house.metrics)
            if has_hosts:
                house.controller.host_reported()
            house.controller.start()
            stack.callback(give_up, house.controller, house.running)

        def give_up(controller, running):
            # To wait for idle threads takes a second; tests would take minutes.
            controller.stop(wait=False)
            fakes_manager.until(lambda: not running.images(), 'the end of all steps')

        def looked():
            """Wait until all that is due was looked at; steps that read or record may go on."""
            queue = house.controller.queue

            def is_looked():
                # A step that ends has its image due before its turn is over.
                with queue._changed:
                    return queue.is_idle() and not house.running._looks._running and not any(
                        job.step == Step.RETIRE for image in house.running.images()
                        if (job := house.running.of(image)) is not None)

            queue.wake()
            fakes_manager.until(is_looked, 'a look')

        def settle():
            queue, running = house.controller.queue, house.running

            def is_settled():
                # Likewise.
                with queue._changed:
                    return queue.is_idle() and not running.images() and not any(
                        turns._running for turns in (running._looks, running._recordings,
                                                     running._builds, *running._bases.values()))

            queue.wake()
            fakes_manager.until(is_settled, 'the end of all steps')

        def then_looked(method):
            def call(*arguments):
                answer = method()(*arguments)
                looked()
                return answer
            return call

        def later(seconds):
            """Let time pass, and what is due then be looked at."""
            house.seconds.sleep(seconds)
            looked()

        house.restart, house.looked, house.settle, house.later = restart, looked, settle, later
        house.changed = then_looked(lambda: house.controller.image_changed)
        house.deleted = then_looked(lambda: house.controller.image_deleted)
        house.build = then_looked(lambda: house.controller.build)
        house.evict = then_looked(lambda: house.controller.evict)
        house.once = then_looked(lambda: house.upkeep.once)
        house.recover = then_looked(lambda: house.upkeep.recover)
        house.state = lambda image: (house.operators.get_image(image) or {}).get('state')
        restart()
        yield house


@pytest.fixture
def cli(monkeypatch, tmp_path):
    """The command ``bootcache`` with a fake of the RPC client, and with a fake of time."""
    # It chooses what oslo.service uses, which is not to be had beside an earlier Glance.
    import fakes_cli
    return fakes_cli.Cli(monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def events_do_not_wait_long(monkeypatch):
    """An event of an image that is not known is given again by a bus, which is not here."""
    monkeypatch.setattr(controller_module, '_LOOK_SECONDS', 0.05)


@pytest.fixture(autouse=True)
def generations_begin_at_one(monkeypatch):
    """Generations are at least the time: here it is the beginning of the epoch."""
    monkeypatch.setattr(controller_module, 'time', types.SimpleNamespace(time=lambda: 0.0))


@pytest.fixture
def cloud(database, tmp_path):
    return fakes_nodes.Cloud(database, tmp_path)


@pytest.fixture
def numbers(cloud):
    return cloud.numbers
