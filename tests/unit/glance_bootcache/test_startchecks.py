"""What the start takes for an absence: a Keystone or Nova that has too much to do answers later."""

import types

import pytest
from keystoneauth1 import exceptions as ks_exceptions
from oslo_config import cfg

from bootcache import qemuimg
from bootcache.exception import BootcacheError, ConfigurationError
from glance_bootcache import startchecks
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.glance import images


@pytest.fixture
def answers(storage_conf, monkeypatch):
    """Checks with a Keystone and a Nova that answer with an error of that HTTP status, or well.

    The error is of a class as releases of keystoneauth1 have it that know none for 429.
    """
    def check(keystone=None, nova=None):
        def answer(status):
            if status:
                raise ks_exceptions.HTTPClientError(http_status=status)

        session = types.SimpleNamespace(timeout=None, get_token=lambda: answer(keystone))
        monkeypatch.setattr(images, 'session', lambda conf: session)
        monkeypatch.setattr(startchecks, '_check_nova', lambda conf, session: answer(nova))
        storage_conf.set_override('auth_type', 'password', AUTH_GROUP)
        startchecks.check_cloud(storage_conf)

    return check


@pytest.mark.parametrize('who', ['keystone', 'nova'])
def test_who_has_too_much_to_do_is_waited_for(answers, who, caplog):
    answers(**{who: 429})
    assert 'does not answer' in caplog.text


def test_what_answers_and_is_no_keystone_is_told_by_the_option(storage_conf, monkeypatch, caplog):
    """As Glance at auth_url, or a path that Keystone does not have: it may come to be right."""
    def get_token():
        raise ks_exceptions.DiscoveryFailure('Cannot use v2 authentication with domain scope')

    monkeypatch.setattr(images, 'session', lambda conf: types.SimpleNamespace(
        timeout=None, get_token=get_token))
    storage_conf.set_override('auth_type', 'password', AUTH_GROUP)
    # Registered by the plugin, which is not loaded here.
    storage_conf.register_opt(cfg.StrOpt('auth_url'), AUTH_GROUP)
    startchecks.check_cloud(storage_conf)
    assert 'correct [service_auth]auth_url, as in http://controller:5000/v3' in caplog.text


def test_a_kind_of_credentials_that_there_is_not_is_told_by_its_option(storage_conf):
    storage_conf.set_override('auth_type', 'pasword', AUTH_GROUP)
    with pytest.raises(ConfigurationError, match=r'^\[service_auth\]auth_type=pasword: .*; as a'):
        images.session(storage_conf)


@pytest.mark.parametrize('who', ['keystone', 'nova'])
def test_a_refusal_ends_the_service(answers, who):
    with pytest.raises(ConfigurationError):
        answers(**{who: 401})


def test_a_qemu_that_cannot_compress_is_told_with_the_cure(storage_conf, monkeypatch):
    tried = []

    def create(path, virtual_bytes, cluster_bytes, data_path='', compression=''):
        tried.append(compression)
        raise BootcacheError('qemu-img create failed (exit 1): Invalid parameter')

    monkeypatch.setattr(qemuimg, 'create_standalone', create)
    storage_conf.set_override('compression', 'none', 'bootcache')
    startchecks.check_compression(storage_conf)
    assert not tried, 'nothing is compressed'
    storage_conf.clear_override('compression', 'bootcache')
    with pytest.raises(ConfigurationError, match=r'compression=zstd.*set the option to none'):
        startchecks.check_compression(storage_conf)
    assert tried == ['zstd']
