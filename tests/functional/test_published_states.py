"""What the storage service writes to images of a real Glance, and what it leaves alone."""

import time

import pytest
from functional_tools import until
from real_glance import ADMIN, Glance

from bootcache import conf as bootcache_conf
from bootcache.manifest import Manifest, Standing
from bootcache.reasons import Cause, Reason
from glance_bootcache.filestore.locations import location_of
from glance_bootcache.glance.images import Images, changed_at
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.images.statuspublisher import GlanceStatusPublisher
from tools import storedimages

CONTENT = b'\0' * 65536


class Service:
    """The publisher, before that Glance."""

    def __init__(self, conf, glance):
        self._glance = glance
        self.images = Images.__new__(Images)
        self.images._client = glance.client(ADMIN)
        self.store, self.later = storedimages.opened(conf), 0
        self._jobs = Jobs(1, self.store.lock)
        self.publisher = GlanceStatusPublisher(conf, self.store, self.images, self._jobs,
                                               lambda: time.time() + self.later)

    def upload(self, **properties):
        image = self._glance.upload(CONTENT, **properties)
        self.know(image)
        return image

    def know(self, image):
        storedimages.put(self.store, Manifest(image, Standing.FAILED, Cause(Reason.FAILED, 'why')))
        self.look(image)

    def look(self, image):
        self.publisher.note_seen(self.images.get(image))

    def shown(self, image):
        return self._glance.client().images.get(image).get('bootcache_state')

    def stop(self):
        self._jobs.stop()


@pytest.fixture(scope='module')
def glance(tmp_path_factory):
    home = tmp_path_factory.mktemp('glance')
    (home / 'images').mkdir()
    glance = Glance(str(home), str(home / 'images'),
                    DEFAULT={'image_property_quota': 3, 'do_secure_hash': False})
    try:
        yield glance.start()
    finally:
        glance.stop()


@pytest.fixture
def service(glance, storage_conf):
    storage_conf.set_override('show_state_after', 0, bootcache_conf.GROUP)
    service = Service(storage_conf, glance)
    yield service
    service.stop()


def test_an_image_with_as_many_properties_as_glance_allows(service, caplog):
    image = service.upload(one='1', two='2', three='3')
    for _round in range(5):
        service.publisher.publish(service.store.manifests())
    assert service.shown(image) is None
    (line,) = [line for line in caplog.messages if image in line]
    assert '[DEFAULT]image_property_quota of glance-api.conf' in line
    # Its owner takes two away. Glance's times are whole seconds.
    changed = changed_at(service.images.get(image))
    until(lambda: time.time() >= changed + 1, 'the next second')
    service._glance.client().images.update(image, remove_props=['one', 'two'])
    service.look(image)
    service.publisher.publish(service.store.manifests())
    assert service.shown(image) == 'failed'


def test_an_image_without_a_hash_is_left_alone_for_an_hour(service, glance):
    """Glance may be about to write it, and all of the image's record with it."""
    image = glance.image()
    with open(glance.file(image), 'wb') as stream:
        stream.write(CONTENT)
    glance.add_location(image, location_of('file', image))
    glance.wait(image, 'active', hashed=False)
    service.know(image)
    service.publisher.publish(service.store.manifests())
    assert service.shown(image) is None
    service.later = 3601
    service.publisher.publish(service.store.manifests())
    assert service.shown(image) == 'failed'


@pytest.mark.parametrize('first', ['os_glance_import_task', 'os_glance_importing_to_stores'])
def test_an_image_that_glance_is_at_work_on_is_left_alone(service, glance, first):
    image = service.upload()
    names = {'os_glance_import_task': 'a-task', 'os_glance_importing_to_stores': 'other'}
    glance.note(image, first, names[first])
    service.publisher.publish(service.store.manifests())
    assert service.shown(image) is None
    # It notifies nothing when it is done.
    glance.note(image, first, None)
    service.publisher.publish(service.store.manifests())
    assert service.shown(image) == 'failed'
