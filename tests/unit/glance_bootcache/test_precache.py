"""Nova's precache API as novaclient speaks it and Nova's own code checks it; no network."""

import io
import json

import jsonschema
import pytest
import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import session as ks_session
from keystoneauth1 import token_endpoint
from nova.api.openstack.compute.schemas import aggregate_images
from nova.policies import aggregates as nova_policies
from nova.policies import base as nova_policy
from novaclient import exceptions as nova_exceptions

from bootcache import exception
from glance_bootcache.glance import images
from glance_bootcache.warming import runner
from glance_bootcache.warming.runner import Aggregate, NovaPrecache

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Nova(requests.adapters.BaseAdapter):
    """Answers HTTP requests as nova-api does, without a socket."""

    def __init__(self):
        super().__init__()
        self.requests, self.status, self.away = [], 202, False

    def send(self, request, **options):
        if self.away:
            raise requests.exceptions.ConnectionError('refused')
        self.requests.append(request)
        response = requests.Response()
        response.request, response.url = request, request.url
        response.status_code = 200 if (self.status, request.method) == (202, 'GET') else self.status
        body = {'aggregates': [{'id': 7, 'name': 'racks', 'hosts': ['one', 'two'], 'metadata': {}},
                               {'id': 8, 'name': 'none', 'hosts': [], 'metadata': {}}]}
        if self.status >= 400:
            body = {'error': {'code': self.status, 'message': 'because'}}
        response.headers['Content-Type'] = 'application/json'
        response.raw = io.BytesIO(b'' if response.status_code == 202 else json.dumps(body).encode())
        return response

    def close(self):
        pass


@pytest.fixture
def nova(storage_conf, monkeypatch):
    adapter = Nova()
    http = requests.Session()
    http.mount('http://', adapter)
    session = ks_session.Session(auth=token_endpoint.Token('http://nova/v2.1', 'token'),
                                 session=http)
    monkeypatch.setattr(images, 'session', lambda conf: session)
    adapter.client = NovaPrecache(storage_conf)
    return adapter


def test_aggregates_are_told_with_their_hosts(nova):
    assert nova.client.aggregates() == {'racks': Aggregate(7, ('one', 'two')),
                                        'none': Aggregate(8, ())}


def test_one_image_is_asked_for_as_nova_wants_it(nova):
    nova.client.ask(Aggregate(7, ('one', 'two')), IMAGE)
    (request,) = nova.requests
    assert (request.method, request.path_url) == ('POST', '/v2.1/os-aggregates/7/images')
    # The first microversion that has it; Nova answers 404 to an earlier one.
    assert request.headers['OpenStack-API-Version'] == 'compute 2.81'
    body = json.loads(request.body)
    assert body == {'cache': [{'id': IMAGE}]}
    jsonschema.validate(body, aggregate_images.aggregate_images)


@pytest.mark.parametrize('status, cure', [(403, True), (400, False), (404, False), (409, False)])
def test_a_refusal_says_what_nova_said(nova, status, cure):
    nova.status = status
    with pytest.raises(exception.RequestRefused, match='Nova refuses to list aggregates') as caught:
        nova.client.aggregates()
    assert ('role admin' in str(caught.value)) is cure
    with pytest.raises(exception.RequestRefused, match='Nova refuses to precache an image'):
        nova.client.ask(Aggregate(7, ()), IMAGE)


@pytest.mark.parametrize('status', [401, 408, 429, 500, 502, 503, 504])
def test_an_error_that_passes_is_no_refusal(nova, status):
    """As of a token that has expired, and of an API that has too much to do: it is asked again."""
    nova.status = status
    with pytest.raises((nova_exceptions.ClientException, ks_exceptions.HttpError)):
        nova.client.aggregates()
    with pytest.raises((nova_exceptions.ClientException, ks_exceptions.HttpError)):
        nova.client.ask(Aggregate(7, ()), IMAGE)


def test_no_connection_is_no_refusal(nova):
    nova.away = True
    with pytest.raises(ks_exceptions.ConnectFailure):
        nova.client.aggregates()


@pytest.mark.parametrize('found', [{}, {'edge': Aggregate(1, ()), 'dmz': Aggregate(2, ())}])
def test_an_unknown_aggregate_is_named_with_those_that_there_are(found):
    with pytest.raises(exception.RequestRefused, match='no aggregate racks; ') as caught:
        runner.find(found, 'racks')
    assert ('dmz, edge' if found else 'none') in str(caught.value)


def test_the_role_that_the_installation_guide_names():
    """A fence around Nova's defaults."""
    rules = {rule.name: rule.check_str for rule in nova_policies.list_rules()}
    assert {rules['os_compute_api:os-aggregates:index'], rules['compute:aggregates:images']} \
        == {nova_policy.ADMIN}
