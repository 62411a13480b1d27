"""Certificates of exporters and hosts: checked at start, renewed and revoked while servers run."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
from compute_host import boot
from encrypted import opens, read, through_gateway
from encrypted import storage_conf as storage_conf  # the fixture
from functional_tools import until
from storage_node import IMAGE, content

from bootcache import certificates, exception, savefile, tls
from bootcache.connectors.ways import nbd_way
from glance_bootcache import startchecks
from glance_bootcache.storage.exporters import Exporters


def is_up_to_date(host, node):
    """Whether a host reads its base by the certificates that are there now, or by none."""
    remote, connectors = node.remote(), host.connections._connectors
    return connectors.is_by(connectors.name_of(remote.export), nbd_way(
        remote.host, remote.port, remote.export, host.encryption.credentials(remote.tls)))


def test_renewed_certificates_of_a_host_are_taken_below_its_servers(node, ca, certified, directory):
    node.serve()
    host = certified()
    assert boot(host, f'{directory}/disk')
    handle = through_gateway(host, f'base-{IMAGE}')
    before = host.connections._connectors.name_of(node.remote().export)
    assert is_up_to_date(host, node)
    host.upkeep.connect_bases()
    assert host.connections._connectors.name_of(node.remote().export) == before
    ca.issue('compute-1')
    assert not is_up_to_date(host, node)
    host.upkeep.connect_bases()
    assert is_up_to_date(host, node)
    # The server was connected all the time.
    assert read(handle) == content(node)
    assert not host.connections._connectors.runs(before)
    handle.shutdown()


def test_a_connection_goes_on_where_renewed_files_do_not_fit(node, ca, certified, directory):
    node.serve()
    host = certified()
    assert boot(host, f'{directory}/disk')
    handle = through_gateway(host, f'base-{IMAGE}')
    before = host.connections._connectors.name_of(node.remote().export)
    shutil.copy(f'{ca.issue("compute-2")}/client-key.pem', f'{directory}/ca/compute-1')
    host.upkeep.connect_bases()
    assert host.gateway.ensure_base(node.remote()) == f'base-{IMAGE}'
    assert host.connections._connectors.name_of(node.remote().export) == before
    assert boot(host, f'{directory}/other')
    assert read(handle) == content(node)
    handle.shutdown()


def test_renewed_certificates_of_the_exporter_are_taken(node, ca, certified, directory):
    node.serve()
    host = certified()
    assert boot(host, f'{directory}/disk')
    handle = through_gateway(host, f'base-{IMAGE}')
    pid = node.exporter.common._daemon.pid()
    assert not node.exporter.start() and node.exporter.common._daemon.pid() == pid
    # Files that do not fit, as while they are copied, change nothing.
    good = savefile.file_digest(f'{directory}/ca/storage-1/server-key.pem')
    shutil.copy(f'{directory}/ca/storage-1/server-key.pem', f'{directory}/kept')
    shutil.copy(f'{ca.issue("storage-2")}/server-key.pem', f'{directory}/ca/storage-1')
    assert not node.exporter.start() and node.exporter.common._daemon.pid() == pid
    shutil.copy(f'{directory}/kept', f'{directory}/ca/storage-1/server-key.pem')
    assert savefile.file_digest(f'{directory}/ca/storage-1/server-key.pem') == good
    ca.issue('storage-1', ['127.0.0.1'])
    assert node.exporter.start() and node.exporter.common._daemon.pid() != pid
    node.serve()
    # The gateway has connected again: its server sees no error.
    assert read(handle) == content(node)
    handle.shutdown()


def test_the_exporter_goes_on_where_renewed_certificates_are_for_another_address(
        node, ca, certified, directory, caplog):
    node.serve()
    host = certified()
    assert boot(host, f'{directory}/disk')
    handle = through_gateway(host, f'base-{IMAGE}')
    pid = node.exporter.common._daemon.pid()
    shutil.copytree(ca.issue('elsewhere', ['192.0.2.10']), f'{directory}/ca/storage-1',
                    dirs_exist_ok=True)
    for _time in range(2):
        assert not node.exporter.start() and node.exporter.common._daemon.pid() == pid
    line, = (line for line in caplog.messages if 'goes on with the certificates' in line)
    assert 'is for elsewhere, 192.0.2.10, not for 127.0.0.1' in line and 'advertise_host' in line
    assert read(handle) == content(node)
    opens(node, ca.issue('compute-2'))
    handle.shutdown()


def test_none_is_started_with_a_certificate_for_another_address(node, ca, directory):
    """As one that has crashed, or a host's own as it asks: hosts would refuse it."""
    node.exporter.stop()
    ca.issue('storage-1', ['192.0.2.10'])
    with pytest.raises(exception.StorageDaemonError, match=r'not for 127\.0\.0\.1, which hosts'):
        node.exporter.start()
    ca.issue('storage-1', ['127.0.0.1'])
    assert node.exporter.start()


def test_what_needs_an_exporter_that_cannot_be_started_waits(node, ca, directory):
    """An error of the configuration would be the end of an image's work."""
    node.exporter.stop()
    os.unlink(f'{directory}/ca/storage-1/server-key.pem')
    with pytest.raises(exception.StorageDaemonError, match=r'server-key\.pem cannot be read'):
        node.exporter.start()
    ca.issue('storage-1', ['127.0.0.1'])
    assert node.exporter.start()


def test_who_is_not_named_is_not_let_in_by_a_daemon_that_runs(node, storage_conf, ca,
                                                              directory):
    node.serve()
    one, other = ca.issue('compute-1'), ca.issue('elsewhere-1')
    opens(node, one)
    opens(node, other)
    pid = node.exporter.common._daemon.pid()
    storage_conf.set_override('tls_client_names', ['CN=compute-*'], 'bootcache')
    # As the storage service does that is started again.
    node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    assert not node.exporter.start() and node.exporter.common._daemon.pid() == pid
    opens(node, one)
    with pytest.raises(exception.BootcacheError):
        opens(node, other)
    # A daemon that is started with it knows it from the beginning.
    node.exporter.stop()
    node.exporter.start()
    node.serve()
    opens(node, one)
    with pytest.raises(exception.BootcacheError):
        opens(node, other)


def test_another_ca_comes_by_steps_that_stop_nobody(node, ca, other_ca, certified, storage_conf,
                                                    directory):
    """As the page has it: both CAs everywhere, then certificates of the new one, then it alone."""
    node.serve()
    host = certified()
    assert boot(host, f'{directory}/disk')
    handle = through_gateway(host, f'base-{IMAGE}')
    places = storage_conf.bootcache.tls_directory, f'{directory}/ca/compute-1'

    def trust(*cas):
        """Only ca-cert.pem is another one."""
        bundle = ''.join(Path(f'{each}/ca-cert.pem').read_text() for each in cas)
        for place in places:
            Path(f'{place}/ca-cert.pem').write_text(bundle)

    def taken():
        assert node.exporter.start()
        node.serve()
        for _round in range(2):
            # In the next one it sees that it is done.
            host.upkeep.connect_bases()
        assert is_up_to_date(host, node)
        assert read(handle) == content(node)
        assert boot(host, f'{directory}/disk-{len(os.listdir(directory))}')

    old, new = f'{directory}/ca', f'{directory}/other-ca'
    new_ones = other_ca.issue('storage-1', ['127.0.0.1']), other_ca.issue('compute-1')
    trust(old, new)
    taken()
    for issued, place in zip(new_ones, places, strict=True):
        for file in os.listdir(issued):
            if file != 'ca-cert.pem':
                shutil.copy(f'{issued}/{file}', place)
        # One after the other: the storage node goes first.
        if place == places[0]:
            taken()
    for _round in range(2):
        host.upkeep.connect_bases()
    trust(new)
    taken()
    with pytest.raises(exception.BootcacheError):
        opens(node, ca.issue('compute-2'))
    handle.shutdown()


def test_a_revoked_certificate_is_not_let_in(node, storage_conf, ca):
    node.serve()
    one, other = ca.issue('compute-1'), ca.issue('compute-2')
    opens(node, one)
    shutil.copy(ca.revoke(['compute-1']), storage_conf.bootcache.tls_directory)
    assert node.exporter.start()
    node.serve()
    opens(node, other)
    with pytest.raises(exception.BootcacheError):
        opens(node, one)


def test_guests_go_on_when_an_exporter_begins_to_speak_tls(
        node, storage_conf, ca, hosts, directory):
    storage_conf.clear_override('tls_directory', 'bootcache')
    unencrypted = Exporters(storage_conf, f'{directory}/clients.json')
    node.exporter = unencrypted
    node.serve()
    host = hosts(tls_directory=ca.issue('compute-1'), allow_plain_nbd=True)
    assert boot(host, f'{directory}/disk')
    handle = through_gateway(host, f'base-{IMAGE}')
    storage_conf.set_override('tls_directory', f'{directory}/ca/storage-1', 'bootcache')
    node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    assert node.exporter.start()
    node.serve()
    until(lambda: is_up_to_date(host, node), 'the way by TLS')
    assert node.remote().tls
    assert read(handle) == content(node)
    handle.shutdown()


# libvirt's places.

def libvirts(folder, group, address):
    """Make what libvirt's pages on TLS have made for migration: RSA, root's, for QEMU's group.

    They have GnuTLS's certtool make it, which is not everywhere; OpenSSL makes the same.
    """
    folder.mkdir(parents=True)

    def openssl(*command):
        subprocess.run(['openssl', *map(str, command)], check=True, capture_output=True)

    # The CA's own key is elsewhere.
    key = folder.parent / 'ca-key.pem'
    openssl('req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', 9, '-subj', '/CN=Example CA',
            '-addext', 'keyUsage=critical,keyCertSign', '-keyout', key,
            '-out', folder / 'ca-cert.pem')
    for kind, use in ('server', 'serverAuth'), ('client', 'clientAuth'):
        extensions = folder.parent / 'extensions'
        extensions.write_text(
            'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,'
            f'keyEncipherment\nextendedKeyUsage={use}\nsubjectAltName=DNS:host-1,IP:{address}\n')
        request = folder.parent / 'request'
        openssl('req', '-newkey', 'rsa:2048', '-nodes', '-subj', '/O=Example/CN=host-1',
                '-keyout', folder / f'{kind}-key.pem', '-out', request)
        openssl('x509', '-req', '-days', 9, '-in', request, '-CA', folder / 'ca-cert.pem',
                '-CAkey', key, '-CAcreateserial', '-extfile', extensions,
                '-out', folder / f'{kind}-cert.pem')
    for path in folder, *folder.glob('*-key.pem'):
        os.chown(path, 0, group)
        path.chmod(0o750 if path == folder else 0o640)
    return str(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason='it is somebody else for a moment')
@pytest.mark.parametrize('place', ['qemu', 'libvirt-migrate'])
def test_certificates_in_libvirts_places_are_taken(storage_conf, node, hosts, tmp_path, directory,
                                                   place):
    tmp_path.chmod(0o755)
    path = libvirts(tmp_path / 'pki' / place, 64055, '127.0.0.1')
    storage_conf.set_override('tls_directory', path, 'bootcache')
    startchecks.check_place(storage_conf)
    node.exporter.stop()
    node.exporter = Exporters(storage_conf, f'{directory}/clients.json')
    node.exporter.start()
    node.serve()
    host = hosts(tls_directory=path)
    assert boot(host, f'{directory}/disk')
    handle = through_gateway(host, f'base-{IMAGE}')
    assert read(handle) == content(node)
    handle.shutdown()
    assert certificates.distinguished_name(path) == 'O=Example,CN=host-1'


@pytest.mark.skipif(os.geteuid() != 0, reason='it is somebody else for a moment')
def test_who_is_in_the_group_of_libvirts_key_may_use_it(tmp_path):
    for folder in tmp_path.parents[:3]:
        folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    path, groups = libvirts(tmp_path / 'qemu', 64055, '127.0.0.1'), os.getgroups()

    def uses(*others):
        os.setgroups(others)
        os.setegid(65534)
        os.seteuid(65534)
        try:
            return tls.credentials_id(path, tls.Endpoint.CLIENT)
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

    assert uses(64055) == tls.credentials_id(path, tls.Endpoint.CLIENT)
    with pytest.raises(exception.ConfigurationError) as refused:
        uses()
    assert f'let user {pwd.getpwuid(65534).pw_name} read it' in str(refused.value)


# Start.
