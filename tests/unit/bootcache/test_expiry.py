"""Certificates that end are told of in time, and not again and again."""

import shutil
import time
import types

import pytest

from bootcache import certificates, tls
from glance_bootcache.smallca import SmallCA

DAY = 86400


@pytest.fixture
def ca(tmp_path):
    return SmallCA(str(tmp_path / 'ca'))


@pytest.fixture
def now():
    """A clock; what it shows first is the time."""
    return types.SimpleNamespace(seconds=time.time())


@pytest.fixture
def looks(now, caplog):
    """Look, as many times as upkeep does in an hour; returns levels and lines."""
    def look(watched):
        caplog.clear()
        for _time in range(360):
            watched.look()
            now.seconds += 10
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    return look


def test_one_that_ends_is_told_of_each_day_and_is_an_error_once_it_has(ca, now, looks):
    directory = ca.issue('storage-1', days=40)
    path = f'{directory}/server-cert.pem'
    watched = certificates.Expiry(directory, [tls.CA, 'server-cert.pem'], lambda: now.seconds)
    assert looks(watched) == []
    now.seconds += 9 * DAY
    assert looks(watched) == []
    now.seconds += DAY
    (level, line), = looks(watched)
    assert level == 'WARNING' and f'{path} ends on ' in line and 'in 29 days' in line
    assert f'[bootcache]tls_directory={directory}' in line and 'renew it' in line
    assert looks(watched) == []
    now.seconds += DAY
    assert len(looks(watched)) == 1
    now.seconds += 29 * DAY
    (level, line), = looks(watched)
    assert level == 'ERROR' and f'{path} has expired, on ' in line and 'renew it' in line
    assert looks(watched) == []
    now.seconds += DAY
    assert [level for level, _line in looks(watched)] == ['ERROR']
    # One that takes its place is looked at as it is.
    ca.issue('storage-1', days=400)
    now.seconds += DAY
    assert looks(watched) == []


def test_a_ca_that_ends_ends_all(ca, now, looks):
    directory = ca.issue('storage-1', days=3650)
    watched = certificates.Expiry(directory, [tls.CA], lambda: now.seconds)
    now.seconds += 3649.5 * DAY
    (level, line), = looks(watched)
    assert level == 'WARNING' and f'{directory}/ca-cert.pem ends' in line and ' hours' in line


def test_of_two_cas_one_is_enough_and_of_a_chain_the_first_counts(ca, now, looks, tmp_path):
    directory = ca.issue('one', days=20)
    with open(f'{directory}/server-cert.pem') as stream:
        short = stream.read()
    with open(f'{directory}/{tls.CA}', 'a') as stream:
        stream.write(short)
    with open(f'{ca.issue("two", days=400)}/server-cert.pem') as stream:
        long = stream.read()
    with open(f'{directory}/server-cert.pem', 'w') as stream:
        stream.write(long + short)
    (_level, line), = looks(certificates.Expiry(directory, [tls.CA, 'server-cert.pem'],
                                          lambda: now.seconds))
    assert 'server-cert.pem ends' in line


def test_what_cannot_be_read_is_left_to_who_uses_it(ca, now, looks, tmp_path):
    directory = ca.issue('one', days=1)
    with open(f'{directory}/server-cert.pem', 'w') as stream:
        stream.write('nothing')
    shutil.copy(f'{directory}/server-key.pem', f'{directory}/client-cert.pem')
    files = ['server-cert.pem', 'client-cert.pem', 'exchange-key.pem', 'none']
    assert looks(certificates.Expiry(directory, files, lambda: now.seconds)) == []
    assert looks(certificates.Expiry(None, files, lambda: now.seconds)) == []


def test_the_first_to_end_is_when_all_of_a_host_end(ca):
    directory = ca.issue('one', days=20)
    end = pytest.approx(time.time() + 20 * DAY, abs=60)
    assert certificates.Expiry(directory, [tls.CA, 'client-cert.pem']).earliest() == end
    assert certificates.Expiry(directory, [tls.CA]).earliest() > time.time() + 3000 * DAY
    assert certificates.Expiry(directory, ['client-cert.pem', 'none']).earliest() == end
    assert certificates.Expiry(directory, ['none']).earliest() is None
    assert certificates.Expiry(None, ['client-cert.pem']).earliest() is None
    # Also of one that has ended.
    ca.issue('one', days=-1)
    assert certificates.Expiry(directory, [tls.CA, 'client-cert.pem']).earliest() < time.time()


@pytest.mark.parametrize('endpoint, exchanges, told', [
    (tls.Endpoint.SERVER, False, {'server'}), (tls.Endpoint.CLIENT, False, {'client'}),
    (tls.Endpoint.CLIENT, True, {'client', 'exchange'})])
def test_each_side_looks_at_its_own(ca, caplog, endpoint, exchanges, told):
    certificates.configured(types.SimpleNamespace(
        tls_directory=ca.issue('one', days=2),
        exchange_address='192.0.2.1' if exchanges else None), endpoint).look()
    assert len(caplog.messages) == len(told)
    assert all(any(f'/{one}-cert.pem ends' in line for line in caplog.messages) for one in told)
