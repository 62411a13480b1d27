"""An exporter that runs is ended for certificates that are known to be of use, and no others."""

import pytest
from oslo_config import cfg

from bootcache import certificates, exception, tls
from bootcache import conf as bootcache_conf
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache import conf as glance_conf
from glance_bootcache import startchecks
from glance_bootcache.storage import admission


class Daemon:
    """A daemon that runs, with certificates that others have replaced since."""

    name = 'exporter'

    def __init__(self):
        self.ended = False

    def answers(self):
        return True

    def has_listener(self):
        return True

    def credentials(self):
        return {'tls-earlier'}

    def stop(self):
        self.ended = True


@pytest.fixture
def interrupted(monkeypatch):
    def check(*_arguments):
        raise exception.Interrupted('qemu-img info was not done after 10 s')

    monkeypatch.setattr(certificates, 'check', check)
    monkeypatch.setattr(tls, 'credentials_id', lambda *_arguments: 'tls-now')


def test_one_goes_on_while_nobody_can_look_at_renewed_files(interrupted, caplog):
    daemon = Daemon()
    throttle = LogThrottle(admission.LOG)
    for _round in range(2):
        assert not admission.end_other(daemon, tls.Admission('/etc/pki/bootcache'), False, throttle)
    assert not daemon.ended and caplog.text.count('goes on with the certificates') == 1


def test_a_busy_machine_does_not_keep_the_service_from_starting(interrupted, caplog, tmp_path):
    conf = cfg.ConfigOpts()
    glance_conf.register_opts(conf)
    conf([])
    conf.set_override('tls_directory', '/etc/pki/bootcache', bootcache_conf.GROUP)
    conf.set_override('run_dir', str(tmp_path), bootcache_conf.GROUP)
    startchecks.check_place(conf)
    assert 'certificates are not checked' in caplog.text
