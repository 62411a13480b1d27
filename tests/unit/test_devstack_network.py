"""The devstack plugin: what nodes have of each other, certificates and the exchange."""

import pathlib
import shutil

import pytest
from devstack_node import ALL, Devstack, names, settings_of

from bootcache import conf

OPTIONS = [option.name for option in conf.opts]


def test_a_node_with_the_storage_service_makes_certificates(tmp_path):
    """For itself, by the addresses that others connect to."""
    made = tmp_path / 'data' / 'CA' / 'bootcache' / 'controller'
    devstack = Devstack(tmp_path, ALL, BOOTCACHE_TLS_DIRECTORY=str(made),
                        BOOTCACHE_EXPORT_HOST='storage')
    calls = devstack.run('stack', 'post-config')
    assert ['bootcache', 'ca', str(made.parent), 'controller,storage,192.0.2.7'] in calls
    conf = settings_of(calls, 'bootcache.conf')
    assert conf['bootcache', 'tls_directory'] == str(made)
    assert conf['bootcache', 'export_ports'] == '10820-10919'
    assert ('bootcache', 'allow_plain_nbd') not in conf
    assert settings_of(calls, 'nova.conf')['bootcache', 'tls_directory'] == str(made)
    assert {'ca-cert.pem', 'server-key.pem', 'client-key.pem', 'exchange-key.pem'} <= {
        path.name for path in made.iterdir()}


def test_another_node_signs_its_own_by_the_ca_that_was_brought(tmp_path):
    """As sync-devstack-data brings all of devstack's folder of CAs, with a mode that is wide."""
    (tmp_path / 'first').mkdir()
    (tmp_path / 'second').mkdir()
    Devstack(tmp_path / 'first', ALL).run('stack', 'post-config')
    second = Devstack(tmp_path / 'second', 'n-cpu', HOST_IP='192.0.2.8',
                      BOOTCACHE_TLS_DIRECTORY=str(tmp_path / 'second/data/CA/bootcache/host-2'))
    shutil.copytree(tmp_path / 'first' / 'data' / 'CA', tmp_path / 'second' / 'data' / 'CA')
    for path in (tmp_path / 'second' / 'data' / 'CA').rglob('*'):
        path.chmod(0o755)
    second.run('stack', 'pre-install')
    calls = second.run('stack', 'post-config')
    own = second.ca / 'host-2'
    assert ['bootcache', 'ca', str(second.ca), 'host-2,192.0.2.8'] in calls
    assert (own / 'ca-cert.pem').read_text() \
        == (tmp_path / 'first' / 'data' / 'CA' / 'bootcache' / 'ca-cert.pem').read_text()
    assert settings_of(calls, 'nova.conf')['bootcache', 'tls_directory'] == str(own)
    assert (own / 'client-key.pem').stat().st_mode & 0o77 == 0


def test_a_node_without_a_ca_is_refused_before_anything_is_installed(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu')
    calls = devstack.run('stack', 'pre-install', check=False)
    (_die, _line, message), = (call for call in calls if call[0] == 'die')
    assert str(devstack.ca) in message and 'sync-devstack-data' in message
    assert 'BOOTCACHE_TLS=False' in message


def test_certificates_that_were_brought_are_kept(tmp_path):
    pki = tmp_path / 'pki'
    pki.mkdir()
    (pki / 'ca-cert.pem').write_text('')
    devstack = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS_DIRECTORY=str(pki))
    devstack.run('stack', 'pre-install')
    calls = devstack.run('stack', 'post-config')
    assert not names(calls, 'bootcache')
    assert settings_of(calls, 'nova.conf')['bootcache', 'tls_directory'] == str(pki)


def test_without_tls(tmp_path):
    calls = Devstack(tmp_path, ALL, BOOTCACHE_TLS='False',
                     BOOTCACHE_TLS_DIRECTORY=str(tmp_path / 'none')).run('stack', 'post-config')
    conf = settings_of(calls, 'bootcache.conf')
    assert conf['bootcache', 'allow_plain_nbd'] == 'True'
    assert not {('bootcache', 'tls_directory'), ('bootcache', 'export_ports')} & set(conf)
    assert ('bootcache', 'tls_directory') not in settings_of(calls, 'nova.conf')


# The exchange.

@pytest.mark.parametrize(('services', 'configured', 'file'), [
    ('n-cpu', 'nova.conf', 'nova-cpu.conf'), (ALL, 'bootcache.conf', 'bootcache/bootcache.conf')])
def test_the_exchange(tmp_path, services, configured, file):
    """One process a node, and the other side's configuration does not know it."""
    devstack = Devstack(tmp_path, services, BOOTCACHE_EXCHANGE_NETWORKS='192.0.2.0/24',
                        BOOTCACHE_TLS='False')
    assert ['pip_install', 'libtorrent>=2.1.1'] in devstack.run('stack', 'install')
    calls = devstack.run('stack', 'post-config')
    for name in 'bootcache.conf', 'nova.conf':
        assert (settings_of(calls, name).get(('bootcache', 'exchange_networks'))
                == ('192.0.2.0/24' if name == configured else None))
    assert settings_of(calls, configured)['bootcache', 'exchange_address'] == '192.0.2.7'
    devstack.run('stack', 'test-config')
    unit = devstack.unit('bootcache-exchange')
    assert unit['ExecStart'] == (f'{tmp_path}/venv/bin/bootcache-exchange --config-file'
                                 f' {tmp_path}/etc/{file}')
    # The folder of the socket where the option has it by default.
    assert unit['RuntimeDirectory'] \
        == pathlib.Path(conf.opts[OPTIONS.index('exchange_socket')].default).parent.name
    assert 'bootcache-exchange' in names(devstack.run('unstack'), 'stop_process')
