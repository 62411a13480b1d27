"""Errors of Glance, Nova and Keystone that pass by themselves, and those that do not."""

import types

import pytest
from glanceclient import exc as glance_exceptions
from keystoneauth1 import exceptions as ks_exceptions
from novaclient import exceptions as nova_exceptions

from bootcache import exception
from glance_bootcache import away
from glance_bootcache.glance.images import Images
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.warming import runner

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
PASSING = [
    glance_exceptions.CommunicationError('refused'), glance_exceptions.InvalidEndpoint('timed out'),
    glance_exceptions.HTTPUnauthorized('expired'), glance_exceptions.HTTPServiceUnavailable(''),
    glance_exceptions.HTTPBadGateway(''), glance_exceptions.HTTPInternalServerError(''),
    ks_exceptions.ConnectFailure('refused'), ks_exceptions.ConnectTimeout('late'),
    ks_exceptions.Unauthorized('no'), ks_exceptions.ServiceUnavailable('busy'),
    ks_exceptions.HttpError('who knows'), ks_exceptions.AuthorizationFailure('late'),
    nova_exceptions.ClientException(503), nova_exceptions.Unauthorized(401),
    nova_exceptions.RateLimit(429)]
LASTING = [
    glance_exceptions.HTTPForbidden('policy'), glance_exceptions.HTTPNotFound('gone'),
    glance_exceptions.HTTPConflict('state'), ks_exceptions.Forbidden('policy'),
    ks_exceptions.NotFound('gone'), nova_exceptions.BadRequest(400),
    nova_exceptions.Forbidden(403), nova_exceptions.OverLimit(413)]


@pytest.mark.parametrize('error', PASSING, ids=repr)
def test_what_passes_by_itself(error):
    assert away.passes(error)


@pytest.mark.parametrize('error', LASTING, ids=repr)
def test_what_does_not(error):
    assert not away.passes(error)


@pytest.mark.parametrize('error', [*PASSING, *LASTING], ids=repr)
def test_warming_hosts_goes_by_the_same_rule(error):
    """What Glance's client raises never gets there."""
    if type(error).__module__.startswith('glanceclient'):
        return
    with pytest.raises(type(error) if away.passes(error) else exception.RequestRefused), \
            runner._refusals('precache an image'):
        raise error


class Client:
    """Stands for Glance's or Nova's client; it does not answer in the midst, or at all."""

    def __init__(self, error):
        self.error = error
        self.images = self.flavors = self

    def data(self, image_id, do_checksum):
        assert not do_checksum, 'it raises OSError, as a disk does'
        yield b'the first piece'
        raise self.error

    def list(self, **_search):
        raise self.error


def glance(error):
    made = Images.__new__(Images)
    made._client = Client(error)
    return made


@pytest.mark.parametrize('error', [
    *(error for error in PASSING if not isinstance(error, nova_exceptions.ClientException)),
    glance_exceptions.HTTPNotFound('one 404 may be anybody\'s')], ids=repr)
def test_a_download_in_whose_midst_glance_goes_away_is_worth_another_try(error):
    pieces = glance(error).download(IMAGE)
    assert next(pieces) == b'the first piece'
    with pytest.raises(exception.ServiceAway, match='Glance does not give the image'):
        next(pieces)


def test_data_that_glance_does_not_have_are_asked_for_again():
    images = glance(None)
    images._client.images = types.SimpleNamespace(
        data=lambda image_id, do_checksum: types.SimpleNamespace(wrapped=None))
    with pytest.raises(exception.ServiceAway, match='look at its store'):
        list(images.download(IMAGE))


def test_a_download_that_glance_refuses_is_not():
    with pytest.raises(glance_exceptions.HTTPForbidden):
        list(glance(glance_exceptions.HTTPForbidden('policy')).download(IMAGE))


@pytest.mark.parametrize('error, raised', [
    (nova_exceptions.ClientException(503), exception.ServiceAway),
    (ks_exceptions.ConnectFailure('refused'), exception.ServiceAway),
    (nova_exceptions.Forbidden(403), exception.ServiceAway),
    (nova_exceptions.BadRequest(400), exception.ProfileBootFailed)])
def test_a_profile_boot_that_nova_cannot_run_now_is_worth_another_try(error, raised):
    boots = NovaProfileBoots.__new__(NovaProfileBoots)
    boots._client = Client(error)
    with pytest.raises(raised, match='profile boot'):
        boots.run(None, 0, None, None)


def test_an_image_that_glance_did_not_give_is_got_later(house, monkeypatch):
    """It was failed for good, and an operator had to ask for it."""
    def download(image_id):
        yield b'the first piece'
        raise exception.ServiceAway('Glance does not give the image\'s data just now: 503')

    house.images.put(IMAGE)
    with monkeypatch.context() as patch:
        patch.setattr(house.images, 'download', download)
        house.changed(IMAGE)
        house.settle()
    assert house.state(IMAGE) == 'pending' and '503' in house.store.load(IMAGE).reason
    house.later(3600)
    house.settle()
    assert house.state(IMAGE) == 'ready'
