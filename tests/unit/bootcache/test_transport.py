"""The message bus that the options name; tests/functional/test_bus_users.py connects to one."""

import pytest
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.exception import ConfigurationError
from bootcache.rpc import transport


@pytest.fixture
def conf(tmp_path):
    """Return what reads a configuration file."""
    def read(text):
        path = tmp_path / 'bootcache.conf'
        path.write_text(text)
        found = cfg.ConfigOpts()
        bootcache_conf.register_opts(found)
        found(['--config-file', str(path)], project='bootcache')
        return found

    return read


def test_a_value_of_the_bus_that_cannot_be_is_told_as_its_own(conf):
    found = conf('[bootcache]\ntransport_url = rabbit://user:secret@127.0.0.1:5672/\n'
                 '[oslo_messaging_rabbit]\nrpc_conn_pool_size = many\n')
    with pytest.raises(ConfigurationError, match='rpc_conn_pool_size in ') as caught:
        transport.get_transport(found)
    assert 'transport_url' not in str(caught.value)


@pytest.mark.parametrize('url', ['rabbit://user:secret@bus:port/', 'rabbit://user:sec/ret@[::1/'])
def test_a_url_that_is_none(conf, url):
    with pytest.raises(ConfigurationError, match='is no URL of a message bus') as caught:
        transport.get_transport(conf(f'[bootcache]\ntransport_url = {url}\n'))
    assert 'sec' not in str(caught.value)
