"""What the answer to a check of certificates means; qemuimg stands for QEMU's programs here."""

import pytest

from bootcache import certificates, exception, qemuimg, tls


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Have QEMU give an error for a directory of files that can be read."""
    for name in ('ca-cert.pem', 'client-cert.pem', 'client-key.pem'):
        (tmp_path / name).write_text('a file')

    def refuse(error):
        def check_object(_wanted):
            raise error
        monkeypatch.setattr(qemuimg, 'check_object', check_object)
        with pytest.raises(type(error)) as refused:
            certificates.check(str(tmp_path), tls.Endpoint.CLIENT)
        return refused

    return refuse


def test_a_busy_machine_says_nothing_of_certificates(says):
    refused = says(exception.Interrupted('qemu-img info was not done after 10 s'))
    assert not isinstance(refused.value, exception.ConfigurationError)


@pytest.mark.parametrize('told, kind', [
    ('The client certificate X has expired', exception.CertificateExpired),
    ('The CA certificate X is not yet active', exception.CertificateExpired),
    ('Unable to import X', exception.ConfigurationError)])
def test_what_time_alone_makes_wrong_is_told_apart(says, told, kind):
    assert type(says(exception.BootcacheError(told)).value) is kind
