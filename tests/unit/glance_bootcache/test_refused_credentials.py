"""Credentials that Keystone refuses: told once with the cure, and asked with at growing pauses.

Nova is a stand-in; tests/functional/test_service_start.py has Keystone's answer over HTTP.
"""

import itertools

import pytest
from fakes_warming import IMAGE, OTHER, done, make_ready, step, tell
from fakes_warming import ready as ready  # the fixture
from glanceclient import exc as glance_exceptions
from keystoneauth1 import exceptions as ks_exceptions
from novaclient import exceptions as nova_exceptions

from bootcache import exception
from glance_bootcache import away
from glance_bootcache.glance.images import Images
from glance_bootcache.warming.warmjobs import backoff

CURE = 'correct username, password'


@pytest.fixture
def refused(ready):
    """Two images that are to be warmed on two aggregates, and a Keystone that refuses."""
    make_ready(ready, OTHER)
    ready.asked, ready.answer = [], ready.nova.aggregates

    def refuse():
        ready.asked.append(ready.seconds.now)
        raise ks_exceptions.Unauthorized(
            f'requires authentication. (Request-ID: req-{len(ready.asked)})', http_status=401)

    for image in (IMAGE, OTHER):
        ready.warming.warm(image, ['racks', 'edge'])
    ready.conf.set_override('warm_concurrency', 4, 'bootcache')
    ready.nova.aggregates = refuse
    return ready


def said(caplog):
    return [record.getMessage() for record in caplog.records
            if record.levelname == 'WARNING' and 'cannot be warmed' in record.getMessage()]


def test_it_is_told_once_with_the_cure_whatever_is_to_be_warmed(refused, caplog):
    for _ in range(5000):
        step(refused, 1)
    (line,) = said(caplog)
    assert CURE in line and '[service_auth]' in line and 'Request-ID' not in line
    assert done(refused) == [False, False], 'it goes on when that is mended'
    assert any(CURE in job['reason'] for job in refused.warming.progress(IMAGE))


def test_it_is_asked_at_growing_pauses_once_for_all(refused):
    """Each image and aggregate asked for itself: Keystone locks such users out."""
    for _ in range(5000):
        step(refused, 1)
    pauses = [later - before for before, later in itertools.pairwise(refused.asked)]
    assert pauses == [backoff(number + 1) for number in range(len(pauses))]
    assert pauses[0] == 30 and pauses[-1] == 600


def test_all_go_on_when_it_is_mended(refused):
    for _ in range(100):
        step(refused, 1)
    refused.nova.aggregates = refused.answer
    step(refused, 600)
    assert len(refused.nova.asked) == 4
    for image in (IMAGE, OTHER):
        for host in ('one', 'two', 'three'):
            tell(refused, host, image=image)
    step(refused)
    assert done(refused) == done(refused, OTHER) == [True, True]


def test_an_operator_who_asks_anew_is_answered_at_once(refused, caplog):
    step(refused)
    caplog.clear()
    refused.warming.warm(IMAGE, ['more'])
    assert CURE in caplog.text
    step(refused)
    (job,) = (job for job in refused.warming.progress(IMAGE) if job['aggregate'] == 'more')
    assert CURE in job['reason'] and len(refused.asked) == 3


@pytest.mark.parametrize('error', [
    ks_exceptions.Unauthorized('x', http_status=401), glance_exceptions.HTTPUnauthorized('x')],
    ids=repr)
def test_whoever_else_is_refused_is_told_the_cure(error):
    class Data:
        def data(self, image_id, do_checksum):
            raise error

    images = object.__new__(Images)
    images._client = type('Client', (), {'images': Data()})
    with pytest.raises(exception.ServiceAway, match=CURE):
        list(images.download(IMAGE))
    assert CURE in away.told(error)


@pytest.mark.parametrize('error', [
    ks_exceptions.ConnectFailure('nobody'), ks_exceptions.Forbidden('nobody', http_status=403),
    ks_exceptions.ServiceUnavailable('nobody', http_status=503), OSError('nobody')], ids=repr)
def test_what_is_something_else_is_told_as_it_is(error):
    assert 'nobody' in away.told(error) and CURE not in away.told(error)


@pytest.mark.parametrize('answer', [
    lambda number: nova_exceptions.ClientException(503, 'too busy', request_id=f'req-{number}'),
    lambda number: ks_exceptions.ConnectFailure(
        f'(<urllib3.connection.HTTPConnection object at 0x7f{number:04x}>: refused)')],
    ids=['answers', 'is away'])
def test_what_differs_by_the_request_only_is_said_once(refused, caplog, answer):
    """As of a Nova whose database is away: a line for each image, aggregate and try."""
    def refuse():
        refused.asked.append(refused.seconds.now)
        raise answer(len(refused.asked))
    refused.nova.aggregates = refuse
    for _ in range(100):
        step(refused, 10)
    assert len(refused.asked) > 8 and len(said(caplog)) == 1
    reasons = {job['reason'] for job in refused.warming.progress(IMAGE)}
    assert len(reasons) == 2, 'by which it is found in the log of Nova'
