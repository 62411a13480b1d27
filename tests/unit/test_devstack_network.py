"""The devstack plugin: what nodes have of each other, certificates and the exchange."""

import pytest
from devstack_node import ALL, Devstack, names, settings_of


def test_a_node_with_the_storage_service_makes_certificates(tmp_path):
    """For itself, by the addresses that others connect to."""
    made = tmp_path / 'etc' / 'bootcache' / 'ca' / 'controller'
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
    # Those that are there stay.
    assert not names(devstack.run('stack', 'post-config'), 'bootcache')


def test_another_node_is_told_to_get_its_certificates(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS_DIRECTORY=str(tmp_path / 'ca' / 'host-1'))
    calls = devstack.run('stack', 'post-config', check=False)
    (_die, _line, message), = (call for call in calls if call[0] == 'die')
    assert f'bootcache ca {tmp_path}/etc/bootcache/ca host-1,192.0.2.7' in message


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
    devstack = Devstack(tmp_path, services, BOOTCACHE_EXCHANGE_NETWORKS='192.0.2.0/24')
    assert ['pip_install', 'libtorrent>=2.1.1'] in devstack.run('stack', 'install')
    calls = devstack.run('stack', 'post-config')
    for name in 'bootcache.conf', 'nova.conf':
        assert (settings_of(calls, name).get(('bootcache', 'exchange_networks'))
                == ('192.0.2.0/24' if name == configured else None))
    conf = settings_of(calls, configured)
    assert conf['bootcache', 'exchange_address'] == '192.0.2.7'
    assert conf['bootcache', 'exchange_socket'] == str(tmp_path / 'run' / 'exchange.sock')
    run = [call[1:] for call in devstack.run('stack', 'extra')
           if call[:2] == ['run_process', 'bootcache-exchange']]
    assert run == [['bootcache-exchange', f'{tmp_path}/venv/bin/bootcache-exchange --config-file'
                                          f' {tmp_path}/etc/{file}']]
    assert 'bootcache-exchange' in names(devstack.run('unstack'), 'stop_process')
