"""Hosts that have an exporter of their own: another one gets nothing there, whatever it knows."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import nbd
import pytest
from compute_host import boot, compare
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from encrypted import check_opens, read, through_gateway
from encrypted import storage_conf as tls_conf  # noqa: F401
from functional_tools import free_port, until
from glance_rbd import content_of, obtained
from storage_node import IMAGE, MIB, content

from bootcache import certificates, exception, naming, tls
from bootcache.ceph import places
from bootcache.connectors import connector, connectors
from bootcache.workingset import Extent
from glance_bootcache import smallca
from glance_bootcache.storage.clients import Client
from glance_bootcache.storage.exporters import Exporters
from nova_bootcache.storagenode import Encryption, nbd_node

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


@pytest.fixture
def storage_conf(tls_conf):  # noqa: F811
    """With ports for exporters of single hosts."""
    first = free_port()
    tls_conf.set_override('export_ports', f'{first}-{first + 2}', 'bootcache')
    return tls_conf


class Host:
    """A compute host that asks the storage node, with a certificate."""

    def __init__(self, node, ca, name):
        self.node, self.name, self.directory = node, name, ca.issue(name)
        self.certificate = certificates.distinguished_name(self.directory)

    def asks(self):
        """As plan_boot does; where it is told to connect to."""
        exporters, manifest = self.node.exporter, self.node.manifest
        whose = exporters.know(self.name, self.certificate)
        exporters.ensure(manifest, self.node.cache_path or None, (whose,))
        return exporters.describe(manifest, whose)

    def connects(self, answer, directory=None):
        """Open what an answer names, with certificates of its own or others."""
        check_opens(nbd_node(*answer['server'], answer['base_export'], tls.credentials_id(
            directory or self.directory, tls.Endpoint.CLIENT)))

    def client(self, answer):
        """Connect with libnbd, to choose an export or to list them."""
        handle = nbd.NBD()
        handle.set_tls(nbd.TLS_REQUIRE)
        handle.set_tls_certificates(self.directory)
        handle.set_opt_mode(True)
        handle.connect_tcp(answer['server'][0], str(answer['server'][1]))
        return handle

    def lists(self, answer):
        """The names of all exports that it is told there."""
        handle, names = self.client(answer), []
        handle.opt_list(lambda name, _description: names.append(name))
        handle.opt_abort()
        return set(names)

    def gets_nothing(self, answer, export):
        """It neither lists nor reads anything there."""
        with pytest.raises(nbd.Error):
            pytest.fail(f'it was told {self.lists(answer)}')
        with pytest.raises(nbd.Error):
            handle = self.client(answer)
            handle.set_export_name(export)
            handle.opt_go()
            pytest.fail(f'it read {handle.pread(512, 0)}')


def certify(ca, directory, *parts):
    """Give a host's client another certificate, whose name has these parts."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = smallca._builder(x509.Name([x509.NameAttribute(kind, value)
                                              for kind, value in parts]),
                                   ca._certificate.subject, key.public_key(), 1).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False).sign(
        ca._key, hashes.SHA256())
    Path(directory, 'client-key.pem').write_text(smallca._key_pem(key))
    Path(directory, 'client-cert.pem').write_text(smallca._pem(certificate))


@pytest.fixture
def one(node, ca):
    return Host(node, ca, 'compute-1')


@pytest.fixture
def other(node, ca):
    return Host(node, ca, 'compute-2')


def runs(node):
    """The ports of exporters that run; 0 stands for that of all hosts."""
    own = {client.port for client, each in node.exporter._own.items() if each.runs}
    return own | {0} if node.exporter.common.runs else own


def test_others_get_nothing_of_what_a_host_has_asked_for(node, one, other, other_ca):
    node.build(*SET)
    node.exporter.stop()
    answer = one.asks()
    one.connects(answer)
    names = {answer['base_export'], answer['cache_export']}
    assert one.lists(answer) == names
    # A certificate of the same CA, the port, and all names.
    for name in names:
        other.gets_nothing(answer, name)
    # The other one's own exporter has what that one asked for.
    others = other.asks()
    assert others['server'] != answer['server']
    one.gets_nothing(others, others['base_export'])
    # Without a certificate, and with another CA's.
    with pytest.raises(exception.BootcacheError):
        check_opens(nbd_node(*answer['server'], answer['base_export']))
    with pytest.raises(exception.BootcacheError, match='issuer'):
        one.connects(answer, other_ca.issue('compute-1'))
    one.connects(answer)
    assert runs(node) == {answer['server'][1], others['server'][1]}


@pytest.mark.parametrize('parts', [
    [(NameOID.COUNTRY_NAME, 'DE'), (NameOID.STATE_OR_PROVINCE_NAME, 'Berlin'),
     (NameOID.ORGANIZATION_NAME, 'One, "Two" & <Three>; #4+5=9\\'), (NameOID.COMMON_NAME, 'one')],
    [(NameOID.COMMON_NAME, 'one'), (NameOID.ORGANIZATIONAL_UNIT_NAME, ' Räume '),
     (NameOID.LOCALITY_NAME, '#1')],
    [(NameOID.DOMAIN_COMPONENT, 'org'), (NameOID.DOMAIN_COMPONENT, 'example'),
     (NameOID.USER_ID, 'nova')]])
def test_names_in_certificates_are_as_qemu_has_them(node, ca, one, other, parts):
    certify(ca, one.directory, *parts)
    one.certificate = certificates.distinguished_name(one.directory)
    answer = one.asks()
    one.connects(answer)
    other.gets_nothing(answer, answer['base_export'])


def test_a_name_of_which_qemu_s_form_is_not_known_is_not_told(ca, one):
    certify(ca, one.directory, (NameOID.EMAIL_ADDRESS, 'nova@example.org'))
    with pytest.raises(exception.ConfigurationError, match='not usual'):
        certificates.distinguished_name(one.directory)
    assert Encryption(one.directory).name() == ''
    assert Encryption().name() == '' == Encryption('/nowhere').name()


def test_nothing_is_served_that_a_host_has_not_asked_for(node, one, other):
    """The image of one is none of the other's, who has an exporter for another image."""
    other.asks()
    for each in node.exporter._own.values():
        each.withdraw_idle(IMAGE.__eq__, -1, with_cache=True)
    answer = one.asks()
    empty = other.node.exporter.describe(node.manifest, other.certificate)
    assert one.lists(answer) and other.lists(empty) == set()


def test_what_nobody_uses_any_more_goes_and_old_names_are_of_no_use(node, one, monkeypatch):
    node.build(*SET)
    node.exporter.stop()
    answer = one.asks()
    handle = one.client(answer)
    handle.set_export_name(answer['base_export'])
    handle.opt_go()
    # It is connected to the base, and has the cache image.
    node.exporter.withdraw_idle({IMAGE: ()}, -1)
    node.exporter.end_unused(-1)
    assert handle.pread(512, 0)
    assert one.lists(answer) == {answer['base_export']}
    # Who says that it needs the image keeps it.
    handle.shutdown()

    def goes(*keep):
        node.exporter.withdraw_idle({IMAGE: keep}, -1)
        return not node.exporter._own[Client(one.certificate, answer['server'][1])]._look()

    assert not goes(*node.exporter.of_hosts(['compute-1']))
    until(goes, 'the connection\'s end')
    with pytest.raises(nbd.Error):
        gone = one.client(answer)
        gone.set_export_name(answer['base_export'])
        gone.opt_go()
    node.exporter.end_unused(-1)
    assert runs(node) == set()
    # Asked for, it is there again, at the same place.
    assert one.asks() == answer
    one.connects(answer)
    # Of one that crashes, and that nobody needs, nothing is left that names a process.
    own, = node.exporter._own.values()
    os.kill(own._daemon.pid(), signal.SIGKILL)
    until(lambda: not own.runs, 'its end')
    assert os.path.exists(own._daemon.pid_path)
    node.exporter.end_unused(-1)
    assert not os.path.exists(own._daemon.pid_path) and one.asks() == answer


def test_a_server_reads_on_through_crash_and_restart(node, one, storage_conf, hosts, directory):
    host = hosts(tls_directory=one.directory)
    node.build(*SET)
    node.exporter.stop()
    host.service.frozen = one.asks()
    assert boot(host, f'{directory}/disk')
    compare(f'{directory}/disk', node)
    assert host.service.named == {('host-1', one.certificate)}
    handle = through_gateway(host, f'base-{IMAGE}')
    address, port = host.service.frozen['server']
    [base] = host.connections.list_bases()
    assert (base.image_id, base.way) == (IMAGE, naming.tcp_address(address, port))
    # The storage service is started anew, as its host's servers run: it needs the image.
    again = Exporters(storage_conf, f'{directory}/clients.json')
    assert not again.start()
    assert {client.port for client in again._own} == {port}
    pid = again._own[Client(one.certificate, port)]._daemon.pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not again._own[Client(one.certificate, port)].runs, 'its end')
    again.start()
    again.ensure(node.manifest, node.cache_path, again.of_hosts(['compute-1']))
    node.exporter = again
    assert read(handle) == content(node)
    handle.shutdown()


def test_what_is_not_known_of_a_host_has_nobody_served(node, one, other, storage_conf, directory):
    """Neither a name that is made up, nor a certificate that is not told, nor a day's outage."""
    exporters = node.exporter
    for host, certificate in ('compute-1', ''), ('', one.certificate):
        with pytest.raises(exception.MessageRefused, match='certificate: is not told'):
            exporters.know(host, certificate)
    assert exporters.of_hosts(['made-up']) == set() == exporters.of_hosts([])
    one.asks()
    later = node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    later._clients._clock = lambda: time.time() + 90_000
    assert not later.start()
    later.ensure(node.manifest, None, later.of_hosts(['compute-1', 'made-up']))
    assert runs(node) == {one.asks()['server'][1]}
    one.connects(one.asks())
    other.gets_nothing(one.asks(), f'base-{IMAGE}')
    with pytest.raises(exception.StorageDaemonError, match='no port of'):
        later.ensure(node.manifest, None, ('CN=never-seen',))
    assert not later.common.runs


def test_who_is_not_named_gets_no_exporter(node, one, other, storage_conf, directory):
    storage_conf.set_override('tls_client_names', ['CN=compute-2'], 'bootcache')
    node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    with pytest.raises(exception.MessageRefused, match=r"'CN=compute-1' is none of"):
        one.asks()
    other.connects(other.asks())


def test_one_that_was_another_client_s_is_not_taken_over(node, one, other, storage_conf, directory):
    """As where the file that tells of hosts is an older one: their ports are others'."""
    node.build(*SET)
    node.exporter.stop()
    told = one.asks()
    pid = node.exporter._of(one.certificate)._daemon.pid()
    Path(directory, 'clients.json').write_text(json.dumps({'version': 1, 'clients': {
        other.certificate: {'port': told['server'][1], 'hosts': {'compute-2': time.time()}}}}))
    node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    node.exporter.start()
    assert node.exporter._of(other.certificate)._daemon.pid() != pid
    others = other.asks()
    assert others['server'] == told['server']
    other.connects(others)
    one.gets_nothing(told, told['base_export'])


def test_one_that_listens_elsewhere_is_not_taken_over(node, one, storage_conf, directory):
    storage_conf.clear_override('export_ports', 'bootcache')
    shared = Exporters(storage_conf, f'{directory}/clients.json')
    assert shared.start() and not shared.start()
    storage_conf.set_override('export_port', free_port(), 'bootcache')
    node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    assert node.exporter.start() and not node.exporter.start()
    one.connects(one.asks())


def test_more_hosts_than_ports(node, ca, monkeypatch):
    """Who comes too late is refused, and nobody else: its servers go the stock way."""
    answers = [Host(node, ca, f'compute-{number}') for number in range(4)]
    told = [host.asks() for host in answers[:3]]
    with pytest.raises(exception.StorageDaemonError, match='export_ports'):
        answers[3].asks()
    for host, answer in zip(answers, told, strict=False):
        host.connects(answer)
    # One has ended: its port is that of its host for a week.
    own = node.exporter._own[Client(answers[0].certificate, told[0]['server'][1])]
    own.stop()
    with pytest.raises(exception.StorageDaemonError, match='export_ports'):
        answers[3].asks()
    assert answers[0].asks() == told[0]
    own.stop()
    monkeypatch.setattr(node.exporter._clients, '_clock', lambda: time.time() + 8 * 86400)
    node.exporter.end_unused(3600)
    assert answers[3].asks()['server'] == told[0]['server']
    answers[3].connects(told[0])
    answers[0].gets_nothing(told[0], told[0]['base_export'])


def test_one_that_ends_as_it_is_asked_serves_nothing(node, storage_conf, monkeypatch, directory):
    """That of all hosts, when hosts have exporters of their own for the first time."""
    node.exporter.common.start()
    exporters = Exporters(storage_conf, f'{directory}/clients.json')
    assert not exporters.start() and exporters.common.runs
    ask = exporters.common.cache_places

    def ends_before():
        exporters.end_unused(0)
        return ask()

    monkeypatch.setattr(exporters.common, 'cache_places', ends_before)
    assert exporters.cache_places() == {} and not exporters.common.runs
    assert exporters.cache_places() == {}


def test_a_cache_image_leaves_all_of_them(node, one, other, tmp_path):
    node.build(*SET)
    node.exporter.stop()
    answers = [one.asks(), other.asks()]
    moved = tmp_path / 'moved'
    shutil.copyfile(node.cache_path, moved)
    assert set().union(*node.exporter.cache_places().values()) == {node.cache_path}
    node.exporter.switch_cache(node.manifest, str(moved))
    assert set().union(*node.exporter.cache_places().values()) == {str(moved)}
    handle = other.client(answers[1])
    handle.set_export_name(answers[1]['cache_export'])
    handle.opt_go()
    with node.exporter.withdrawn(node.manifest) as gone:
        assert not gone
    handle.shutdown()

    def leaves():
        with node.exporter.withdrawn(node.manifest) as gone:
            return gone

    until(leaves, 'the end of the connection')
    assert node.exporter.cache_places() == {}
    assert not node.exporter.retire(IMAGE, with_base=False)
    until(lambda: node.exporter.retire(IMAGE, with_base=True), 'the bases\' end')
    assert one.lists(answers[0]) == other.lists(answers[1]) == set()


def test_logs_of_all_are_looked_at(node, one, other):
    one.asks(), other.asks()
    logs = node.exporter.log_paths
    assert len(logs) == 3 and len([path for path in logs if os.path.exists(path)]) == 2
    assert node.exporter.suspend(IMAGE) and not node.exporter.suspend(IMAGE)
    node.exporter.cut_off(f'base-{IMAGE}')
    for host in one, other:
        with pytest.raises(exception.StorageDaemonError, match='cannot be read in a place'):
            host.asks()
    node.exporter.resume(IMAGE)
    one.connects(one.asks())


def test_a_base_in_ceph_is_open_for_as_long_as_one_of_them_serves_it(ceph_conf, ceph_image, node,
                                                                     one, other, monkeypatch):
    monkeypatch.setattr(connectors, '_FRESH_SECONDS', 0)
    path, facts = ceph_image
    manifest, exporters = obtained(ceph_conf, facts), node.exporter
    exporters._clones.start()
    exporters.ensure(manifest, None, [exporters.know(host.name, host.certificate)
                                      for host in (one, other)])
    clones = exporters._clones._connectors
    name = places.clone_of(manifest.made.base_path).name

    def daemon():
        return connector.daemon(clones._directory, clones.name_of(name))

    def reads(host):
        answer = exporters.describe(manifest, host.certificate)
        handle = host.client(answer)
        handle.set_export_name(answer['base_export'])
        handle.opt_go()
        data = handle.pread(MIB, 9 * MIB)
        handle.shutdown()
        return data == content_of(path)[9 * MIB:10 * MIB]

    def gives_up(host):
        until(lambda: exporters._of(host.certificate).retire(facts.image_id, with_base=True),
              'the end of its connection')

    assert reads(one) and reads(other) and len(daemon().exports()) == 1
    gives_up(one)
    # What is read by the other one is opened again.
    os.kill(daemon().pid(), signal.SIGKILL)
    until(lambda: not clones.runs(clones.name_of(name)), 'its end')
    exporters.keep_open([manifest])
    assert reads(other) and len(daemon().exports()) == 1
    gives_up(other)
    exporters.keep_open([manifest])
    assert not clones.name_of(name) and not os.listdir(clones._directory)
