"""What a host tells of itself; gateway and storage service are stand-ins, the files are real."""

import os
import time

import oslo_messaging as messaging
import pytest
from neighbours import Neighbour

from bootcache import certificates, exception, naming
from bootcache.manifest import CacheInfo
from bootcache.rpc import messages
from bootcache.rpc.messages import HoldingsAnswer, ReportHoldings
from bootcache.rpc.report import (
    BaseRead,
    BasesRead,
    HeldImage,
    HostReport,
    PausedGuest,
    PausedGuests,
    UnsettledServers,
)
from bootcache.tier import Medium, TierLimits
from glance_bootcache.smallca import SmallCA
from nova_bootcache.asking.client import HostsClient
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.chains.chains import Chains
from nova_bootcache.gateway.connections import BaseConnections
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.published import warmth
from nova_bootcache.published.holdings import PublishedHoldings
from nova_bootcache.published.warmth import Level
from nova_bootcache.storagenode import Remote
from nova_bootcache.tiers.room import Room

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
THIRD = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
INFO = CacheInfo('cache', 5, 5, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
LIMITS = TierLimits(1 << 30, 1 << 29, 1 << 28)


class Host:
    """Stands for a compute host and for the storage service; its cache's files are real."""

    def __init__(self, directory):
        os.makedirs(os.path.join(directory, 'memory'))
        self.cache = CacheFiles(os.path.join(directory, 'cache'), os.path.join(directory, 'memory'))
        self.cache.prepare()
        self.storage = Neighbour(self, HostsClient)
        self.needs, self.room = Neighbour(self, HostNeeds), Neighbour(self, Room)
        self.hostname, self.limits = 'host-1', {Medium.MEMORY: LIMITS, Medium.DISK: LIMITS}
        self.coming = []
        self.expiry = certificates.Expiry(None, ())
        self.reports, self.answers, self.gone, self.kept = [], [], [], set()
        self.broken = None
        self.numbers = []
        self.chains, self.found, self.not_found = Neighbour(self, Chains), [], {}
        # The gateway, and what settling knows.
        self.gateway = Neighbour(self, Gateway)
        self.connections, self.bases = Neighbour(self, BaseConnections), []
        self.serving, self.gateway_error, self.unsettled = set(), None, set()

    def list_bases(self):
        return self.bases

    def served(self):
        if self.gateway_error is not None:
            raise self.gateway_error
        return self.serving

    def arriving(self):
        return self.coming

    def needs_base(self, image_id):
        return image_id in self.unsettled

    def holds(self, image, medium=Medium.DISK, whole=True, used=1000.0, generation=0):
        """Put a cache image into the cache; its content is of no concern."""
        path = self.cache.path(image)
        target = path
        if medium is Medium.MEMORY:
            target = os.path.join(os.path.dirname(self.cache.directory), 'memory',
                                  os.path.basename(path))
            os.symlink(target, path)
        with open(target, 'wb') as stream:
            stream.write(b'12345')
        remote = Remote(image, '10.0.0.1', 10810, f'base-{image}')
        CacheEntry(remote, INFO if whole else None, 'ab', 1 << 30,
                   generation=generation).save(f'{path}.json')
        os.utime(f'{path}.json', (used, used))

    def send(self, message):
        assert isinstance(message, ReportHoldings)
        if self.broken is not None:
            raise self.broken
        self.reports.append((message.host, message.report))
        self.numbers.append(message.number)
        return self.answers.pop(0) if self.answers else HoldingsAnswer()

    def find_base(self, image_id):
        if error := self.not_found.get(image_id):
            raise error
        self.found.append(image_id)

    def let_go(self, image_id):
        if image_id == THIRD:
            raise exception.StorageDaemonError('the gateway does not answer')
        self.gone.append(image_id)
        return image_id not in self.kept


@pytest.fixture
def host(tmp_path):
    return Host(str(tmp_path))


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / '_base')


def levels(holdings):
    entry = warmth.decode(holdings.published())
    return [entry.level(warmth.image_key(image)) for image in (IMAGE, OTHER, THIRD)]


def test_what_is_published(host, base):
    assert levels(PublishedHoldings(host, base)) == [Level.COLD] * 3
    host.holds(IMAGE)
    host.holds(OTHER, Medium.MEMORY)
    os.mkdir(base)
    for name in (naming.cache_file_name(THIRD), 'swap_1', f'{naming.cache_file_name(THIRD)}_20'):
        with open(os.path.join(base, name), 'w'):
            pass
    assert levels(PublishedHoldings(host, base)) == [Level.DISK, Level.MEMORY, Level.BASE]


def test_what_is_being_fetched_arrives(host, base):
    host.coming = [IMAGE]
    assert levels(PublishedHoldings(host, base)) == [Level.ARRIVING, Level.COLD, Level.COLD]
    host.coming = []
    assert levels(PublishedHoldings(host, base)) == [Level.COLD] * 3


def test_an_empty_cache_image_is_not_warm(host, base):
    host.holds(IMAGE, whole=False)
    assert levels(PublishedHoldings(host, base)) == [Level.COLD] * 3


def test_damaged_and_lost_ones_count_for_nothing(host, base, tmp_path):
    host.holds(IMAGE)
    with open(f'{host.cache.path(IMAGE)}.json', 'w') as stream:
        stream.write('{"version": 99}')
    host.holds(OTHER, Medium.MEMORY)
    os.unlink(tmp_path / 'memory' / naming.cache_file_name(OTHER))
    host.holds(THIRD)
    assert levels(PublishedHoldings(host, base)) == [Level.COLD, Level.COLD, Level.DISK]


def test_a_thousand_images_are_published_in_32_kib(host, base):
    for number in range(1000):
        host.holds(f'{number:08d}-1f2b-4c3d-8e9f-0a1b2c3d4e5f', used=float(number))
    text = PublishedHoldings(host, base).published()
    assert len(text) <= 16 << 10
    entry = warmth.decode(text)
    assert all(entry.level(warmth.image_key(f'{number:08d}-1f2b-4c3d-8e9f-0a1b2c3d4e5f'))
               is Level.DISK for number in range(1000))


# The storage service.

def test_all_is_told_and_then_only_changes(host, base):
    host.holds(IMAGE, used=1234.5, generation=3)
    host.holds(OTHER, Medium.MEMORY)
    host.holds(THIRD, whole=False)
    holdings = PublishedHoldings(host, base)
    holdings.exchange()
    holdings.exchange()
    everything = HostReport(
        {IMAGE: HeldImage(1234.5, Medium.DISK, 3, 5), OTHER: HeldImage(1000.0, Medium.MEMORY, 0,
            5)},
        {Medium.DISK: 1 << 30, Medium.MEMORY: 1 << 30}, frozenset(), paused=PausedGuests(0, ()),
        bases=BasesRead(0, ()), rpc=messages.VERSION)
    assert host.reports == [('host-1', everything), ('host-1', None)]
    host.cache.touch(IMAGE)
    holdings.exchange()
    assert host.reports[-1][1].images[IMAGE].last_use > 1234.5


def test_how_bases_are_read_is_told_and_first_of_those_that_are_not_answered(host, base):
    host.bases = [BaseRead(IMAGE, '10.0.0.5:10810', 'a-0', 900.0, None),
                  BaseRead(THIRD, '', '', 950.0, 940.0)]
    holdings = PublishedHoldings(host, base)
    holdings.exchange()
    assert host.reports[-1][1].bases == BasesRead(2, tuple(reversed(host.bases)))
    host.bases = [BaseRead(IMAGE, 'x', 'a-0', 1.0, None)] * 99
    holdings.exchange()
    told = host.reports[-1][1].bases
    assert told.bases == 99 and len(told.named) == 50


def test_when_its_certificates_end_is_told_and_again_once_they_are_renewed(host, base, tmp_path):
    ca = SmallCA(str(tmp_path / 'ca'))
    host.expiry = certificates.Expiry(ca.issue('host-1', days=20), ['client-cert.pem'])
    holdings = PublishedHoldings(host, base)
    holdings.exchange()
    assert host.reports[-1][1].certificates_end == pytest.approx(time.time() + 20 * 86400,
                                                                    abs=60)
    holdings.exchange()
    assert host.reports[-1][1] is None
    ca.issue('host-1', days=400)
    holdings.exchange()
    assert host.reports[-1][1].certificates_end > time.time() + 399 * 86400


def test_the_bases_that_servers_read_are_told(host, base):
    """Those of unsettled servers, of empty cache images too, and all that the gateway serves."""
    for image in (IMAGE, OTHER):
        host.holds(image, whole=False)
    host.unsettled = {IMAGE}
    host.serving = {THIRD}
    holdings = PublishedHoldings(host, base)
    holdings.exchange()
    assert host.reports[-1][1].needs == {IMAGE, THIRD}
    host.gateway_error = exception.StorageDaemonError('it does not answer')
    holdings.exchange()
    assert host.reports[-1][1].needs == {IMAGE}
    host.unsettled = set()
    holdings.exchange()
    assert host.reports[-1][1].needs == frozenset()


def test_a_service_that_was_restarted_hears_all_again(host, base):
    host.holds(IMAGE)
    holdings = PublishedHoldings(host, base)
    holdings.exchange()
    host.answers = [HoldingsAnswer(resend=True)]
    holdings.exchange()
    assert [report is None for _host, report in host.reports] == [False, True, False]


@pytest.mark.parametrize('error', [messaging.MessagingTimeout('nobody'),
                                   messaging.RemoteError('UnsupportedVersion', '1.2'),
                                   exception.AnswerInvalid('drop: x')])
def test_it_is_told_again_after_nobody_heard_it(host, base, error):
    host.holds(IMAGE)
    holdings = PublishedHoldings(host, base)
    holdings.exchange()
    host.broken = error
    holdings.exchange()
    host.broken = None
    holdings.exchange()
    assert host.reports[-1][1] is not None


def test_what_is_withdrawn_goes(host, base):
    host.answers = [HoldingsAnswer((IMAGE, THIRD, OTHER))]
    host.kept = {OTHER}
    PublishedHoldings(host, base).exchange()
    assert host.gone == [IMAGE, OTHER], 'one that fails keeps no other from going'


def test_servers_that_wait_are_told_with_those_that_depend_on_bootcache(host, base):
    told = PausedGuests(1, (PausedGuest('a', 'it is away', 1000),))
    known = [None, UnsettledServers(2, ())]
    holdings = PublishedHoldings(host, base, lambda: known[0], lambda: told)
    holdings.exchange()
    assert host.reports[-1][1].unsettled is None, 'nobody has looked'
    assert host.reports[-1][1].paused == told
    known.pop(0)
    holdings.exchange()
    assert host.reports[-1][1].unsettled == UnsettledServers(2, ())
    holdings.exchange()
    assert host.reports[-1][1] is None, 'nothing has changed'


# Several storage nodes.

def test_a_report_has_the_number_of_the_last_one_that_changed(host, base):
    """A storage node to which nothing new is told knows by it whether it knows that one."""
    host.holds(IMAGE)
    holdings = PublishedHoldings(host, base)
    for _unchanged in range(3):
        holdings.exchange()
    host.holds(OTHER)
    holdings.exchange()
    holdings.exchange()
    one, two = host.numbers[0], host.numbers[3]
    assert two > one and host.numbers == [one, one, one, two, two]
    assert [report is None for _host, report in host.reports] == [False, True, True, False, True]


def test_one_that_is_sent_again_is_the_same(host, base):
    host.holds(IMAGE)
    holdings = PublishedHoldings(host, base)
    holdings.exchange()
    host.answers = [HoldingsAnswer(resend=True)]
    holdings.exchange()
    assert len(host.numbers) == 3 and len(set(host.numbers)) == 1
    assert host.reports[-1] == host.reports[0]


def test_one_that_nobody_may_have_heard_is_another(host, base):
    """It may have been heard: then a later one of that number would count as known."""
    host.holds(IMAGE)
    holdings = PublishedHoldings(host, base)
    host.broken = messaging.MessagingTimeout('nobody')
    holdings.exchange()
    host.broken = None
    host.holds(OTHER)
    holdings.exchange()
    holdings.exchange()
    # What was not heard is not among them.
    one, two = host.numbers
    assert one == two > 1


def test_bases_that_moved_are_found_before_guests_notice(host, base):
    host.answers = [HoldingsAnswer(moved=(IMAGE, THIRD, OTHER))]
    host.not_found = {IMAGE: exception.BootcacheError('the storage service does not serve it'),
                      THIRD: messaging.MessagingTimeout('nobody')}
    holdings = PublishedHoldings(host, base)
    assert holdings.exchange() == ''
    assert host.found == [OTHER], 'one that is not served yet keeps no other from being found'
    host.answers, host.not_found = [HoldingsAnswer((OTHER,), moved=(IMAGE,))], {}
    holdings.exchange()
    assert host.found == [OTHER, IMAGE] and host.gone == [OTHER]
    holdings.exchange()
    assert host.found == [OTHER, IMAGE], 'it is told no more'
