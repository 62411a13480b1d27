"""What grenade runs of the devstack plugin, against stand-ins for grenade and devstack."""

import subprocess

import pytest
from devstack_node import ALL, PLUGIN, STAND_INS, Devstack, names

UPGRADE = PLUGIN.parent / 'upgrade'
GRENADE = r"""
for name in ensure_services_stopped ensure_services_started register_project_for_upgrade \
            devstack_localrc; do
    eval "$name() { record $name \"\$@\"; }"
done
"""


@pytest.fixture
def grenade(tmp_path):
    """Run a script of the upgrade; the calls."""
    devstack = Devstack(tmp_path, ALL, BOOTCACHE_EXCHANGE_NETWORKS='192.0.2.0/24')
    for folder in 'base', 'target', 'grenade':
        (tmp_path / folder / 'lib').mkdir(parents=True)
        for name in ('stackrc', 'grenaderc', 'lib/apache', 'lib/tls', 'lib/database', 'lib/nova',
                     'lib/rpc_backend', 'lib/keystone', 'lib/glance'):
            (tmp_path / folder / name).write_text('')
        (tmp_path / folder / 'functions').write_text(STAND_INS)
    (tmp_path / 'grenade' / 'functions').write_text(STAND_INS + GRENADE)
    devstack.environment |= {'GRENADE_DIR': str(tmp_path / 'grenade'),
                             'BASE_DEVSTACK_DIR': str(tmp_path / 'base'),
                             'TARGET_DEVSTACK_DIR': str(tmp_path / 'target')}

    def run(script):
        devstack.log.write_text('')
        done = subprocess.run(['bash', str(UPGRADE / script)], env=devstack.environment,
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [line.split('|') for line in devstack.log.read_text().splitlines()]
    return run


def started(calls):
    return [call[2] for call in calls if call[:2] == ['systemctl', 'restart']]


def test_servers_that_run_keep_their_gateway_and_exporters(grenade):
    calls = grenade('shutdown.sh')
    assert names(calls, 'stop_process') == ['bootcache-exchange', 'g-bootcache']
    assert ['ensure_services_stopped', 'glance-bootcache', 'bootcache-exchange'] in calls
    assert not [call for call in calls if call[:2] == ['sudo', 'kill']]


def test_the_package_is_replaced_and_its_services_start_with_what_they_had(grenade, tmp_path):
    kept = tmp_path / 'data' / 'bootcache' / 'images'
    kept.mkdir(parents=True)
    calls = grenade('upgrade.sh')
    assert f'{tmp_path}/bootcache[storage]' in names(calls, 'pip_install')
    restarted = ['devstack@bootcache-exchange.service', 'devstack@g-bootcache.service']
    # The release before had none: nothing is read by them.
    assert started(calls) == ['devstack@n-bootcache-connectors.service', *restarted]
    assert started(grenade('upgrade.sh')) == restarted
    assert ['ensure_services_started', 'glance-bootcache'] in calls
    # Neither made anew nor configured again.
    assert kept.is_dir()
    assert not names(calls, 'iniset')


def test_both_devstacks_have_the_plugin(grenade, tmp_path):
    environment = {'PATH': '/usr/bin:/bin', 'LOG': str(tmp_path / 'log')}
    subprocess.run(['bash', '-c', f'. {tmp_path}/grenade/functions; . {UPGRADE}/settings'],
                   env=environment, check=True, timeout=60)
    lines = [line.split('|') for line in (tmp_path / 'log').read_text().splitlines()]
    assert ['register_project_for_upgrade', 'bootcache'] in lines
    for line, which in zip(lines[1:], ['base', 'target'], strict=True):
        assert line[:4] == ['devstack_localrc', which, 'enable_plugin', 'bootcache']
        assert line[5] == 'main'
