"""Full bases come to hosts from each other: a storage node, hosts, and what fails."""

import os
import threading

import apart
import pytest
from compute_host import Service
from exchange_cloud import Cloud
from exchanging import Swarm
from functional_tools import until
from storage_node import IMAGE, MIB
from test_fullbase import complete, only

from bootcache import exception, savefile
from bootcache.rpc.messages import ExchangeWay, ReportExchange
from glance_bootcache.exchange.offers import ExchangeOffers, Given
from nova_bootcache.settling import fullbase
from nova_bootcache.settling.fullbase import ExchangedBase
from nova_bootcache.settling.partial import JOURNAL, Partial
from tools import storedimages

pytestmark = apart.needs_libtorrent

# Of the file of 24 MiB: zeros need not come.
DATA = 21 * MIB


class Bases:
    """A storage node whose stored file hosts exchange."""

    def __init__(self, cloud, path, serve):
        self.cloud, self.path, self.node = cloud, path, serve(path)
        self.size, self.digest = os.path.getsize(path), savefile.file_digest(path, 'sha512')
        self.hash = f'sha512:{self.digest}'
        storedimages.put(cloud.store, cloud.store.load(IMAGE).making(
            base_path=path, base_hash=self.hash, stored_bytes=self.size, image_format='raw'))

    def others(self, host):
        return ExchangedBase(host.asking, IMAGE, self.hash, self.size)

    def target(self, host):
        os.makedirs(f'{host.home}/_base', exist_ok=True)
        return f'{host.home}/_base/{"0" * 40}'

    def complete(self, host, **changes):
        """Have a host complete it; what its exchange has of it then."""
        target = self.target(host)
        changes.setdefault('node', self.node)
        changes.setdefault('slot', host.slot)
        node = changes.pop('node')
        assert complete(self.path, node, target, 'raw', self.digest, others=self.others(host),
                        **changes)
        assert savefile.file_digest(target, 'sha512') == self.digest and only(target)
        return self.held(host)

    def held(self, host):
        return next((held for held in host.client.files()['files'].values()
                     if held['size'] == self.size), None)

    def told(self):
        return {came['to']: came for came in self.cloud.service.offers.given.describe(IMAGE)}


@pytest.fixture
def bases(directory, ca, node, storage_conf, make_base, monkeypatch, daemons):
    service = Service(node)
    monkeypatch.setattr('nova_bootcache.asking.client.StorageClient', lambda conf: service)
    swarm = Swarm(directory, ca)
    cloud = Cloud(swarm, node, storage_conf, service)
    daemon = daemons('bases')
    daemon.ensure_running()
    path = make_base(f'{directory}/big', 24 * MIB, [(0, 5 * MIB, 'data'), (6 * MIB, MIB, 'zeros'),
                                                    (8 * MIB, 16 * MIB, 'data')], 'raw', seed=4)

    def serve(path):
        from bootcache.cacheimage import Base
        from nova_bootcache.storagenode import nbd_node
        daemon.add_nodes(*Base(path, 'raw', 0).nodes('big'))
        daemon.add_export('big', 'big')
        return {**nbd_node('', 0, 'big'), 'server': {'type': 'unix', 'path': daemon.listener.path}}

    yield Bases(cloud, path, serve)
    cloud.tiers.stop()
    swarm.stop()


def test_hosts_give_it_to_each_other(bases):
    """What one gave on is what it had fetched, though the file has another name by then."""
    one, two, three = (bases.cloud.host() for _number in range(3))
    bases.complete(one)
    assert bases.cloud.given() == pytest.approx(DATA, rel=0.05)
    held = bases.complete(two)
    assert set(held['peers']) == {one.address}
    os.unlink(bases.target(two))
    held = bases.complete(three)
    assert set(held['peers']) <= {one.address, two.address} and held['got'] >= DATA
    assert bases.cloud.given() == pytest.approx(DATA, rel=0.05)
    told = bases.told()['host-4']
    assert told['way'] == 'exchanged' and not told['copied'] and told['file'] == 'full base'
    assert {giver for giver, _count in told['got']} <= {'host-2', 'host-3'}


def test_a_fetch_that_was_broken_off_goes_on(bases):
    one, two = bases.cloud.host(), bases.cloud.host(exchange_linger=0)
    bases.complete(one)
    cancelled = threading.Event()
    raised = []

    def run():
        try:
            bases.complete(two, rate=2 * MIB, cancelled=cancelled)
        except exception.Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: (bases.held(two) or {}).get('done', 0) > 4 * MIB, 'a part of it')
    cancelled.set()
    thread.join()
    assert raised
    fullbase.sweep(os.path.dirname(bases.target(two)))
    assert os.path.exists(bases.target(two) + '.bootcache')
    before = two.client.files()['got']
    bases.complete(two)
    assert two.client.files()['got'] - before <= bases.size - 3 * MIB


def test_what_others_do_not_give_is_copied(bases):
    """The first host dies with the storage node's exchange: all goes on from the exporter."""
    one, two = bases.cloud.host(), bases.cloud.host()
    bases.complete(one)
    killed = threading.Event()

    def run():
        until(lambda: (bases.held(two) or {}).get('done', 0) > 2 * MIB, 'a part of it')
        one.kill()
        bases.cloud.storage.kill()
        killed.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        # Not so fast that it is over before.
        bases.complete(two, rate=3 * MIB)
    finally:
        thread.join()
    assert killed.is_set()
    told = bases.told()[two.name]
    assert told['way'] == 'stalled' and 0 < told['copied'] < bases.size


def at_it(bases, host, rate):
    """Have a host complete it in a thread, slowly; returns when some of it is there."""
    thread = threading.Thread(target=bases.complete, args=(host,), kwargs={'rate': rate})
    thread.start()
    until(lambda: (bases.held(host) or {}).get('done', 0) > MIB, 'a part of it')
    return thread


def test_where_one_has_the_only_slot_the_next_gets_it_from_that_one(bases, storage_conf):
    storage_conf.set_override('settle_slots', 1, 'bootcache')
    bases.cloud.service.offers = ExchangeOffers(storage_conf, bases.cloud.store, bases.cloud.tiers)
    one, two, three = (bases.cloud.host() for _number in range(3))
    thread = at_it(bases, one, 6 * MIB)
    try:
        held = bases.complete(two)
    finally:
        thread.join()
    assert set(held['peers']) == {one.address}
    assert bases.cloud.given() == pytest.approx(DATA, rel=0.05)
    # Who copies has to have it as well, and gives it back.
    three.kill()
    assert bases.cloud.service.offers.take_slot('another') == 0
    with pytest.raises(exception.NoSlot):
        bases.complete(three)
    assert not os.listdir(os.path.dirname(bases.target(three)))
    bases.cloud.service.offers.hold_slot('another', False)
    for host in three, bases.cloud.host():
        assert complete(bases.path, bases.node, bases.target(host), 'raw', bases.digest,
                        slot=host.slot)


def test_one_that_has_no_slot_waits_where_nobody_else_has_it(bases, storage_conf):
    storage_conf.set_override('settle_slots', 1, 'bootcache')
    offers = bases.cloud.service.offers = ExchangeOffers(
        storage_conf, bases.cloud.store, bases.cloud.tiers)
    offers.take_slot('another')
    one, two = bases.cloud.host(), bases.cloud.host()
    with pytest.raises(exception.NoSlot) as raised:
        bases.complete(one)
    assert raised.value.seconds == 10
    assert not bases.cloud.given() and not os.listdir(os.path.dirname(bases.target(one)))
    offers.hold_slot('another', False)
    # Who waits longest is next.
    with pytest.raises(exception.NoSlot):
        bases.complete(two)
    bases.complete(one)
    bases.complete(two)
    assert bases.cloud.given() == pytest.approx(DATA, rel=0.05)


def test_what_others_do_not_give_waits_for_a_slot_and_stays(bases, storage_conf):
    storage_conf.set_override('settle_slots', 1, 'bootcache')
    offers = bases.cloud.service.offers = ExchangeOffers(
        storage_conf, bases.cloud.store, bases.cloud.tiers)
    one, two = bases.cloud.host(), bases.cloud.host()
    bases.complete(one)
    offers.take_slot('another')
    raised = []

    def run():
        try:
            bases.complete(two, rate=3 * MIB)
        except exception.NoSlot as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: (bases.held(two) or {}).get('done', 0) > 2 * MIB, 'a part of it')
        one.kill()
    finally:
        thread.join()
    assert raised and bases.cloud.given() == pytest.approx(DATA, rel=0.05)
    assert os.path.exists(bases.target(two) + '.bootcache')
    offers.hold_slot('another', False)
    two.slot.take()
    before = two.client.files()['got']
    bases.complete(two)
    assert two.client.files()['got'] - before <= bases.size - 2 * MIB


def test_without_an_exchange_it_is_copied(bases):
    one = bases.cloud.host()
    one.kill()
    target = bases.target(one)
    assert complete(bases.path, bases.node, target, 'raw', bases.digest, others=bases.others(one))
    assert savefile.file_digest(target, 'sha512') == bases.digest and only(target)


def test_wrong_content_is_copied_anew(bases):
    """A host that has the right pieces of a torrent of another file: Glance's hash counts."""
    one = bases.cloud.host()
    wrong = f'{bases.path}.wrong'
    with open(bases.path, 'rb') as right, open(wrong, 'wb') as stream:
        stream.write(right.read()[:-MIB] + bytes(MIB))
    store = bases.cloud.store
    storedimages.put(store, store.load(IMAGE).making(base_path=wrong))
    bases.complete(one)


def test_nobody_is_told_of_what_is_not_settled(bases):
    store, one = bases.cloud.store, bases.cloud.host()
    storedimages.put(store, store.load(IMAGE).wishing(settle=False))
    assert bases.complete(one) is None
    assert not bases.told()


def test_what_is_told_is_bounded():
    given = Given()
    given.note(ReportExchange(
        'image', 'two', 'sha512:00', ExchangeWay.EXCHANGED,
        [('10.0.0.1', 60), ('10.0.0.9', 7), ('10.0.0.2', 1 << 60)], 0, gives=True),
        'full base', 100, {'10.0.0.1': 'one', '10.0.0.2': ''})
    told, = given.describe('image')
    assert told['got'] == [['', 200], ['one', 60]]
    for number in range(300):
        given.note(ReportExchange('image', f'host-{number}', 'sha512:00', ExchangeWay.COPIED, [],
                                  100, gives=False), 'full base', 100, {})
    assert len(given.describe('image')) == 200
    assert given.totals()['copied_bytes'] == 300 * 100


def test_a_copy_goes_on_where_the_exchange_of_this_host_is_away(bases, caplog):
    one = bases.cloud.host()
    one.kill()
    stored = bases.target(one) + fullbase.SUFFIX

    def end_after_a_piece():
        if os.path.exists(stored + JOURNAL):
            raise exception.Cancelled('nova-compute ends')

    with pytest.raises(exception.Cancelled):
        Partial(stored, bases.hash, bases.size).copy(bases.node, piece_bytes=8 * MIB, rate=0,
                                                     check=end_after_a_piece)
    with caplog.at_level('INFO'):
        assert complete(bases.path, bases.node, bases.target(one), 'raw', bases.digest,
                        others=bases.others(one))
    assert f'goes on at {8 * MIB} of' in caplog.text
    # Nor are others sent to it.
    assert not bases.cloud.service.offers._lines._lines
