"""``bootcache image clean``: Glance is a stand-in here; tests/e2e has the real one."""

import oslo_messaging as messaging
import pytest
from fakes_cli import IMAGE, OTHER
from glanceclient import exc
from keystoneauth1 import exceptions as ks_exceptions

from glance_bootcache.cli import clean
from glance_bootcache.glance.images import Images, Marked, mark

THIRD = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Glance:
    """Stands for Glance, as glance_bootcache.images.Images has it."""

    def __init__(self):
        self.images = {
            IMAGE: {'id': IMAGE, 'name': 'Debian\x1b[2J', 'bootcache_state': 'failed',
                    'bootcache_reason': 'x', 'bootcache_mode': 'auto'},
            OTHER: {'id': OTHER, 'bootcache_state': 'ready'},
            THIRD: {'id': THIRD, 'name': 'stock', 'bootcache_quota': '1GiB'}}
        self.refuses, self.away = set(), None

    def marked(self):
        if self.away:
            raise self.away
        return [found for image in self.images.values() if (found := mark(image)).names]

    def look(self, image_id):
        return mark(self.images[image_id]) if image_id in self.images else None

    def unmark(self, marked):
        if marked.image_id in self.refuses:
            raise exc.HTTPForbidden('protected')
        for name in marked.names:
            del self.images[marked.image_id][name]


@pytest.fixture
def glance(cli, monkeypatch):
    glance = Glance()
    monkeypatch.setattr(clean, 'Images', lambda conf: glance)
    cli.api.fails = messaging.MessagingTimeout('nobody')
    return glance


def test_what_the_service_set_is_removed_and_nothing_else(cli, glance):
    rows = cli.json('image', 'clean', '--all')
    assert rows == [
        {'image_id': IMAGE, 'name': 'Debian?[2J', 'outcome': 'removed',
         'properties': 'bootcache_state, bootcache_reason'},
        {'image_id': OTHER, 'name': '', 'outcome': 'removed', 'properties': 'bootcache_state'}]
    assert glance.images == {
        IMAGE: {'id': IMAGE, 'name': 'Debian\x1b[2J', 'bootcache_mode': 'auto'},
        OTHER: {'id': OTHER},
        THIRD: {'id': THIRD, 'name': 'stock', 'bootcache_quota': '1GiB'}}
    assert cli.json('image', 'clean', '--all') == []


def test_a_dry_run_only_lists(cli, glance):
    # Also while the storage service runs.
    cli.api.fails = None
    before = {key: dict(value) for key, value in glance.images.items()}
    assert [(row['image_id'], row['outcome']) for row in cli.json(
        'image', 'clean', '--all', '--dry-run')] == [(IMAGE, 'would be removed'),
                                                     (OTHER, 'would be removed')]
    assert glance.images == before


def test_named_images(cli, glance):
    assert [row['outcome'] for row in cli.json('image', 'clean', OTHER, THIRD)] \
        == ['removed', 'has none']
    assert 'bootcache_state' in glance.images[IMAGE]


def test_one_that_fails_stops_no_other_and_is_named(cli, glance):
    glance.refuses = {IMAGE}
    done = cli('image', 'clean', '--all', '-f', 'json')
    assert done.code == 1 and 'bootcache_state' not in glance.images[OTHER]
    last = done.err.splitlines()[-1]
    assert last.startswith('not cleaned: ') and IMAGE in last and 'protected' in last


def test_one_that_glance_does_not_have_is_named(cli, glance):
    del glance.images[OTHER]
    done = cli('image', 'clean', OTHER)
    assert done.code == 1 and f'{OTHER} (Glance does not have it)' in done.err


def test_while_the_service_runs_it_is_refused(cli, glance):
    cli.api.fails = None
    done = cli('image', 'clean', '--all')
    assert done.code == 1 and 'stop it first' in done.err
    assert 'bootcache_state' in glance.images[IMAGE]


@pytest.mark.parametrize('arguments', [(), ('--all', IMAGE)])
def test_all_or_some(cli, glance, arguments):
    done = cli('image', 'clean', *arguments)
    assert done.code == 2 and '--all' in done.err


def test_a_glance_that_cannot_be_asked_is_one_line(cli, glance):
    glance.away = ks_exceptions.Unauthorized('401')
    done = cli('image', 'clean', '--all')
    assert done.code == 1 and done.err.splitlines()[-1].startswith('Glance cannot be asked: ')


def test_all_images_are_looked_at_hidden_ones_too():
    """The real class; glanceclient stands for Glance."""
    asked = []

    class Client:
        images = property(lambda self: self)

        def list(self, filters):
            asked.append(filters)
            return [{'id': IMAGE, 'bootcache_state': 'ready', 'name': None}, {'id': OTHER}]

        def update(self, image_id, remove_props):
            asked.append((image_id, remove_props))

    images = Images.__new__(Images)
    images._client = Client()
    assert list(images.marked()) == [Marked(IMAGE, '', ('bootcache_state',))] * 2
    assert asked == [{'visibility': 'all', 'os_hidden': False},
                     {'visibility': 'all', 'os_hidden': True}]
    images.unmark(Marked(IMAGE, '', ('bootcache_state',)))
    assert asked[-1] == (IMAGE, ['bootcache_state'])
