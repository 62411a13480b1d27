"""RPC through a real RabbitMQ."""

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path
from unittest.mock import ANY

import oslo_messaging as messaging
import psutil
import pytest
from functional_tools import free_port, until
from oslo_messaging import conffixture

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.rpc.client import StorageClient
from bootcache.rpc.messages import (
    MESSAGES,
    NO_IMAGE,
    AbandonSnapshot,
    BeginSnapshot,
    BuildImage,
    DeleteImage,
    EvictImage,
    ExchangeBase,
    ExchangeCache,
    ExchangeOffer,
    ExchangeWay,
    FinishSnapshot,
    ForgetHost,
    GetImage,
    GetWarming,
    GetWorkingSet,
    HoldingsAnswer,
    HoldSlot,
    HostBases,
    ImageHosts,
    ImageRegistered,
    ListHosts,
    ListImages,
    ListNodes,
    PinImage,
    PlanBoot,
    PromoteImage,
    ReportBoot,
    ReportExchange,
    ReportHoldings,
    ReportProgress,
    ReportWarm,
    ServeStored,
    SetNodeWish,
    SnapshotProgress,
    StoredExport,
    TakeSlot,
    UploadSnapshot,
    WarmImage,
    WarmOutcome,
)
from bootcache.rpc.report import HeldImage, HostReport
from bootcache.rpc.transport import get_transport
from bootcache.tier import Medium
from glance_bootcache.exchange.offers import ExchangeOffers
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes.commands import NodeCommands
from glance_bootcache.rpc import validation
from glance_bootcache.rpc.endpoints import Endpoints
from glance_bootcache.rpc.operators import Operators
from glance_bootcache.rpc.rejected import RejectedMessages
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.warming.runner import Warming

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
TOKEN = '0123456789abcdef' * 2
PATIENCE = 30
TOP = Path(__file__).resolve().parents[2]
STOCK = {'action': 'stock', 'reason': 'why not'}


class Neighbours:
    """Stands for all that the endpoints ask: notes what reaches it, and answers.

    :ivar heard: whether it was told that a compute host is there.
    """

    def __init__(self):
        self.calls = queue.Queue()
        self.heard = False

    def host_reported(self):
        self.heard = True

    def count(self):
        return 1

    def tell(self, answer, _host):
        return answer

    def __getattr__(self, name):
        def method(*arguments, **named):
            if arguments == (NO_IMAGE,):
                return None
            self.calls.put((name, arguments, named))
            if name == 'get_image' and arguments[0] != IMAGE:
                raise RuntimeError('out of order')
            if name == 'report_profile' and arguments[0].image_id != IMAGE:
                raise exception.InvalidWorkingSet('outside')
            return {'plan_boot': STOCK,
                    'list_nodes': [{'name': 'storage-1', 'state': 'up'}], 'set_wish': True,
                    'list_images': [{'image_id': IMAGE}], 'get_image': {'image_id': IMAGE},
                    'get_working_set': None, 'pin': True, 'offer': ExchangeOffer(b'torrent',
                        (('192.0.2.1', 1),)),
                    'offer_base': ExchangeOffer(again=1.5), 'note': True, 'take_slot': 30.0,
                    'serve_stored': StoredExport(True, ('192.0.2.1', 1)),
                    'begin': SnapshotProgress(export='x'), 'finish': SnapshotProgress(url='rbd://x'),
                    'upload': SnapshotProgress(uploaded=True), 'abandon': False,
                    'report': HoldingsAnswer((IMAGE,)),
                    'describe': [{'host': 'one', 'seen': 1.5}],
                    'bases': {'seen': 1.5, 'bases': None},
                    'image_hosts': {'storage': 'disk', 'hosts': []},
                    'evict': ['one'] if len(arguments) > 1 else True,
                    'warm': [{'aggregate': 'racks', 'done': False}],
                    'progress': [{'aggregate': 'racks', 'done': True}]}.get(name)
        return method


class Neighbour:
    """One of them; it has the methods that the real one has, and no others."""

    def __init__(self, neighbours, real):
        self._neighbours, self._real = neighbours, real

    def __getattr__(self, name):
        if not hasattr(self._real, name):
            raise AttributeError(f'{self._real.__name__} has no {name}')
        return getattr(self._neighbours, name)


@pytest.fixture
def conf(storage_conf, rabbit, monkeypatch):
    """The service's configuration on the private RabbitMQ; every connection is closed again."""
    opened = []

    def keep(real):
        return lambda *arguments, **named: opened.append(real(*arguments, **named)) or opened[-1]

    for name in ('get_rpc_transport', 'get_notification_transport'):
        monkeypatch.setattr(messaging, name, keep(getattr(messaging, name)))
    storage_conf.set_override('transport_url', rabbit, bootcache_conf.GROUP)
    storage_conf.set_override('rpc_timeout', PATIENCE, bootcache_conf.GROUP)
    # oslo.messaging registers some of its options with the global configuration only.
    conffixture.ConfFixture(storage_conf)
    yield storage_conf
    for transport in opened:
        transport.cleanup()


class Unheard:
    """Stands for what hosts need: what is told to it beside the others."""

    def __init__(self, calls):
        self._calls = calls

    def note(self, *_arguments, **_named):
        pass

    def of(self, *_arguments):
        return ()

    def forget(self, name):
        self._calls.put(('forget', (name,), {}))
        return True


@pytest.fixture
def manager(conf):
    """A manager that is served, and its neighbours."""
    manager = Neighbours()
    parts = [Neighbour(manager, real) for real in (
        Controller, ReportedBoots, Hosts, Operators, Warming)]
    manager.rejected, metrics = RejectedMessages(), ServiceMetrics()
    server = validation.get_server(get_transport(conf), 'storage',
                                   Endpoints(*parts, Unheard(manager.calls), manager.rejected,
                                             Neighbour(manager, ExchangeOffers),
                                             Neighbour(manager, SnapshotJobs), metrics,
                                             Neighbour(manager, NodeCommands)),
                                   manager.rejected, metrics)
    server.start()
    yield manager
    server.stop()
    server.wait()


REPORT = HostReport({IMAGE: HeldImage(1000.5, Medium.DISK, 2, 7)}, {Medium.DISK: 100})
BOOTED = ReportBoot(IMAGE, 'sha512:ab', 'host', 4096, [[0, 4096, 0.5], [4096, 1]], 'stuck', 12.5,
                    'token', 'panic')
SERVED = ReportBoot(IMAGE, 'sha512:ab', 'host', 65536, [[0, 65536, 0.5]], 'marker', 12.5,
                    server_id='server')
GOT = ReportExchange(IMAGE, 'host', 'sha512:ab', ExchangeWay.EXCHANGED, [('192.0.2.22', 5)], 5,
                     True)
CACHE = ExchangeCache(IMAGE, 'host', 'ab' * 32, '192.0.2.21', 10811, 'a')
BASE = ExchangeBase(IMAGE, 'host', 'sha512:ab', '192.0.2.21', 10811, 'a')
SNAPSHOT = BeginSnapshot(IMAGE, IMAGE, 'host', 'CN=host', TOKEN, 4096)


def whole(name, message, **named):
    return message, (name, (message,), named)


@pytest.mark.parametrize('message, reached, answer', [
    (*whole('plan_boot', PlanBoot(IMAGE, 'host', 'server', 'token')), STOCK),
    (*whole('plan_boot', PlanBoot(IMAGE, 'host', 'server', None, 'project')), STOCK),
    (*whole('plan_boot', PlanBoot(IMAGE, 'host', 'server', None, '', 'CN=host')), STOCK),
    (*whole('report_progress', ReportProgress(IMAGE, 'token', 5)), None),
    (*whole('report_profile', BOOTED), None),
    (*whole('report_boot', SERVED, only_host=True), None),
    (ReportHoldings('host', REPORT), ('report', ('host', REPORT, ANY, ANY, 0), {}),
     HoldingsAnswer((IMAGE,))),
    (ReportHoldings('host', None, 3), ('report', ('host', None, ANY, ANY, 3), {}),
     HoldingsAnswer((IMAGE,))),
    (*whole('report', ReportWarm(IMAGE, 'host', WarmOutcome.ERROR, 'no room')), None),
    (ListHosts(), ('describe', (None,), {}), [{'host': 'one', 'seen': 1.5}]),
    (HostBases('one'), ('bases', ('one',), {}), {'seen': 1.5, 'bases': None}),
    (ForgetHost('one'), ('forget', ('one',), {}), True),
    (ListNodes(), ('list_nodes', (), {}), [{'name': 'storage-1', 'state': 'up'}]),
    (SetNodeWish('storage-1', 'drained'), ('set_wish', ('storage-1', 'drained'), {}), True),
    (ImageHosts(IMAGE), ('image_hosts', (IMAGE,), {}), {'storage': 'disk', 'hosts': []}),
    (EvictImage(IMAGE, None), ('evict', (IMAGE, None), {}), ['one']),
    (EvictImage(IMAGE, ['one']), ('evict', (IMAGE, ['one']), {}), ['one']),
    (WarmImage(IMAGE, ['racks']), ('warm', (IMAGE, ['racks']), {}),
     [{'aggregate': 'racks', 'done': False}]),
    (GetWarming(IMAGE), ('progress', (IMAGE,), {}), [{'aggregate': 'racks', 'done': True}]),
    (PromoteImage(IMAGE), ('promote', (IMAGE,), {}), None),
    (*whole('offer', CACHE), ExchangeOffer(b'torrent', (('192.0.2.1', 1),))),
    (BASE, ('offer_base', (BASE, ANY), {}), ExchangeOffer(again=1.5)),
    (*whole('note', GOT), None),
    (TakeSlot('host'), ('take_slot', (ANY,), {}), 30.0),
    (HoldSlot('host', False), ('hold_slot', (ANY, False), {}), None),
    (*whole('begin', SNAPSHOT), SnapshotProgress(export='x')),
    (FinishSnapshot(IMAGE, TOKEN), ('finish', (IMAGE, TOKEN), {}), SnapshotProgress(url='rbd://x')),
    (UploadSnapshot(IMAGE, TOKEN), ('upload', (IMAGE, TOKEN), {}), SnapshotProgress(uploaded=True)),
    (AbandonSnapshot(IMAGE, TOKEN), ('abandon', (IMAGE, TOKEN), {}), False),
    (PinImage(IMAGE, True), ('pin', (IMAGE, True), {}), True),
    (*whole('serve_stored', ServeStored(IMAGE, 'host', 'CN=host')),
     StoredExport(True, ('192.0.2.1', 1))),
    (ListImages(), ('list_images', (None,), {}), [{'image_id': IMAGE}]),
    (GetImage(IMAGE), ('get_image', (IMAGE,), {}), {'image_id': IMAGE}),
    (GetWorkingSet(IMAGE), ('get_working_set', (IMAGE,), {}), None),
    (BuildImage(IMAGE), ('build', (IMAGE,), {}), None),
    (DeleteImage(IMAGE), ('evict', (IMAGE,), {}), True),
    (ImageRegistered(IMAGE), ('image_changed', (IMAGE,), {}), None)])
def test_every_message_reaches_the_manager(conf, manager, message, reached, answer):
    assert StorageClient(conf).send(message) == answer
    assert manager.calls.get(timeout=PATIENCE) == reached
    assert manager.heard is (message.method in ('plan_boot', 'report_holdings'))


def test_every_message_is_tried_above():
    tried = {type(entry[0]) for mark in test_every_message_reaches_the_manager.pytestmark
             for entry in mark.args[1]}
    assert tried == set(MESSAGES.values())


def test_many_holdings_arrive_whole(conf, manager):
    report = HostReport({f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f': HeldImage(
        1000.5, Medium.DISK, 0, number) for number in range(10_000)})
    StorageClient(conf).send(ReportHoldings('host', report))
    assert manager.calls.get(timeout=PATIENCE)[1][1] == report


def test_an_answer_that_makes_no_sense_is_one_error(conf, manager):
    manager.report = lambda *_arguments: HoldingsAnswer(('../../etc',))
    with pytest.raises(exception.AnswerInvalid, match=r'report_holdings: drop: .* an image'):
        StorageClient(conf).send(ReportHoldings('host', None))


def test_what_operators_are_refused_is_said_to_them(conf, manager, caplog):
    """And is no error of the service."""
    def refuse(*arguments):
        raise exception.RequestRefused('it is pinned; unpin it first')

    manager.evict = refuse
    with pytest.raises(messaging.RemoteError) as caught:
        StorageClient(conf).send(EvictImage(IMAGE, None))
    # Once: oslo.messaging's own text has the service's traceback as well.
    assert str(caught.value) == 'the storage service refuses: it is pinned; unpin it first'
    assert not [record for record in caplog.records if record.levelname == 'ERROR'
                and record.name.startswith('oslo_messaging')]


def test_a_long_report_arrives_whole(conf, manager):
    extents = [[number * 4096, 4096, number / 1000] for number in range(50000)]
    StorageClient(conf).send(dataclasses.replace(BOOTED, extents=extents))
    assert manager.calls.get(timeout=PATIENCE)[1][0].extents == extents


def test_errors_of_the_service_are_raised(conf, manager):
    api = StorageClient(conf)
    # Python's own errors keep their type on the way, ours become a RemoteError.
    with pytest.raises(RuntimeError, match='out of order'):
        api.send(GetImage('00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'))
    with pytest.raises(messaging.RemoteError, match=r'image_id: .* is not an image'):
        api.send(GetImage('../../etc/passwd'))
    with pytest.raises(messaging.RemoteError, match='outside'):
        api.send(dataclasses.replace(BOOTED, image_id='00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'))


ASKS = """
import sys, threading
import oslo_messaging as messaging
from oslo_config import cfg
from bootcache import conf
from bootcache.rpc.client import StorageClient
from bootcache.rpc.messages import ListImages
conf.register_opts(cfg.CONF)
cfg.CONF([], project='bootcache', default_config_files=[])
cfg.CONF.set_override('transport_url', sys.argv[1], 'bootcache')
cfg.CONF.set_override('rpc_timeout', 1, 'bootcache')
api = StorageClient(cfg.CONF)
for _call in range(3):
    try:
        api.send(ListImages())
    except messaging.MessageDeliveryFailure as error:
        print(error, [thread.name for thread in threading.enumerate()].count('bootcache-bus'))
"""


def test_a_bus_that_is_away_keeps_nobody_waiting():
    """A port where nothing listens: each call ends in its time, and so does the process."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', ASKS,
                           f'rabbit://a:b@127.0.0.1:{free_port()}/'], cwd=TOP, timeout=60,
                          capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == 2 * [
        'the message bus could not be reached within 3 s; see [bootcache]transport_url 1'], done
    assert len(lines) == 3 and 'nobody has answered just now' in lines[2], done


def beam(node):
    """Return the process id of the private RabbitMQ's Erlang machine."""
    return next(below.pid for pid in node.pids
                for below in psutil.Process(pid).children(recursive=True) if 'beam' in below.name())


def test_an_exchange_that_hangs_keeps_nobody_from_booting(conf, manager, monkeypatch):
    """The storage node's own process: it says nothing of the storage service."""
    conf.set_override('rpc_timeout', 1, bootcache_conf.GROUP)
    api, goes_on = StorageClient(conf), threading.Event()
    assert api.send(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'stock'
    monkeypatch.setattr(Endpoints, 'exchange_cache',
                        lambda *_arguments, **_named: goes_on.wait(PATIENCE))
    for _time in range(3):
        with pytest.raises(messaging.MessagingTimeout):
            api.send(CACHE)
    goes_on.set()
    assert api.send(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'stock'


@pytest.fixture
def frozen(rabbit_node):
    """Freezes RabbitMQ, or not, as a machine that hangs: connections stay, and nothing comes."""
    pid = beam(rabbit_node)
    yield lambda is_frozen: os.kill(pid, signal.SIGSTOP if is_frozen else signal.SIGCONT)
    os.kill(pid, signal.SIGCONT)


def test_a_bus_that_hangs_keeps_nobody_waiting(conf, manager, frozen):
    """oslo.messaging's own limit lets a call take a multiple of it, and kombu's errors through."""
    conf.set_override('rpc_timeout', 1, bootcache_conf.GROUP)
    api = StorageClient(conf)
    assert api.send(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'stock'
    frozen(True)

    def plan():
        return api.send(PlanBoot(IMAGE, 'host', 'server'))

    def ask(call):
        with pytest.raises(messaging.MessagingException) as caught:
            call()
        return caught.value

    with futures.ThreadPoolExecutor() as threads:
        failures = list(threads.map(ask, 4 * [plan, lambda: api.send(PromoteImage(IMAGE))],
                                    timeout=PATIENCE))
    assert {type(failure) for failure in failures} <= {
        messaging.MessagingTimeout, messaging.MessageDeliveryFailure}
    # One that nobody answers has the next refused again, if the pause has passed by now.
    until(lambda: 'nobody has answered just now' in str(ask(plan)), 'a refusal')
    frozen(False)

    def answers():
        with contextlib.suppress(messaging.MessagingException):
            return plan()

    until(answers, 'an answer')


def test_a_first_call_waits_no_longer_than_others(conf, manager):
    api = StorageClient(conf)
    assert api.send(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'stock'
    assert not [thread for thread in threading.enumerate() if thread.name == 'bootcache-bus']


def test_nobody_serves(conf):
    conf.set_override('rpc_timeout', 1, bootcache_conf.GROUP)
    with pytest.raises(messaging.MessagingTimeout):
        StorageClient(conf).send(PlanBoot(IMAGE, 'host', 'server'))


def test_a_service_of_another_version_refuses(conf, manager, monkeypatch):
    monkeypatch.setattr(Endpoints, 'target', messaging.Target(version='1.0'))
    with pytest.raises(messaging.RemoteError, match=PlanBoot.since):
        StorageClient(conf).send(PlanBoot(IMAGE, 'host', 'server'))
    assert manager.calls.empty()
