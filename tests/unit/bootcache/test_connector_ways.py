"""By which ways a base can be read: what QEMU is told, and who has a connector in common.

The name service is a stand-in, and so is what is known of QEMU; functional/test_connectors.py has
real ones.
"""

import contextlib
import socket
import threading

import pytest
from oslo_utils import netutils

from bootcache import exception, qemuimg
from bootcache.ceph.places import RbdClone
from bootcache.connectors import ways
from bootcache.connectors.ways import absent_way, nbd_way, rbd_origin, rbd_way

_REAL = socket.getaddrinfo
# Of this host's certificate.
TLS = 'tls-0123-2f'
CLONE = RbdClone('pool', 'host-1', 'clone')


class Names:
    """Stands for the name service.

    :ivar known: addresses, by name.
    :ivar asked: what it was asked for.
    """

    def __init__(self):
        self.known, self.asked = {'storage-1': ['10.0.0.1'], 'storage-6': ['fd00::1']}, []

    def find(self, host, port, *_how, **_named):
        if netutils.is_valid_ip(host):
            return _REAL(host, port, type=socket.SOCK_STREAM)
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, '', (address, port))
                for address in self.known[host]]


@pytest.fixture(autouse=True)
def nothing_known():
    """What is known of names is forgotten: they are tried for ten seconds."""
    ways._known.clear()


@pytest.fixture
def names(monkeypatch):
    found = Names()
    monkeypatch.setattr(socket, 'getaddrinfo', found.find)
    return found


@pytest.fixture(params=[True, False], ids=['QEMU 7.0', 'before'])
def is_new(request, monkeypatch):
    monkeypatch.setattr(qemuimg, 'knows_open_timeout', lambda: request.param)
    return request.param


@pytest.fixture
def new_qemu(monkeypatch):
    monkeypatch.setattr(qemuimg, 'knows_open_timeout', lambda: True)


# The storage node's name.

@pytest.mark.parametrize(('host', 'address'), [
    ('storage-1', '10.0.0.1'), ('storage-6', 'fd00::1'), ('10.0.0.7', '10.0.0.7'),
    ('fd00::7', 'fd00::7')])
def test_a_name_is_resolved_here(names, is_new, host, address):
    """QEMU's resolver may keep all of a connector waiting."""
    way = nbd_way(host, 10810, 'base-x')
    assert way.node['server']['host'] == address and way.node['server']['port'] == '10810'
    assert 'tls-creds' not in way.node and 'tls-hostname' not in way.node
    assert host in way.text


def test_a_certificate_is_compared_with_the_name_all_the_same(names, new_qemu):
    node = nbd_way('storage-1', 10810, 'base-x', TLS).node
    assert node['server']['host'] == '10.0.0.1'
    assert (node['tls-creds'], node['tls-hostname']) == (TLS, 'storage-1')


def test_it_is_compared_with_an_address_where_that_is_all_there_is(names, is_new):
    node = nbd_way('10.0.0.7', 10810, 'base-x', TLS).node
    assert node['server']['host'] == '10.0.0.7' and node['tls-creds'] == TLS
    assert 'tls-hostname' not in node


def test_before_qemu_7_0_a_certificate_is_compared_with_what_qemu_connects_to(names, monkeypatch):
    monkeypatch.setattr(qemuimg, 'knows_open_timeout', lambda: False)
    node = nbd_way('storage-1', 10810, 'base-x', TLS).node
    assert node['server']['host'] == 'storage-1' and node['tls-creds'] == TLS
    assert 'tls-hostname' not in node and names.asked == []


def test_a_server_that_says_nothing_is_given_up_where_qemu_can(names, is_new):
    assert ('open-timeout' in nbd_way('storage-1', 10810, 'base-x').node) is is_new


@pytest.mark.parametrize(('said', 'is_known', 'changes_wait'), [
    ('qemu-img version 6.2.0 (Debian 1:6.2+dfsg-2ubuntu6.24)', False, False),
    ('qemu-img version 7.0.0', True, False),
    ('qemu-img version 7.2.22 (Debian 1:7.2+dfsg-7)', True, False),
    ('qemu-img version 10.0.2', True, True), ('something else', False, False)])
def test_what_qemu_does_its_version_tells(monkeypatch, said, is_known, changes_wait):
    monkeypatch.setattr(qemuimg, '_run', lambda *_arguments, **_options: said)
    monkeypatch.setattr(qemuimg, 'major_version', qemuimg.major_version.__wrapped__)
    assert qemuimg.knows_open_timeout() is is_known and qemuimg.changes_wait() is changes_wait


def test_a_name_that_is_not_known_is_a_node_that_is_away(names, new_qemu):
    with pytest.raises(exception.StorageNodeAway, match=r'storage-9 is not resolved: .*not known'):
        nbd_way('storage-9', 10810, 'base-x')


def test_a_resolver_that_does_not_answer_is_not_waited_for(new_qemu, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, 'getaddrinfo', lambda *_arguments, **_how: over.wait())
    monkeypatch.setattr(ways, '_RESOLVE_SECONDS', 0.05)
    try:
        with pytest.raises(exception.StorageNodeAway, match='the name service does not answer'):
            nbd_way('storage-1', 10810, 'base-x')
    finally:
        over.set()


def test_a_resolver_that_answers_late_is_heard(names, new_qemu, monkeypatch):
    """The first name server of resolv.conf may be away: five seconds are lost, each time."""
    goes_on, found = threading.Event(), socket.getaddrinfo
    monkeypatch.setattr(socket, 'getaddrinfo',
                        lambda *arguments, **how: goes_on.wait() and found(*arguments, **how))
    monkeypatch.setattr(ways, '_RESOLVE_SECONDS', 0.05)
    with pytest.raises(exception.StorageNodeAway, match='the name service does not answer'):
        nbd_way('storage-1', 10810, 'base-x')
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == 'bootcache-resolve':
            thread.join()
    assert nbd_way('storage-1', 10810, 'base-x').node['server']['host'] == '10.0.0.1'


@pytest.mark.parametrize('is_known', [True, False])
def test_a_name_is_asked_for_once_in_ten_seconds(names, new_qemu, is_known):
    """A hundred bases are looked for after each other, and a name server may hang."""
    host = 'storage-1' if is_known else 'storage-9'
    for _base in range(3):
        with contextlib.suppress(exception.StorageNodeAway):
            nbd_way(host, 10810, 'base-x')
    assert names.asked == [host]


def test_of_several_addresses_it_is_one_that_somebody_listens_at(names, new_qemu):
    with socket.create_server(('127.0.0.2', 0)) as exporter:
        port = exporter.getsockname()[1]
        names.known['storage-1'] = ['127.0.0.3', '127.0.0.2']
        assert nbd_way('storage-1', port, 'base-x').node['server']['host'] == '127.0.0.2'
        ways._known.clear()
    # Nobody listens: the first one, as the name service has it.
    assert nbd_way('storage-1', port, 'base-x').node['server']['host'] == '127.0.0.3'


def test_where_no_thread_can_be_started_it_is_away_too(names, new_qemu, monkeypatch):
    def refuse(_thread):
        raise RuntimeError('can\'t start new thread')

    monkeypatch.setattr(threading.Thread, 'start', refuse)
    with pytest.raises(exception.StorageNodeAway, match='new thread'):
        nbd_way('storage-1', 10810, 'base-x')


# What one connector opens.

def test_bases_of_a_storage_node_have_a_connector_in_common(names, new_qemu):
    one = nbd_way('storage-1', 10810, 'base-x')
    assert nbd_way('storage-1', 10810, 'base-y').origin == one.origin
    assert len(one.origin) == 16 and int(one.origin, 16) >= 0


@pytest.mark.parametrize('other', [('storage-1', 10811, 'base-x'),
                                   ('storage-6', 10810, 'base-x'),
                                   ('storage-1', 10810, 'base-x', TLS)],
                         ids=['port', 'node', 'certificate'])
def test_another_node_or_certificate_has_another_one(names, new_qemu, other):
    assert nbd_way(*other).origin != nbd_way('storage-1', 10810, 'base-x').origin


def test_so_has_a_certificate_that_was_renewed(names, is_new):
    assert nbd_way('storage-1', 10810, 'base-x', TLS).origin \
        != nbd_way('storage-1', 10810, 'base-x', 'tls-4567-2f').origin


def test_all_of_a_user_in_ceph_have_one_in_common():
    way = rbd_way(CLONE, '/etc/ceph/ceph.conf', 'bootcache')
    assert way.origin == rbd_origin('/etc/ceph/ceph.conf', 'bootcache') and CLONE.path == way.text
    assert way.node == {'driver': 'rbd', 'pool': 'pool', 'namespace': 'host-1', 'image': 'clone',
                        'conf': '/etc/ceph/ceph.conf', 'user': 'bootcache'}
    assert rbd_origin('/etc/ceph/ceph.conf', 'other') != way.origin
    assert rbd_origin('/etc/ceph/other.conf', 'bootcache') != way.origin


def test_each_base_that_is_away_has_one_of_its_own():
    way = absent_way('base-x', 1 << 30)
    assert way.node['image']['size'] == 1 << 30
    assert absent_way('base-y', 1 << 30).origin != way.origin
