"""What Nova finds out as a server's user decides whether the server is served."""

import dataclasses
import types

import pytest
from test_host_fallback import SERVER, Service
from test_host_fallback import host as host  # a fixture

from bootcache import exception
from nova_bootcache.asking.client import AsUser

COLD = {'action': 'cold', 'virtual_bytes': 1 << 30, 'server': ['127.0.0.1', 1], 'tls': False,
        'base_export': 'base-x', 'image_hash': 'sha512:00', 'signature': 'this'}
CHECKED = dataclasses.replace(SERVER, checks_signature=True)
SERVED = 'served'
REFUSAL = 'Glance does not let the user'


@pytest.fixture
def make(host, tmp_path, caplog):
    """Have a server served; gives the reason for the stock way.

    Its flavor is too small, which is found when all of that is decided, and before any daemon."""
    def make(server, answer=COLD, token=None, is_moving=False, **asks):
        host.storage._client = Service(answer)
        try:
            with caplog.at_level('INFO'):
                assert not host.chains.make_overlay(
                    server, 'server-1', token, str(tmp_path / 'disk'), 1 << 20, False,
                    is_moving=is_moving, as_user=AsUser(**asks))
        except exception.FlavorTooSmall:
            return SERVED
        return caplog.messages[-1].partition('stock way: ')[2]

    return make


@pytest.fixture
def asking(host, monkeypatch):
    """The operator wants Glance to be asked."""
    monkeypatch.setattr(host.chains, '_conf', types.SimpleNamespace(
        enabled=True, require_download_policy=True))


def test_who_may_not_download_the_image_goes_the_stock_way(make, asking):
    assert make(SERVER, download_refusal=lambda: REFUSAL) == REFUSAL
    # A server that comes from another host has the image already.
    assert make(SERVER, download_refusal=lambda: pytest.fail('asked'), is_moving=True) == SERVED


def test_without_the_option_nobody_is_asked(make):
    assert make(SERVER, download_refusal=lambda: pytest.fail('asked')) == SERVED


def test_nor_where_nothing_is_offered(make, asking):
    assert make(SERVER, {'action': 'stock', 'reason': 'skipped'},
                download_refusal=lambda: pytest.fail('asked')) == 'skipped'


def test_what_was_verified_by_something_else_goes_the_stock_way(make):
    assert 'is not the one by which' in make(CHECKED, verifies_by=lambda: 'other')
    assert make(CHECKED, verifies_by=lambda: 'this') == SERVED
    assert 'has not verified' in make(CHECKED, {**COLD, 'signature': ''},
                                      verifies_by=lambda: pytest.fail('asked'))


def test_what_an_earlier_storage_service_says_is_unverified(make):
    answer = {name: value for name, value in COLD.items() if name != 'signature'}
    assert 'has not verified' in make(CHECKED, answer)


def test_an_error_of_novas_is_the_reason(make):
    def verifies_by():
        raise LookupError('no certificate')

    assert 'no certificate' in make(CHECKED, verifies_by=verifies_by)


def test_a_profile_boot_that_nova_is_to_check_ends_where_it_is_unverified(make):
    with pytest.raises(exception.ProfileBootFailed, match='has not verified'):
        make(CHECKED, {**COLD, 'action': 'record', 'signature': ''}, token='x')
