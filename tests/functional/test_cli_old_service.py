"""``bootcache`` and a storage service of an earlier version, through a real RabbitMQ."""

import os
import subprocess
import sys
from pathlib import Path

import oslo_messaging as messaging
import pytest
from oslo_messaging import conffixture

from bootcache import conf as bootcache_conf
from bootcache import rpcapi

TOP = Path(__file__).resolve().parents[2]
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
# As an installed command; the commands that are installed may be of another tree.
PROGRAM = '''
import importlib, sys, tomllib
from glance_bootcache.cli import main
known = tomllib.load(open('pyproject.toml', 'rb'))['project']['entry-points']['bootcache.cli']
def load(manager, namespace):
    for name, where in known.items():
        module, _, command = where.partition(':')
        manager.add_command(name.replace('_', ' '),
                            getattr(importlib.import_module(module), command))
main.commandmanager.CommandManager.load_commands = load
sys.exit(main.main(sys.argv[1:]))
'''


class Earlier:
    """Endpoints of version 1.1."""

    target = messaging.Target(version='1.1')

    def list_images(self, ctxt):
        return []


@pytest.fixture
def config(storage_conf, rabbit, tmp_path):
    """A configuration file for the command, while a service of the earlier version runs."""
    storage_conf.set_override('transport_url', rabbit, bootcache_conf.GROUP)
    # oslo.messaging registers some of its options with the global configuration only.
    conffixture.ConfFixture(storage_conf)
    transport = rpcapi.get_transport(storage_conf)
    server = messaging.get_rpc_server(
        transport, messaging.Target(exchange=rpcapi.EXCHANGE, topic=rpcapi.TOPIC, version='1.1',
                                    server='storage'), [Earlier()], executor='threading')
    server.start()
    file = tmp_path / 'bootcache.conf'
    file.write_text(f'[bootcache]\ntransport_url = {rabbit}\nrpc_timeout = 30\n')
    yield file
    server.stop()
    server.wait()
    transport.cleanup()


def run(config, *arguments):
    return subprocess.run([sys.executable, '-W', 'ignore', '-c', PROGRAM, '--config-file',
                           str(config), *arguments], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, cwd=TOP, timeout=120,
                          env={'PATH': os.environ['PATH'], 'HOME': str(config.parent)})


def test_commands_that_it_does_not_know_say_so(config):
    assert run(config, 'image', 'list').returncode == 0
    for command in (('host', 'list'), ('image', 'where', IMAGE), ('evict', IMAGE),
                    ('warm', IMAGE, '--aggregate', 'racks')):
        done = run(config, *command)
        assert done.returncode == 1 and not done.stdout
        assert done.stderr == 'the storage service is older than this command; upgrade it\n'
