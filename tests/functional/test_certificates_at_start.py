"""Certificates that are wrong keep services from starting, and what is said of them."""

import os
import pwd
import shutil
import subprocess

import pytest
from compute_host import boot
from encrypted import opens
from encrypted import storage_conf as storage_conf  # the fixture

from bootcache import certificates, exception, tier, tls
from glance_bootcache import startchecks
from glance_bootcache.smallca import SmallCA
from glance_bootcache.storage.exporters import Exporters


def test_the_start_is_checked_with_certificates(storage_conf, caplog):
    startchecks.check_place(storage_conf)
    assert not caplog.messages


def test_a_client_s_certificate_in_the_server_s_place_is_told(storage_conf, ca, node, caplog):
    path = storage_conf.bootcache.tls_directory
    for kind in 'cert', 'key':
        shutil.copy(f'{path}/client-{kind}.pem', f'{path}/server-{kind}.pem')
    startchecks.check_place(storage_conf)
    assert f'{path}/server-cert.pem is not one of a server' in caplog.text
    # QEMU's clients take it: so it is not refused.
    assert node.exporter.start()
    node.serve()
    opens(node, ca.issue('compute-1'))


def test_a_certificate_for_another_address_keeps_the_service_from_starting(storage_conf, ca):
    path = ca.issue('storage-2', ['192.0.2.10'])
    storage_conf.set_override('tls_directory', path, 'bootcache')
    with pytest.raises(exception.ConfigurationError) as refused:
        startchecks.check_place(storage_conf)
    assert f'{path}/server-cert.pem is for storage-2, 192.0.2.10, not for 127.0.0.1, which hosts' \
        ' connect to; make one for it, or name the certificate\'s in [bootcache]advertise_host' \
        in str(refused.value)
    storage_conf.set_override('advertise_host', 'storage-2', 'bootcache')
    startchecks.check_place(storage_conf)
    storage_conf.set_override('advertise_host', 'storage-1', 'bootcache')
    with pytest.raises(exception.ConfigurationError, match='not for storage-1, which'):
        startchecks.check_place(storage_conf)


def test_an_address_where_a_certificate_has_names_is_told(storage_conf, tmp_path):
    """As by "openssl req -subj /CN=192.0.2.10": hosts look for addresses in another place."""
    path = SmallCA(str(tmp_path / 'ca')).issue('storage-1')
    storage_conf.set_override('tls_directory', path, 'bootcache')
    request = subprocess.run(['openssl', 'req', '-new', '-subj', '/CN=127.0.0.1', '-key',
                              f'{path}/server-key.pem'], check=True, capture_output=True)
    subprocess.run(['openssl', 'x509', '-req', '-CA', tmp_path / 'ca/ca-cert.pem', '-CAkey',
                    tmp_path / 'ca/ca-key.pem', '-set_serial', '1', '-days', '2',
                    '-out', f'{path}/server-cert.pem'], input=request.stdout, check=True,
                   capture_output=True)
    with pytest.raises(exception.ConfigurationError) as refused:
        startchecks.check_place(storage_conf)
    assert 'server-cert.pem names 127.0.0.1, but not where' in str(refused.value)
    assert 'make one with subjectAltName=IP:127.0.0.1 (' in str(refused.value)


def break_nothing_there(path, ca):
    shutil.rmtree(path)


def break_no_ca(path, ca):
    os.unlink(f'{path}/ca-cert.pem')


def break_ca(path, ca):
    with open(f'{path}/ca-cert.pem', 'w') as stream:
        stream.write('nothing')


def break_revoked(path, ca):
    with open(f'{path}/ca-crl.pem', 'w') as stream:
        stream.write('nothing')


def break_no_key(path, ca):
    os.unlink(f'{path}/server-key.pem')


def break_expired(path, ca):
    ca.issue('storage-1', days=-1)


def break_no_certificate(path, ca):
    with open(f'{path}/server-cert.pem', 'w') as stream:
        stream.write('nothing')


def break_other_key(path, ca):
    shutil.copy(f'{ca.issue("else")}/server-key.pem', path)


@pytest.mark.parametrize('spoil, file, cure', [
    (break_nothing_there, 'ca-cert.pem', 'make that folder, and put ca-cert.pem'),
    (break_no_ca, 'ca-cert.pem', 'put the CA\'s certificate there'),
    (break_ca, 'ca-cert.pem', 'put ca-cert.pem there'),
    (break_revoked, 'ca-crl.pem', 'ca-crl.pem has to be the CA\'s list'),
    (break_no_key, 'server-key.pem', 'put the server\'s certificate and key there, as server-key'),
    (break_expired, 'server-cert.pem', 'has expired; renew it'),
    (break_no_certificate, 'server-cert.pem', 'put ca-cert.pem there'),
    (break_other_key, 'server-key.pem', 'do not match')],
    ids=lambda one: getattr(one, '__name__', ''))
def test_wrong_certificates_keep_the_service_from_starting(storage_conf, ca, spoil, file, cure):
    path = storage_conf.bootcache.tls_directory
    spoil(path, ca)
    with pytest.raises(exception.ConfigurationError) as refused:
        startchecks.check_place(storage_conf)
    told = str(refused.value)
    assert f'[bootcache]tls_directory={path}' in told and f'{path}/{file}' in told and cure in told
    assert '\n' not in told


def test_a_host_says_what_is_wrong_with_its_certificates(node, ca, hosts, directory):
    with pytest.raises(exception.ConfigurationError, match=r'client-cert\.pem cannot be read'):
        path = ca.issue('compute-1')
        os.unlink(f'{path}/client-cert.pem')
        hosts(tls_directory=path)
    # One that has expired: new servers go the stock way, and a renewed one is noticed.
    node.serve()
    host = hosts(tls_directory=ca.issue('compute-1', days=-1))
    with pytest.raises(exception.CertificateExpired, match=r'client-cert\.pem has expired; renew'):
        host.certificates.look()
    assert not boot(host, f'{directory}/disk')
    ca.issue('compute-1')
    host.certificates.look()
    assert host.certificates.are_right
    assert boot(host, f'{directory}/disk')


def test_names_of_clients_need_certificates(storage_conf):
    storage_conf.clear_override('tls_directory', 'bootcache')
    storage_conf.set_override('tls_client_names', ['CN=x'], 'bootcache')
    with pytest.raises(exception.ConfigurationError, match='tls_client_names'):
        startchecks.check_place(storage_conf)


@pytest.mark.parametrize('options, is_refused', [
    ({}, True), ({'allow_plain_nbd': True}, False), ({'tls': True}, False)], ids=str)
def test_an_address_that_others_reach_needs_tls_or_consent(storage_conf, ca, options, is_refused):
    ca.issue('storage-1', ['192.0.2.1'])
    storage_conf.set_override('export_host', '0.0.0.0', 'bootcache')
    storage_conf.set_override('advertise_host', '192.0.2.1', 'bootcache')
    if not options.pop('tls', False):
        storage_conf.clear_override('tls_directory', 'bootcache')
    for name, value in options.items():
        storage_conf.set_override(name, value, 'bootcache')
    if is_refused:
        with pytest.raises(exception.ConfigurationError, match='allow_plain_nbd = true'):
            startchecks.check_place(storage_conf)
    else:
        startchecks.check_place(storage_conf)


@pytest.mark.parametrize('name, is_right', [
    ('compute-1', False), ('compute-*', False), ('', False), ('CN=compute-1', True),
    ('O=Example,CN=compute-?', True), ('*compute-1', True), ('???compute-1', True), ('*', True),
    ('CN*', True), ('compute*', False)])
def test_a_client_s_name_that_would_be_nobody_s_is_refused(storage_conf, node, ca, name, is_right):
    storage_conf.set_override('tls_client_names', [name], 'bootcache')
    if is_right:
        startchecks.check_place(storage_conf)
    else:
        with pytest.raises(exception.ConfigurationError, match='give it as in CN=compute'):
            startchecks.check_place(storage_conf)
    # QEMU lets nobody in by those that are refused; one of them is Example's, which ours is not.
    node.exporter.stop()
    node.exporter = Exporters(storage_conf, f'{storage_conf.bootcache.state_dir}/clients.json')
    node.exporter.start()
    node.serve()
    if is_right and not name.startswith('O='):
        opens(node, ca.issue('compute-1'))
    else:
        with pytest.raises(exception.BootcacheError):
            opens(node, ca.issue('compute-1'))


@pytest.mark.skipif(os.geteuid() != 0, reason='it gives up root\'s rights')
@pytest.mark.parametrize('option, ports, is_right', [
    ('export_ports', '900-950', False), ('export_ports', '1023-1100', False),
    ('export_ports', '1024-1100', True), ('export_port', 80, False)])
def test_ports_where_the_service_may_not_listen_are_refused(storage_conf, monkeypatch, option,
                                                            ports, is_right):
    storage_conf.set_override(option, ports, 'bootcache')
    # Root may listen there, and QEMU has looked at the files as it.
    startchecks.check_place(storage_conf)
    monkeypatch.setattr(certificates, 'check', lambda *arguments: None)
    monkeypatch.setattr(tier, 'check_directory', lambda *arguments, **named: None)
    os.seteuid(65534)
    try:
        if is_right:
            startchecks.check_place(storage_conf)
        else:
            with pytest.raises(exception.ConfigurationError,
                               match=f'{option}={ports} begins below 1024, where this'):
                startchecks.check_place(storage_conf)
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason='it is somebody else for a moment')
def test_who_may_not_read_a_file_is_told_by_name(storage_conf):
    path = storage_conf.bootcache.tls_directory
    for name in 'ca-cert.pem', 'ca-crl.pem':
        with open(f'{path}/{name}', 'a'):
            os.chmod(f'{path}/{name}', 0)
        os.seteuid(65534)
        try:
            with pytest.raises(exception.ConfigurationError) as refused:
                tls.credentials_id(path, tls.Endpoint.SERVER)
        finally:
            os.seteuid(0)
            os.chmod(f'{path}/{name}', 0o644)
        assert f'let user {pwd.getpwuid(65534).pw_name} read it' in str(refused.value)
