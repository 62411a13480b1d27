"""A deployment of several servers: snapshotted at one point in time, and resumed elsewhere."""

import json
import os
import signal
import subprocess

import pytest

from tools.cloud.client import ClientError
from tools.cloud.layout import VENV
from tools.cloud.tenant import wait_until

COUNT = 3


@pytest.fixture
def bootcache(cloud, tenant):
    def run(*arguments):
        return tenant.openstack.bootcache(cloud.config_file, *arguments)
    return run


def begin(cloud, *arguments):
    """Start the command as the administrator; a process."""
    return subprocess.Popen(
        [str(VENV / 'bin' / 'bootcache'), '--config-file', str(cloud.config_file), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**cloud.layout.environment(), **cloud.env('admin')})


def known(path):
    return json.loads(path.read_text())['servers'] if path.exists() else []


@pytest.fixture
def deployment(tenant, ready_image, cloud):
    """Servers on the first host, whose guests have written a mark."""
    servers = [tenant.ask(ready_image) for _number in range(COUNT)]
    for server in servers:
        tenant.openstack.wait_active(server)
        tenant.login(server)
    return servers


@pytest.fixture
def resumed(tenant):
    """Servers that a resume started; they are deleted at the end."""
    servers = []
    yield servers
    for server in servers:
        tenant.openstack.nova.servers.delete(server)
    for server in servers:
        tenant.openstack.wait_gone(server)


def status(tenant, server):
    return tenant.openstack.nova.servers.get(server).status


def test_a_deployment_is_killed_while_it_is_saved_and_resumed_elsewhere(
        bootcache, tenant, cloud, deployment, resumed, tmp_path):
    path = tmp_path / 'checkpoint.json'
    chosen = [word for server in deployment for word in ('--server', server)]
    first = begin(cloud, 'snapshot', *chosen, '--pause', '-o', str(path))
    try:
        # All are paused, and what was paused is in the file; no image is there yet.
        wait_until(lambda: any(one['image_id'] for one in known(path)), 'a snapshot asked for', 120)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    left = known(path)
    assert [one['paused'] for one in left] == [True] * COUNT
    assert all(one['stands_since'] for one in left)
    assert {one['status'] for one in left} <= {'asked', 'chosen'}
    assert {status(tenant, server) for server in deployment} == {'PAUSED'}
    rows = bootcache('snapshot', '--continue', str(path))
    assert {row['server_id'] for row in rows} == set(deployment)
    assert {row['outcome'] for row in rows} == {'saved'}
    assert len({row['image_id'] for row in rows}) == COUNT
    # Each was paused from before the kill to its snapshot's end, and goes on.
    assert [one['stands_since'] for one in known(path)] == [one['stands_since'] for one in left]
    assert not any(one['paused'] for one in known(path))
    for server in deployment:
        tenant.openstack.wait_active(server)
    marked = f'?bootcache_checkpoint={json.loads(path.read_text())["checkpoint_id"]}'
    images = tenant.openstack.image_api('GET', marked)
    assert {image['id'] for image in images['images']} == {row['image_id'] for row in rows}

    there = bootcache('resume', str(path), '--other-hosts', '--name-suffix=-again')
    resumed += [row['new_server_id'] for row in there]
    assert {row['outcome'] for row in there} == {'started'}
    assert {row['host'] for row in there} == {cloud.hosts[1].hostname}
    assert all(row['name'].endswith('-again') for row in there)
    for server in resumed:
        # What the guest wrote before the snapshot is what it reads, and so is all of its image.
        console = tenant.login(server)
        assert 'mark: ok' in console, console
        tenant.command(server, 'check-all')
    again = bootcache('resume', str(path), '--other-hosts', '--name-suffix=-again')
    assert {row['outcome'] for row in again} == {'there already'}
    assert [row['new_server_id'] for row in again] == [row['new_server_id'] for row in there]
    removed = bootcache('snapshot', '--delete', str(path))
    assert {row['outcome'] for row in removed} == {'deleted'} and os.listdir(tmp_path) == []
    assert tenant.openstack.image_api('GET', marked)['images'] == []


def test_interrupted_servers_go_on_and_another_run_finishes(bootcache, tenant, cloud, deployment,
                                                           tmp_path):
    path = tmp_path / 'checkpoint.json'
    with tenant.aggregate(cloud.hosts[0]) as aggregate:
        first = begin(cloud, 'snapshot', '--aggregate', aggregate, '--server', deployment[0],
                      '--server', deployment[1], '--pause', '-o', str(path))
        wait_until(lambda: any(one['paused'] for one in known(path)), 'servers paused', 120)
        first.send_signal(signal.SIGTERM)
        told, _none = first.communicate(timeout=300)
    assert first.returncode == 128 + signal.SIGTERM, told
    assert 'may be PAUSED' not in told
    assert not any(one['paused'] for one in known(path))
    assert {status(tenant, server) for server in deployment} == {'ACTIVE'}
    rows = bootcache('snapshot', '--continue', str(path))
    assert {row['server_id'] for row in rows} == set(deployment[:2])
    assert {row['outcome'] for row in rows} == {'saved'}
    bootcache('snapshot', '--delete', str(path))
    assert {status(tenant, server) for server in deployment} == {'ACTIVE'}


@pytest.mark.parametrize('arguments, message', [
    (('snapshot',), 'give --aggregate, --project or --server'),
    (('snapshot', '--aggregate', 'no-such'), 'there is no aggregate no-such'),
    (('snapshot', '--server', 'no-such'), 'there is no server no-such'),
    (('snapshot', '--continue', 'no-such'), 'there is no '),
    (('resume', 'no-such'), 'there is no '),
])
def test_bad_input_says_what_is_wrong(bootcache, arguments, message):
    with pytest.raises(ClientError, match=message):
        bootcache(*arguments)
