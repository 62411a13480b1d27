"""``glance-bootcache`` as a process of its own, beside stand-ins of Keystone, Nova and Glance."""

import contextlib
import os
import signal
import subprocess

import pytest
from command import SERVICE, command
from functional_tools import free_port, until

from tools.standins import PASSWORD, REGION, serving

PATIENCE = 90


@pytest.fixture
def images():
    """What Glance has: bytes of raw images by id. A test module may have its own."""
    return {}


@pytest.fixture
def cloud(images):
    """Keystone, Nova and Glance; see tools/standins.py."""
    with serving(images) as url:
        yield url


@pytest.fixture
def service(directory, rabbit, cloud):
    """Starts the service with a configuration that is right but for what a test says."""
    started = []

    def start(auth=(), default=(), others=(), **options):
        sections = {
            'DEFAULT': {'transport_url': rabbit, **dict(default)},
            'bootcache': {'state_dir': f'{directory}/state', 'run_dir': f'{directory}/run',
                          'export_port': free_port(), 'poll_interval': 1, **options},
            'service_auth': {'auth_type': 'v3password', 'auth_url': cloud, 'username': 'bootcache',
                             'password': PASSWORD, 'project_name': 'service',
                             'user_domain_name': 'Default', 'project_domain_name': 'Default',
                             'region_name': REGION, **dict(auth)}, **dict(others)}
        file = f'{directory}/bootcache.conf'
        with open(file, 'w') as stream:
            for name, entries in sections.items():
                stream.write(f'[{name}]\n' + ''.join(
                    f'{key} = {value}\n' for key, value in entries.items() if value is not None))
        argv, process_options = command(SERVICE, directory, '--config-file', file)
        with open(f'{directory}/log', 'w') as log:
            started.append(subprocess.Popen(argv, stdout=log, stderr=log, **process_options))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
    with contextlib.suppress(FileNotFoundError), open(f'{directory}/run/exporter.pid') as stream:
        pid = int(stream.read())
        os.kill(pid, signal.SIGTERM)
        until(lambda: not os.path.exists(f'/proc/{pid}'), 'the end of the exporter')
