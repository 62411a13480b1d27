"""What an image's owner sees of its state: final states only, and nothing while Glance works."""

import dataclasses
import datetime
import logging
import types

import pytest
from fakes_manager import failed, until
from glanceclient import exc
from keystoneauth1 import exceptions as ks_exceptions

from bootcache import properties
from bootcache.manifest import Availability, ImageState, Manifest, Standing, Wished
from bootcache.reasons import Cause, Reason
from glance_bootcache.glance import images as glance_images
from glance_bootcache.glance import tenants
from glance_bootcache.glance.images import Images
from glance_bootcache.images import publishing

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
READY = Manifest(IMAGE, Standing.DONE)


@pytest.fixture
def published(house):
    """The service by whose clock Glance has its own."""
    def restart(**options):
        for name, value in options.items():
            house.conf.set_override(name, value, 'bootcache')
        house.restart()
        house.controller._publisher._wall = house.seconds.time

    house.started = restart
    restart()
    return house


def put(house, **glances):
    """Register or change an image in Glance, which notifies it."""
    own = {key: value for key, value in glances.items() if not key.startswith('os_')}
    house.images.put(IMAGE, **own)
    content, facts = house.images.images[IMAGE]
    house.images.images[IMAGE] = content, dataclasses.replace(
        facts,
        updated_at=datetime.datetime.fromtimestamp(house.seconds.time(), datetime.UTC).isoformat(),
        image_hash='' if glances.get('os_hash') == '' else facts.image_hash,
        properties={**facts.properties, **{key: value for key, value in glances.items()
                                           if key.startswith('os_') and key != 'os_hash'}})
    house.changed(IMAGE)
    house.settle()


def seen(house):
    """What its owner sees."""
    return {name: value for name, value in house.images.images[IMAGE][1].properties.items()
            if name in (properties.STATE, properties.REASON)}


def later(house, seconds=60):
    """Let time pass, and what is due be done; upkeep has a round."""
    house.seconds.sleep(seconds)
    house.once()
    house.settle()


def test_a_moment_after_the_upload_there_is_nothing(published):
    """Tempest's test_delete_image_metadata_item has the image's own metadata, and no more."""
    published.started(show_state_after=300)
    put(published)
    assert published.state(IMAGE) == 'ready'
    later(published, 299)
    assert seen(published) == {} and published.images.shown == []
    later(published, 1)
    assert seen(published) == {'bootcache_state': 'ready'}


def test_never(published):
    put(published)
    later(published)
    assert seen(published) == {'bootcache_state': 'ready'}
    published.started(show_state_after=-1)
    published.recover()
    later(published, 10_000)
    assert seen(published) == {}


def test_what_lies_between_is_not_shown(published):
    published.boots.gate.clear()
    published.images.put(IMAGE)
    published.changed(IMAGE)
    until(lambda: published.boots.jobs, 'the profile boot')
    published.changed(IMAGE)
    published.once()
    assert seen(published) == {} and published.images.shown == []
    published.boots.gate.set()
    published.settle()
    later(published)
    assert seen(published) == {'bootcache_state': 'ready'}
    # Recorded anew: it is taken away until that is over.
    published.boots.gate.clear()
    published.build(IMAGE)
    until(lambda: len(published.boots.jobs) == 2, 'the profile boot')
    assert seen(published) == {}
    published.boots.gate.set()
    published.settle()
    later(published)
    assert seen(published) == {'bootcache_state': 'ready'}


@pytest.mark.parametrize('change', ['evicted', 'deactivated'])
def test_what_no_longer_holds_is_taken_away(published, change):
    put(published)
    later(published)
    assert seen(published) == {'bootcache_state': 'ready'}
    if change == 'evicted':
        assert published.disk_room.evict(IMAGE)
    else:
        content, facts = published.images.images[IMAGE]
        published.images.images[IMAGE] = content, dataclasses.replace(
            facts, status='deactivated')
        published.changed(IMAGE)
    later(published)
    assert seen(published) == {}


@pytest.mark.parametrize('fails', [None, 'no flavor'])
def test_what_a_tenant_wrote_over_it_is_shown_again(published, fails):
    published.boots.fails = fails and failed(fails)
    put(published)
    later(published)
    before = seen(published)
    assert before['bootcache_state'] == ('failed' if fails else 'ready')
    put(published, state='skipped', reason='a joke')
    later(published)
    assert seen(published) == before


def test_what_is_shown_is_not_written_again(published):
    put(published)
    for _round in range(3):
        later(published)
        published.changed(IMAGE)
    assert published.images.shown == [(IMAGE, 'ready')]


@pytest.mark.parametrize('when', ['by itself', 'restart'])
def test_it_is_shown_later_where_glance_was_away_at_its_moment(published, when):
    published.images.refuses = lambda state: exc.HTTPServiceUnavailable()
    put(published)
    for _round in range(5):
        later(published)
    assert seen(published) == {}
    published.images.refuses = lambda state: None
    if when == 'restart':
        published.started()
    later(published)
    assert seen(published) == {'bootcache_state': 'ready'}


# Glance is at work.

@pytest.mark.parametrize('work', [{'os_glance_import_task': 'a-task'},
                                  {'os_glance_importing_to_stores': 'ceph'}, {'os_hash': ''}])
def test_while_glance_is_at_work_nothing_is_written(published, work):
    """It would write back locations and hash as it had read them."""
    put(published, **work)
    assert published.state(IMAGE) in ('ready', 'skipped'), 'it is final'
    later(published, 3599)
    assert seen(published) == {}
    # It is done, and notifies nothing: an import gives its lock up when the image is active.
    content, facts = published.images.images[IMAGE]
    published.images.images[IMAGE] = content, dataclasses.replace(
        facts, image_hash='sha512:ab', properties={})
    later(published)
    assert seen(published)['bootcache_state'] in ('ready', 'skipped')


def test_a_hash_that_is_missing_for_an_hour_will_never_come(published):
    put(published, os_hash='')
    later(published, 3600)
    assert seen(published)['bootcache_state'] == published.state(IMAGE)


def test_work_that_began_after_the_last_notification_counts(published):
    published.started(show_state_after=60)
    put(published)
    content, facts = published.images.images[IMAGE]
    published.images.images[IMAGE] = content, dataclasses.replace(
        facts, properties={**facts.properties, 'os_glance_import_task': 'a-task'})
    later(published)
    assert seen(published) == {}


@pytest.mark.parametrize('status', ['queued', 'saving', 'uploading', 'importing'])
def test_an_image_on_its_way_into_glance_is_left_alone(published, status):
    put(published)
    later(published)
    put(published, status=status)
    count = len(published.images.shown)
    later(published, 10_000)
    assert len(published.images.shown) == count


# Glance refuses.

def test_an_image_with_as_many_properties_as_it_may_have(published, caplog):
    tried = []
    published.images.refuses = lambda state: tried.append(state) or exc.HTTPOverLimit(
        'The limit has been exceeded on the number of allowed image properties')
    put(published)
    with caplog.at_level(logging.WARNING):
        for _round in range(10):
            later(published, 30)
    assert len(tried) == 3
    (line,) = [line for line in caplog.messages if 'cannot be set' in line]
    assert IMAGE in line and '[DEFAULT]image_property_quota' in line and 'changes' in line
    # Its owner takes a property away.
    published.images.refuses = lambda state: None
    later(published)
    assert seen(published) == {}
    put(published, settle='no')
    later(published)
    assert seen(published) == {'bootcache_state': 'ready'}


# Which states are final.

OFF = Manifest(IMAGE, Standing.SKIPPED, Cause(Reason.MODE_OFF, 'bootcache_mode=off'),
               wished=Wished(availability=Availability.OFF))


@pytest.mark.parametrize('manifest, state, told', [
    (READY, ImageState.READY, {'bootcache_state': 'ready'}),
    (READY, ImageState.SERVED, {}), (READY, ImageState.RECORDING, {}),
    (READY, ImageState.BUILDING, {}), (READY, ImageState.PENDING, {}),
    (READY.standing_at(Standing.WANTED, Cause(Reason.NO_HOST)), ImageState.PENDING, {}),
    (READY.standing_at(Standing.FAILED, Cause(Reason.FAILED, 'no flavor')), ImageState.FAILED,
     {'bootcache_state': 'failed', 'bootcache_reason': tenants.GENERAL[ImageState.FAILED]}),
    # It is tried again by itself.
    (READY.standing_at(Standing.FAILED, Cause(Reason.OLDER_CONTENT_IN_USE)), ImageState.FAILED,
     {}),
    (READY.standing_at(Standing.SKIPPED, Cause(Reason.DISK_FORMAT, 'vmdk')), ImageState.SKIPPED,
     {'bootcache_state': 'skipped',
      'bootcache_reason': 'its disk_format is not served, only qcow2 and raw are'}),
    (READY.standing_at(Standing.SKIPPED, Cause(Reason.EVICTED_BY_OPERATOR)), ImageState.SKIPPED,
     {'bootcache_state': 'skipped',
      'bootcache_reason': 'an operator of the cloud has taken its cache image away'}),
    (OFF, ImageState.SKIPPED,
     {'bootcache_state': 'skipped', 'bootcache_reason': 'bootcache_mode=off'}),
    # These pass by themselves.
    (READY.standing_at(Standing.SKIPPED, Cause(Reason.SNAPSHOT_UNUSED)), ImageState.SKIPPED, {}),
    (READY.standing_at(Standing.SKIPPED, Cause(Reason.INSPECTION_RULES)), ImageState.SKIPPED, {}),
    (Manifest(IMAGE, Standing.SKIPPED, Cause(Reason.GLANCE_STATUS, 'deactivated'),
              wished=Wished(availability=Availability.DEACTIVATED)), ImageState.SKIPPED, {})])
def test_which_states_are_final(manifest, state, told):
    assert publishing.final(manifest, state) == told


@pytest.mark.parametrize('code', [413, 503])
def test_what_glance_refuses_of_one_image_holds_up_no_other(published, monkeypatch, code):
    """As the properties of a tenant whose quota is full, and who goes on changing the images."""
    hostile = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(4)]
    publish = published.images.publish

    def answer(image_id, *arguments):
        if image_id in hostile:
            raise exc.from_response(types.SimpleNamespace(
                status_code=code, headers={}, reason='', text=''), b'')
        return publish(image_id, *arguments)

    monkeypatch.setattr(published.images, 'publish', answer)
    for image in hostile:
        published.images.put(image)
        published.changed(image)
    published.settle()
    put(published)
    later(published)
    assert seen(published) == {'bootcache_state': 'ready'}


def test_where_glance_does_not_answer_it_is_not_asked_for_each_image(published, monkeypatch):
    """Each call takes a minute of a thread, of which all images' looks have four."""
    calls = []

    def hang(image_id, *_arguments):
        calls.append(image_id)
        raise ks_exceptions.ConnectTimeout()

    with monkeypatch.context() as patched:
        patched.setattr(published.images, 'publish', hang)
        for number in range(20):
            published.images.put(f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f')
            published.changed(f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f')
        put(published)
        assert published.state(IMAGE) == 'ready' and len(calls) <= 3 + 4
        later(published, 59)
        assert len(calls) <= 3 + 4
    for _minute in range(3):
        later(published)
    assert seen(published) == {'bootcache_state': 'ready'}


# What glanceclient is asked.

class Client:
    """Stands for glanceclient: one image, and what it was changed to."""

    def __init__(self, image):
        self.image = image
        self.images = types.SimpleNamespace(get=lambda _id: self.image, update=self.update)

    def update(self, _image, remove_props, **values):
        """As glanceclient's."""
        self.image = {key: value for key, value in {**self.image, **values}.items()
                      if key not in remove_props}
        return self.image


def test_glance_is_given_what_differs():
    images = Images.__new__(Images)
    image = {'id': IMAGE, 'status': 'active', 'os_distro': 'debian'}
    images._client = Client({**image, 'bootcache_reason': 'of an earlier version, cn-17'})
    wanted = {'bootcache_state': 'failed', 'bootcache_reason': 'x'}
    found = images.publish(IMAGE, wanted, lambda _image: True)
    assert images._client.image == {**image, **wanted}
    assert glance_images.published(found) == wanted
    images.publish(IMAGE, {'bootcache_state': 'ready'}, lambda _image: False)
    assert images._client.image == {**image, **wanted}
    images.publish(IMAGE, {'bootcache_state': 'ready'}, lambda _image: True)
    assert images._client.image == {**image, 'bootcache_state': 'ready'}
    images.publish(IMAGE, {}, lambda _image: True)
    assert images._client.image == image
