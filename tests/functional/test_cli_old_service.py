"""``bootcache`` and a storage service of an earlier version, through a real RabbitMQ."""

import oslo_messaging as messaging
import pytest
from command import bootcache
from oslo_messaging import conffixture

from bootcache import conf as bootcache_conf
from bootcache.rpc.transport import EXCHANGE, TOPIC, get_transport

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Earlier:
    """Endpoints of an earlier version, with none of the methods."""

    target = messaging.Target(version='1.1')


@pytest.fixture
def config(storage_conf, rabbit, tmp_path):
    """A configuration file for the command, while a service of the earlier version runs."""
    storage_conf.set_override('transport_url', rabbit, bootcache_conf.GROUP)
    # oslo.messaging registers some of its options with the global configuration only.
    conffixture.ConfFixture(storage_conf)
    transport = get_transport(storage_conf)
    server = messaging.get_rpc_server(
        transport, messaging.Target(exchange=EXCHANGE, topic=TOPIC,
                                    version='1.1',
                                    server='storage'), [Earlier()], executor='threading')
    server.start()
    file = tmp_path / 'bootcache.conf'
    file.write_text(f'[bootcache]\ntransport_url = {rabbit}\nrpc_timeout = 30\n')
    yield file
    server.stop()
    server.wait()
    transport.cleanup()


def test_commands_say_so(config, tmp_path):
    for command in (('image', 'list'), ('host', 'list'), ('image', 'where', IMAGE),
                    ('evict', IMAGE), ('warm', IMAGE, '--aggregate', 'racks')):
        done = bootcache(tmp_path, '--config-file', config, *command)
        assert done.returncode == 1 and not done.stdout
        assert done.stderr == 'the storage service is older than this command; upgrade it\n'
