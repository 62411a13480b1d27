"""What a host does with certificates that it cannot use yet, or that nobody has looked at."""

import pytest
from fakes_upkeep import clock as clock  # a fixture
from fakes_upkeep import host as host  # likewise
from fakes_upkeep import upkeep_of

from bootcache import certificates, exception
from nova_bootcache.storagenode import Encryption, TakenCertificates

BUSY = exception.Interrupted('qemu-img info was not done after 10 s')
EXPIRED = exception.CertificateExpired('it has expired')


class Qemu:
    """Stands for what QEMU says of certificates."""

    def __init__(self):
        self.error, self.asked = None, 0

    def check(self, *_arguments):
        self.asked += 1
        if self.error:
            raise self.error


@pytest.fixture
def qemu(monkeypatch):
    found = Qemu()
    monkeypatch.setattr(certificates, 'check', found.check)
    return found


@pytest.fixture
def pki(tmp_path):
    for name in ('ca-cert.pem', 'client-cert.pem', 'client-key.pem'):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize('error', [BUSY, EXPIRED])
def test_they_are_looked_at_until_they_are_taken(qemu, pki, error):
    looked = TakenCertificates(str(pki))
    qemu.error = error
    for _time in range(2):
        with pytest.raises(type(error)):
            looked.look()
        assert not looked.are_right
    qemu.error = None
    for _time in range(3):
        looked.look()
    assert looked.are_right and qemu.asked == 3


def test_others_are_looked_at_as_well(qemu, pki):
    looked = TakenCertificates(str(pki))
    looked.look()
    (pki / 'client-cert.pem').write_text('renewed')
    qemu.error = EXPIRED
    with pytest.raises(exception.CertificateExpired):
        looked.look()
    assert not looked.are_right
    qemu.error = None
    looked.look()
    assert looked.are_right
    (pki / 'client-cert.pem').unlink()
    with pytest.raises(exception.ConfigurationError, match=r'client-cert\.pem cannot be read'):
        looked.look()
    assert not looked.are_right


def test_a_host_without_any_has_none_to_look_at(qemu):
    looked = TakenCertificates(None)
    looked.look()
    assert looked.are_right and not qemu.asked


@pytest.mark.parametrize('error', [BUSY, EXPIRED])
def test_a_host_tells_of_them_and_is_ready_when_they_are_taken(host, clock, qemu, pki, caplog,
                                                               error):
    caplog.set_level('INFO')
    host.certificates = TakenCertificates(str(pki))
    host.encryption = Encryption(str(pki), allow_plain=True)
    kept = upkeep_of(host)
    qemu.error = error
    for _time in range(3):
        kept.once()
        clock.now += host.report_interval
    (told,) = caplog.records
    assert (told.levelname, told.getMessage()) == (
        'WARNING', f'bootcache: QEMU has not taken this host\'s certificates, for now: {error}')
    qemu.error = None
    caplog.clear()
    kept.once()
    mended, ready = caplog.messages
    assert 'no longer so: QEMU has not taken' in mended
    assert ' is ready: ' in ready
    assert f'exporters are read by TLS, or without it, with the certificates in {pki};' in ready


def test_a_host_without_certificates_says_so_when_it_is_ready(host, clock, caplog):
    caplog.set_level('INFO')
    upkeep_of(host).once()
    (ready,) = caplog.messages
    assert 'read without TLS only, as [bootcache]tls_directory is not set;' in ready
