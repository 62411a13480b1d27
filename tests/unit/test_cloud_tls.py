"""The cloud of demo and e2e tests speaks TLS; nothing of it is started."""

import configparser

import pytest

from tools.cloud import bootcache
from tools.cloud.layout import VENV


@pytest.mark.skipif(not (VENV / 'bin' / 'bootcache').exists(), reason='"bootcache ca" is missing')
def test_storage_service_hosts_and_what_is_between_have_certificates_and_take_nothing_else(
        tmp_path):
    cloud = bootcache.BootcacheCloud(tmp_path, hosts=2)
    cloud.configure_bootcache()

    def told(path):
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.read(path)
        return parser['bootcache']

    places = {'server': [cloud.config_file], 'client': [
        tmp_path / 'etc' / f'{host.compute}.d' / '60-bootcache.conf' for host in cloud.hosts]}
    assert len(places['client']) == 2
    for endpoint, files in places.items():
        for path in files:
            assert (cloud.certificates.joinpath(told(path)['tls_directory'])
                    / f'{endpoint}-cert.pem').exists()
            assert 'allow_plain_nbd' not in told(path)
    tap = ' '.join(cloud._services[bootcache.TAP].argv)
    assert '--tls=require' in tap and '--tls-verify-peer' in tap
