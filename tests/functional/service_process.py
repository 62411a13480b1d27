"""``glance-bootcache`` as a process of its own, beside stand-ins of Keystone, Nova and Glance."""

import contextlib
import os
import re
import signal
import subprocess

import nbd
import pytest
from command import SERVICE, command
from functional_tools import free_port, until

from bootcache.manifest import Made, Manifest
from glance_bootcache.storage import servedexports
from glance_bootcache.storage.servedexports import ServedExports
from tools.standins import PASSWORD, REGION, serving

PATIENCE = 90
# Of the base that a test has the service serve.
CONTENT = b'base' * 16384
_IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def lines(directory):
    """What it said: warnings and errors, without stamp and name."""
    with open(f'{directory}/log') as stream:
        # The lowest version of oslo.log that is taken ends each line so.
        text = stream.read().replace('\x1b[00m', '')
    assert 'Traceback' not in text
    return [re.sub(r'^\S+ \S+ \d+ (WARNING|ERROR) \S+ \[-\] ', '', line)
            for line in text.splitlines() if ' INFO ' not in line and ' DEBUG ' not in line]


def serves(directory):
    """Whether it has said so."""
    with open(f'{directory}/log') as stream:
        return 'glance-bootcache serves' in stream.read()


def known_base(directory):
    """Have the service know a base that servers read; returns its export's name."""
    with open(f'{directory}/base.img', 'wb') as stream:
        stream.write(CONTENT)
    served = ServedExports(servedexports.path_beside(f'{directory}/state/clients.json'))
    os.makedirs(f'{directory}/state', exist_ok=True)
    served.record(Manifest(_IMAGE, made=Made(
        image_format='raw', virtual_bytes=len(CONTENT), base_path=f'{directory}/base.img',
        base_export=f'base-{_IMAGE}')), None)
    served.write({'': [f'base-{_IMAGE}']})
    return f'base-{_IMAGE}'


def served(port, export):
    """Read all of a base as a server does."""
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_tcp('127.0.0.1', str(port))
    content = handle.pread(len(CONTENT), 0)
    handle.shutdown()
    return content


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
