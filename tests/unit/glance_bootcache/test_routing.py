"""Messages that one storage node hands on to another: whom, how often, and what is answered then.

The message bus is a stand-in that notes what is sent; tests/functional/test_nodes.py has a real
one.
"""

import functools
import threading
import types

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from fakes_hosts import IMAGE, OTHER, holding, ready
from fakes_manager import PATIENCE
from neighbours import Neighbour
from oslo_messaging import conffixture

from bootcache import exception
from bootcache.rpc.fields import plain
from bootcache.rpc.messages import (
    MESSAGES,
    NO_IMAGE,
    SENDER,
    AbandonSnapshot,
    BeginSnapshot,
    BootAction,
    BuildImage,
    FinishSnapshot,
    ForgetHost,
    GetImage,
    ImageRegistered,
    ListHosts,
    PinImage,
    PlanBoot,
    ReportHoldings,
    ReportWarm,
    ServeStored,
    WarmOutcome,
)
from bootcache.rpc.report import HostReport
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes import routing
from glance_bootcache.nodes.homes import Homes, NodeAway
from glance_bootcache.nodes.membership import Membership, NodeRecord
from glance_bootcache.nodes.routing import ALONE, HERE, NODE, Routing
from glance_bootcache.rpc import validation
from glance_bootcache.rpc.endpoints import Endpoints
from glance_bootcache.rpc.ratelimit import RateLimiter
from glance_bootcache.rpc.rejected import RejectedMessages
from glance_bootcache.rpc.validation import ValidatingDispatcher
from glance_bootcache.snapshots.records import Records

SNAPSHOT = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OWN, TWO, THREE = 1, 2, 3
TOKEN = 'f' * 32
HOST = {SENDER: f'process {TOKEN}'}
FROM_NODE = {SENDER: 'process x', NODE: 'b'}
PLAN = PlanBoot(IMAGE, 'host', 'server')
PIN = PinImage(IMAGE, True)
WARM = ReportWarm(IMAGE, 'host', WarmOutcome.CACHED, '')


class Bus:
    """What a client of oslo.messaging sends by, as far as it is needed.

    :ivar sent: ``call`` or ``cast``, how it was prepared, the context, the method, and arguments.
    :ivar answers: returns an answer, or raises, for the node that is asked.
    """

    def __init__(self):
        self.sent = []
        self.answers = lambda server: f'answer of {server}'

    def client(self, bus, target):
        assert (bus, target.exchange, target.topic) == ('bus', 'bootcache-nodes', 'bootcache-nodes')
        return types.SimpleNamespace(prepare=self.prepare)

    def prepare(self, **how):
        return types.SimpleNamespace(call=functools.partial(self.send, 'call', how),
                                     cast=functools.partial(self.send, 'cast', how))

    def send(self, kind, how, context, method, **arguments):
        self.sent.append((kind, how, context, method, arguments))
        answer = self.answers(how.get('server'))
        return answer if kind == 'call' else None


class Cloud:
    """What a node knows of three: which one works on an image, and which makes a snapshot.

    :ivar homes: names of nodes by image; what is raised instead, if it is an error.
    :ivar makes: numbers of nodes by snapshot.
    :ivar routed: images that were asked for.
    """

    def __init__(self, monkeypatch):
        self.bus, self.clock = Bus(), Clock()
        self.homes, self.makes, self.routed = {}, {}, []
        monkeypatch.setattr(messaging, 'get_rpc_client', self.bus.client)
        monkeypatch.setattr(routing, 'time', self.clock)
        self.membership = Membership(OWN, self.clock)
        self.look('a', 'b', 'c')
        self.metrics = ServiceMetrics()
        self.routing = Routing('bus', 'a', Neighbour(self, Homes), Neighbour(self, Records),
                               self.membership, self.metrics)

    def look(self, *names):
        self.membership.observe(NodeRecord(number, name, 1)
                                for number, name in enumerate(names, OWN))

    def route(self, image_id):
        self.routed.append(image_id)
        home = self.homes.get(image_id)
        if isinstance(home, Exception):
            raise home
        return home

    def node_of(self, snapshot_id):
        return self.makes.get(snapshot_id)

    def moved(self):
        return frozenset([OTHER])

    def answer(self, message, context=HOST):
        return self.routing.answer(message, context)


@pytest.fixture
def cloud(monkeypatch):
    return Cloud(monkeypatch)


def test_a_node_that_is_alone_answers_all_itself(cloud):
    cloud.homes[IMAGE] = 'b'
    cloud.look('a')
    assert cloud.answer(PLAN) is HERE and cloud.routed == []
    cloud.routing.tell_others(ReportHoldings('host', None, 1), HOST)
    for message in PLAN, PIN:
        assert ALONE.answer(message, HOST) is HERE
    assert ALONE.moved() == frozenset()
    ALONE.tell_others(ReportHoldings('host', None, 1), HOST)
    assert cloud.bus.sent == []


@pytest.mark.parametrize('message', [
    PLAN, PIN, ListHosts(), ForgetHost('host'), ReportHoldings('host', None, 1),
    FinishSnapshot(SNAPSHOT, TOKEN)], ids=lambda message: message.method)
def test_what_is_of_this_node_or_of_none_is_answered_here(cloud, message):
    assert cloud.answer(message) is HERE and cloud.bus.sent == []


@pytest.mark.parametrize('message', [
    PLAN, PIN, ServeStored(IMAGE, 'host', 'CN=host'), BuildImage(IMAGE), GetImage(IMAGE)],
    ids=lambda message: message.method)
def test_what_is_another_node_s_is_handed_on_to_it_and_its_answer_given(cloud, message):
    cloud.homes[IMAGE] = 'b'
    assert cloud.answer(message) == 'answer of b'
    assert cloud.bus.sent == [
        ('call', {'server': 'b', 'timeout': 3.0, 'retry': 1, 'version': message.since},
         {SENDER: HOST[SENDER], NODE: 'a'}, message.method, plain(message))]
    # As the other node reads it.
    assert MESSAGES[message.method].parse(cloud.bus.sent[0][4]) == message


def test_a_message_that_has_no_answer_is_cast(cloud):
    cloud.homes[IMAGE] = 'c'
    assert cloud.answer(WARM) is None
    (kind, how, context, method, _arguments), = cloud.bus.sent
    assert (kind, how['server'], context[NODE], method) == ('cast', 'c', 'a', 'report_warm')


def test_an_import_is_taken_up_where_it_is_heard_of(cloud):
    """Nobody else knows the image; and of one that is known the home is to look at its row."""
    cloud.homes[IMAGE] = 'b'
    assert cloud.answer(ImageRegistered(IMAGE)) is HERE and cloud.routed == []


def test_a_message_is_handed_on_once(cloud):
    cloud.homes[IMAGE] = 'c'
    with pytest.raises(NodeAway, match='the storage node c has just begun to work on it'):
        cloud.answer(PIN, FROM_NODE)
    plan = cloud.answer(PLAN, FROM_NODE)
    assert (plan['action'], plan['ready_in']) == (BootAction.WAIT, None)
    assert cloud.bus.sent == []
    del cloud.homes[IMAGE]
    assert cloud.answer(PIN, FROM_NODE) is HERE


@pytest.mark.parametrize('error', [
    NodeAway('the storage node b works on it, which is away'),
    exception.DatabaseAway('it does not answer')], ids=str)
def test_while_nobody_can_answer_servers_wait_and_all_others_are_told(cloud, error):
    cloud.homes[IMAGE] = error
    assert cloud.answer(PLAN) == {'action': BootAction.WAIT, 'cause': 'storage-node-away',
                                  'reason': str(error), 'ready_in': None}
    assert cloud.metrics.registry.get_sample_value('bootcache_boots_planned_total', {
        'way': 'wait', 'reason': 'storage-node-away'}) == 1
    for message in PIN, WARM:
        with pytest.raises(type(error), match=str(error)):
            cloud.answer(message)
    assert cloud.bus.sent == []


@pytest.mark.parametrize('error', [messaging.MessagingTimeout('nobody'),
                                   messaging.MessageDeliveryFailure('no queue')], ids=str)
def test_so_it_is_while_the_home_does_not_answer(cloud, error):
    def silent(server):
        raise error

    cloud.homes[IMAGE] = 'b'
    cloud.bus.answers = silent
    plan = cloud.answer(PLAN)
    assert plan['action'] == BootAction.WAIT
    assert plan['reason'].startswith('the storage node b does not answer; ask again')
    with pytest.raises(NodeAway, match='b does not answer'):
        cloud.answer(PIN)


def test_a_node_that_does_not_answer_is_not_asked_for_a_while(cloud):
    def silent(server):
        if server == 'b':
            raise messaging.MessagingTimeout('nobody')
        return 'answer'

    cloud.homes.update({IMAGE: 'b', OTHER: 'c'})
    cloud.bus.answers = silent
    for _call in range(5):
        with pytest.raises(NodeAway):
            cloud.answer(PIN)
    assert len(cloud.bus.sent) == 2
    assert cloud.answer(PLAN)['reason'] == 'the storage node b has not answered just now'
    assert cloud.answer(PinImage(OTHER, True)) == 'answer', 'another node is'
    cloud.bus.sent.clear()
    cloud.clock.now += 5
    for _call in range(3):
        with pytest.raises(NodeAway):
            cloud.answer(PIN)
    assert len(cloud.bus.sent) == 1, 'one tries'
    cloud.clock.now += 5
    cloud.bus.answers = lambda server: 'answer'
    for _call in range(3):
        assert cloud.answer(PIN) == 'answer'


def test_a_node_that_refuses_answers(cloud):
    def refuses(server):
        raise messaging.RemoteError('RequestRefused', 'no', [])

    cloud.homes[IMAGE] = 'b'
    cloud.bus.answers = refuses
    for _call in range(5):
        with pytest.raises(exception.RequestRefused):
            cloud.answer(PIN)
    assert len(cloud.bus.sent) == 5


@pytest.mark.parametrize('kind, value, raised', [
    ('RequestRefused', 'no', exception.RequestRefused),
    ('MessageRefused', 'host: is none', exception.MessageRefused),
    ('StorageDaemonError', 'exporter: no file', exception.BootcacheError),
    ('KeyError', "'a bug'", exception.BootcacheError)])
def test_what_is_raised_there_is_raised_here(cloud, kind, value, raised):
    def fails(server):
        raise messaging.RemoteError(kind, value, ['a', 'traceback'])

    cloud.homes[IMAGE] = 'b'
    cloud.bus.answers = fails
    for message in PIN, PLAN:
        with pytest.raises(raised) as error:
            cloud.answer(message)
        assert type(error.value) is raised and value in str(error.value)
        assert 'traceback' not in str(error.value)


def test_so_many_are_handed_on_at_the_same_time_and_no_more(cloud):
    """A node that does not answer holds up so many threads; the others answer."""
    goes_on, here, answers = threading.Event(), threading.Semaphore(0), []

    def slow(server):
        here.release()
        assert goes_on.wait(PATIENCE)
        return 'late'

    cloud.homes.update({IMAGE: 'b', OTHER: 'c'})
    cloud.bus.answers = slow
    threads = [threading.Thread(target=lambda: answers.append(cloud.answer(PIN)))
               for _call in range(16)]
    try:
        for thread in threads:
            thread.start()
            assert here.acquire(timeout=PATIENCE)
        for image in IMAGE, OTHER:
            with pytest.raises(NodeAway, match='16 messages are being handed on'):
                cloud.answer(PinImage(image, True))
            assert cloud.answer(PlanBoot(image, 'host', 'server'))['action'] == BootAction.WAIT
        assert len(cloud.bus.sent) == 16
        assert cloud.answer(ListHosts()) is HERE
    finally:
        goes_on.set()
        for thread in threads:
            thread.join()
    assert answers == ['late'] * 16 and cloud.answer(PIN) == 'late'


@pytest.mark.parametrize('error', [
    messaging.MessagingTimeout('nobody'), messaging.RemoteError('KeyError', 'a bug', []),
    messaging.InvalidTarget('no', None), ValueError('a bug')],
    ids=lambda error: type(error).__name__)
def test_what_fails_gives_its_place_back(cloud, error):
    def fails(server):
        raise error

    cloud.bus.answers = fails
    for number in range(40):
        cloud.homes[IMAGE] = f'node-{number}'
        with pytest.raises(Exception) as raised:
            cloud.answer(PIN)
        assert 'messages are being handed on' not in str(raised.value)
    cloud.bus.answers = lambda server: 'answer'
    assert cloud.answer(PIN) == 'answer'


# Snapshots.

@pytest.mark.parametrize('message', [
    BeginSnapshot(IMAGE, SNAPSHOT, 'host', 'CN=host', TOKEN, 4096), FinishSnapshot(SNAPSHOT, TOKEN),
    AbandonSnapshot(SNAPSHOT, TOKEN)], ids=lambda message: message.method)
def test_a_snapshot_s_messages_go_to_the_node_that_makes_it(cloud, message):
    """The image that its server was made of may have another home by then."""
    cloud.homes[IMAGE] = 'b'
    cloud.makes[SNAPSHOT] = THREE
    assert cloud.answer(message) == 'answer of c'
    cloud.makes[SNAPSHOT] = OWN
    assert cloud.answer(message) is HERE and cloud.routed == []
    cloud.makes[SNAPSHOT] = 9
    with pytest.raises(NodeAway, match='the storage node that makes the snapshot is gone'):
        cloud.answer(message)


def test_one_that_begins_is_made_where_its_base_is(cloud):
    cloud.homes[IMAGE] = 'b'
    begin = BeginSnapshot(IMAGE, SNAPSHOT, 'host', 'CN=host', TOKEN, 4096)
    assert cloud.answer(begin) == 'answer of b'
    del cloud.homes[IMAGE]
    assert cloud.answer(begin) is HERE


# What hosts report.

REPORT = ReportHoldings('host', HostReport(needs=frozenset([IMAGE])), 7)


def test_all_others_are_told_what_a_host_reports_and_nobody_again(cloud):
    cloud.routing.tell_others(REPORT, HOST)
    cloud.routing.tell_others(REPORT, FROM_NODE)
    (kind, how, context, method, arguments), = cloud.bus.sent
    assert (kind, how['fanout'], how['version'], how['retry']) == ('cast', True, '2.1', 0)
    assert context == {SENDER: HOST[SENDER], NODE: 'a'} and method == 'report_holdings'
    assert ReportHoldings.parse(arguments) == REPORT
    assert cloud.routing.moved() == {OTHER}


def test_a_bus_that_does_not_take_it_is_no_host_s_concern(cloud, caplog):
    def fails(server):
        raise messaging.MessageDeliveryFailure('it is away')

    caplog.set_level('INFO')
    cloud.bus.answers = fails
    cloud.routing.tell_others(REPORT, HOST)
    assert 'host host: other storage nodes are not told what it holds: it is away' in caplog.text


# By the real validation and endpoints.

class Nodes:
    """Notes what comes to it with which context, and has it be answered here."""

    def __init__(self):
        self.seen, self.told, self.images = [], [], frozenset()

    def route(self, image_id):
        """As Homes.route: this node answers."""

    def answer(self, message, context):
        self.seen.append((message, dict(context)))
        return HERE

    def moved(self):
        return self.images

    def tell_others(self, message, context):
        self.told.append((message, dict(context)))


def endpoints_of(house, nodes):
    parts = house.endpoints.endpoints
    return Endpoints(parts._controller, parts._boots, parts._hosts, parts._operators,
                     parts._warming, parts._needs, parts._rejected, parts._offers,
                     parts._snapshots, parts._metrics, parts._nodes, nodes)


def dispatcher(house, nodes, is_for_nodes=False):
    """Has a message answered as it comes by the exchange of hosts, or of nodes."""
    dispatch = ValidatingDispatcher(
        messaging.RPCDispatcher([endpoints_of(house, nodes)], None), house.rejected,
        None if is_for_nodes else RateLimiter(), house.metrics, nodes).dispatch

    def say(message, context):
        return dispatch(types.SimpleNamespace(
            message={'method': message.method, 'args': plain(message), 'version': '2.1'},
            ctxt=dict(context), client_timeout=None))

    return say


def test_a_host_cannot_say_that_its_message_was_handed_on(house):
    nodes = Nodes()
    say = dispatcher(house, nodes)
    say(REPORT, {SENDER: TOKEN, NODE: 'b'})
    assert nodes.seen == [(REPORT, {SENDER: f'process {TOKEN}'})]
    assert nodes.told == [(REPORT, {SENDER: f'process {TOKEN}'})]


def test_a_message_that_was_handed_on_is_of_the_sender_that_the_other_node_tells(house):
    nodes = Nodes()
    say = dispatcher(house, nodes, is_for_nodes=True)
    for _message in range(2000):
        say(GetImage(NO_IMAGE), FROM_NODE)
    assert nodes.seen[-1] == (GetImage(NO_IMAGE), FROM_NODE), 'it was counted where it came in'
    assert len(nodes.seen) == 2000


def test_another_node_s_answer_is_given_as_it_is(house):
    nodes = Nodes()
    nodes.answer = lambda message, context: {'action': 'cold', 'odd': 1}
    assert dispatcher(house, nodes)(PLAN, {}) == {'action': 'cold', 'odd': 1}
    nodes.answer = lambda message, context: None
    assert dispatcher(house, nodes)(WARM, {}) is None
    assert house.rejected.counts() == {}, 'nothing has come to this node\'s own'


def test_a_message_that_cannot_be_is_handed_to_nobody(house):
    nodes = Nodes()
    with pytest.raises(messaging.ExpectedException):
        dispatcher(house, nodes)(PlanBoot('no id', 'host', 'server'), {})
    assert nodes.seen == []


def test_a_host_is_told_which_images_it_needs_that_have_moved(house):
    nodes = Nodes()
    say = dispatcher(house, nodes)
    nodes.images = frozenset([IMAGE, SNAPSHOT])
    report = ReportHoldings('host', HostReport(needs=frozenset([IMAGE, OTHER])), 1)
    assert say(report, HOST) == {'drop': [], 'resend': False, 'moved': [IMAGE]}
    assert say(ReportHoldings('host', None, 1), HOST)['moved'] == [IMAGE]
    assert say(ReportHoldings('other', HostReport(), 1), HOST)['moved'] == []
    nodes.images = frozenset()
    assert say(ReportHoldings('host', None, 1), HOST)['moved'] == []
    nodes.told.clear()
    assert say(ReportHoldings('host', None, 2), HOST)['resend']
    assert nodes.told == [], 'what is not known here is told by the report that comes next'


def test_what_another_node_has_heard_is_known_here_and_written_there(house, database):
    ready(house)
    say = dispatcher(house, Nodes(), is_for_nodes=True)
    report = HostReport(holding(IMAGE).images, needs=frozenset([IMAGE]))
    say(ReportHoldings('host', report, 7), FROM_NODE)
    assert house.needs.hosts(IMAGE) == ['host']
    assert [entry['host'] for entry in house.table.holders(IMAGE)] == ['host']
    house.writer.write()
    assert ReportedNeeds(database).hosts(IMAGE) == []
    # The host's next report may come here.
    direct = dispatcher(house, Nodes())
    unchanged = ReportHoldings('host', None, 7)
    assert direct(unchanged, {SENDER: 'x'})['resend'], 'another process says so'
    say(ReportHoldings('host', report, 8), {SENDER: f'process {TOKEN}', NODE: 'b'})
    assert direct(unchanged, {SENDER: TOKEN})['resend'], 'it is another report'
    assert not direct(ReportHoldings('host', None, 8), {SENDER: TOKEN})['resend']


def test_what_a_node_tells_the_others_it_writes_itself(house, database, storage_conf):
    """By oslo.messaging's bus in memory, which has one thread for what comes in."""
    conffixture.ConfFixture(storage_conf)
    bus = messaging.get_rpc_transport(storage_conf, url='fake:/')
    membership = Membership(OWN)
    membership.observe([NodeRecord(OWN, 'a', 1), NodeRecord(TWO, 'b', 1)])
    nodes = Routing(bus, 'a', Neighbour(Nodes(), Homes), Neighbour(Nodes(), Records), membership,
                    ServiceMetrics())
    server = validation.get_server(bus, 'a', endpoints_of(house, nodes), RejectedMessages(),
                                   ServiceMetrics(), nodes=nodes, for_nodes=True)
    storage_conf.set_override('executor_thread_pool_size', 1)
    server.start()
    try:
        dispatcher(house, nodes)(REPORT, HOST)
        # Whatever came before this call has been answered.
        messaging.get_rpc_client(bus, routing.target(server='a')).prepare(timeout=PATIENCE).call(
            FROM_NODE, GetImage.method, image_id=NO_IMAGE)
    finally:
        server.stop()
        server.wait()
        bus.cleanup()
    house.writer.write()
    assert ReportedNeeds(database).hosts(IMAGE) == ['host']
