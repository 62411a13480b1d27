"""What a host does at its start with certificates that it cannot use yet, or cannot look at."""

import pytest
from oslo_config import cfg

from bootcache import certificates, exception
from nova_bootcache import conf as nova_conf
from nova_bootcache.storagenode import Encryption


@pytest.mark.parametrize('error', [
    exception.Interrupted('qemu-img info was not done after 10 s'),
    exception.CertificateExpired('it has expired')])
def test_it_starts_all_the_same(monkeypatch, caplog, error):
    conf = cfg.ConfigOpts()
    nova_conf.register_opts(conf)
    conf([])
    conf.set_override('tls_directory', '/etc/pki/bootcache', 'bootcache')

    def check(*_arguments):
        raise error

    monkeypatch.setattr(certificates, 'check', check)
    assert nova_conf.encryption(conf) == Encryption('/etc/pki/bootcache', False)
    assert str(error) in caplog.text
