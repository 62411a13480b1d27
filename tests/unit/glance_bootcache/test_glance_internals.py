"""Fences what is internal in Glance and used by the hook, and tries the hook on it."""

import inspect

import glance.db
import pytest
import stevedore
from glance.async_.flows import api_image_import, plugins
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.rpc.messages import ImageRegistered
from glance_bootcache import hook
from glance_bootcache.glance import images

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Image:
    """A Glance image as far as Glance's own wrapper looks at it."""

    def __init__(self, properties):
        self.image_id, self.status = IMAGE, 'importing'
        self.extra_properties = {'os_glance_import_task': 'task', **properties}


class Repo:
    """A Glance image repository with one image."""

    def __init__(self, image):
        self.image, self.saved = image, 0

    def get(self, image_id):
        assert image_id == IMAGE
        return self.image

    def save(self, image, from_state):
        self.saved += 1


@pytest.fixture
def announced(monkeypatch):
    """The ids that the hook announces; the message bus is in tests/functional."""
    ids = []

    class Client:
        def send(self, message):
            assert isinstance(message, ImageRegistered)
            ids.append(message.image_id)

    monkeypatch.setattr(hook, '_storage_client', Client)
    return ids


def run_hook(properties):
    repo = Repo(Image(properties))
    wrapper = api_image_import.ImportActionWrapper(repo, IMAGE, 'task')
    flow = hook.get_flow(task_id='task', task_type='api_image_import', action_wrapper=wrapper,
                         image_id=IMAGE, image_repo=repo, uri=None, more='of tomorrow')
    (task,) = [node for node, _data in flow.iter_nodes()]
    task.execute()
    return repo


def test_the_entry_point_loads_as_glance_loads_it():
    manager = stevedore.NamedExtensionManager('glance.image_import.plugins', names=['bootcache'],
                                              name_order=True)
    (extension,) = manager.extensions
    assert extension.name == 'bootcache'
    assert extension.plugin.__module__ == 'glance_bootcache.hook'
    assert extension.plugin.__name__ == 'get_flow'


def test_glance_passes_what_we_use():
    assert 'invoke_kwds=kwargs' in inspect.getsource(plugins.get_import_plugins)
    flow = inspect.getsource(api_image_import.get_flow)
    assert "kwargs['action_wrapper'] = action_wrapper" in flow
    assert 'import_plugins.get_import_plugins(**kwargs)' in flow
    for name in ('task_id', 'task_type'):
        assert f"kwargs.get('{name}')" in flow
    assert flow.index("kwargs['action_wrapper']") < flow.index('get_import_plugins(**kwargs)')


def test_the_action_wrapper():
    wrapper = api_image_import.ImportActionWrapper
    assert str(inspect.signature(wrapper.__init__)) == '(self, image_repo, image_id, task_id)'
    assert isinstance(wrapper.image_id, property)


@pytest.mark.parametrize('properties', [{}, {'bootcache_mode': 'off'}, {'bootcache_quota': 'all'}])
def test_an_import_is_announced_and_nothing_is_written_to_it(announced, properties):
    repo = run_hook(properties)
    assert repo.saved == 0
    assert set(repo.image.extra_properties) == {'os_glance_import_task', *properties}
    assert announced == [IMAGE]


def test_an_import_never_fails_by_us(monkeypatch):
    def away():
        raise RuntimeError('the bus is away')

    monkeypatch.setattr(hook, '_storage_client', away)
    run_hook({})


def test_by_what_glance_tells_that_it_is_at_work():
    """While an image has these nothing is written to it."""
    assert api_image_import._ImportActions.IMPORTING_STORES_KEY in images.WATCHED
    assert set(images.WATCHED) > glance.db.IMAGE_ATOMIC_PROPS


def test_the_flow_reads_our_options_once():
    for _ in range(2):
        hook.get_flow(task_id='1', task_type='t', action_wrapper=None)
    assert cfg.CONF[bootcache_conf.GROUP].default_quota == '512MiB'
