"""``bootcache image clean``: Glance is a stand-in here; tests/e2e has the real one."""

import oslo_messaging as messaging
import pytest
from fakes_cli import IMAGE, OTHER
from glanceclient import exc
from keystoneauth1 import exceptions as ks_exceptions
from oslo_utils import timeutils

from glance_bootcache.cli import clean
from glance_bootcache.glance.images import Images

THIRD = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ACTIVE = {'status': 'active', 'os_hash_algo': 'sha512', 'os_hash_value': 'ab'}


class Glance:
    """Stands for glanceclient; the class that asks it is the real one."""

    def __init__(self):
        self.known = {
            IMAGE: {'id': IMAGE, 'name': 'Debian\x1b[2J', 'bootcache_state': 'failed',
                    'bootcache_reason': 'x', 'bootcache_mode': 'auto'},
            OTHER: {'id': OTHER, 'bootcache_state': 'ready'},
            THIRD: {'id': THIRD, 'name': 'stock', 'bootcache_quota': '1GiB'}}
        for image in self.known.values():
            image.update(ACTIVE)
        self.refuses, self.away, self.asked = set(), None, []
        self.images = self

    def list(self, filters):
        self.asked.append(filters)
        if self.away:
            raise self.away
        return [] if filters['os_hidden'] else list(self.known.values())

    def get(self, image_id):
        if image_id not in self.known:
            raise exc.HTTPNotFound
        return dict(self.known[image_id])

    def update(self, image_id, remove_props):
        if image_id in self.refuses:
            raise exc.HTTPForbidden('protected')
        for name in remove_props:
            del self.known[image_id][name]
        return self.get(image_id)


@pytest.fixture
def glance(cli, monkeypatch):
    glance = Glance()
    images = Images.__new__(Images)
    images._client = glance
    monkeypatch.setattr(clean, 'Images', lambda conf: images)
    cli.api.fails = messaging.MessagingTimeout('nobody')
    return glance


def test_what_the_service_set_is_removed_and_nothing_else(cli, glance):
    rows = cli.json('image', 'clean', '--all')
    assert rows == [
        {'image_id': IMAGE, 'name': 'Debian?[2J', 'outcome': 'removed',
         'properties': 'bootcache_state, bootcache_reason'},
        {'image_id': OTHER, 'name': '', 'outcome': 'removed', 'properties': 'bootcache_state'}]
    assert glance.known == {
        IMAGE: {'id': IMAGE, 'name': 'Debian\x1b[2J', 'bootcache_mode': 'auto', **ACTIVE},
        OTHER: {'id': OTHER, **ACTIVE},
        THIRD: {'id': THIRD, 'name': 'stock', 'bootcache_quota': '1GiB', **ACTIVE}}
    assert glance.asked[:2] == [{'visibility': 'all', 'os_hidden': False},
                                {'visibility': 'all', 'os_hidden': True}]
    assert cli.json('image', 'clean', '--all') == []


def test_a_dry_run_only_lists(cli, glance):
    # Also while the storage service runs.
    cli.api.fails = None
    before = {key: dict(value) for key, value in glance.known.items()}
    assert [(row['image_id'], row['outcome']) for row in cli.json(
        'image', 'clean', '--all', '--dry-run')] == [(IMAGE, 'would be removed'),
                                                     (OTHER, 'would be removed')]
    assert glance.known == before
    assert 'cleaning' not in cli('image', 'clean', '--all', '--dry-run').err


def test_named_images(cli, glance):
    assert [row['outcome'] for row in cli.json('image', 'clean', OTHER, THIRD)] \
        == ['removed', 'has none']
    assert 'bootcache_state' in glance.known[IMAGE]


def test_one_that_fails_stops_no_other_and_is_named(cli, glance):
    glance.refuses = {IMAGE}
    done = cli('image', 'clean', '--all', '-f', 'json')
    assert done.code == 1 and 'bootcache_state' not in glance.known[OTHER]
    last = done.err.splitlines()[-1]
    assert last.startswith('not cleaned: ') and IMAGE in last and 'protected' in last


def test_one_that_glance_does_not_have_is_named(cli, glance):
    del glance.known[OTHER]
    done = cli('image', 'clean', OTHER)
    assert done.code == 1 and f'{OTHER} (Glance does not have it)' in done.err


def test_while_the_service_runs_it_is_refused(cli, glance):
    cli.api.fails = None
    done = cli('image', 'clean', '--all')
    assert done.code == 1 and 'stop it first' in done.err
    assert 'bootcache_state' in glance.known[IMAGE]


@pytest.mark.parametrize('arguments', [(), ('--all', IMAGE)])
def test_all_or_some(cli, glance, arguments):
    done = cli('image', 'clean', *arguments)
    assert done.code == 2 and '--all' in done.err


def test_a_glance_that_cannot_be_asked_is_one_line(cli, glance):
    glance.away = ks_exceptions.Unauthorized('401')
    done = cli('image', 'clean', '--all')
    assert done.code == 1 and done.err.splitlines()[-1].startswith('Glance cannot be asked: ')


@pytest.mark.parametrize('work', [
    {'os_glance_import_task': 'a-task'}, {'os_glance_importing_to_stores': 'ceph'},
    {'status': 'importing'}, {'os_hash_value': None, 'updated_at': 'now'}])
def test_an_image_that_glance_is_at_work_on_is_left_alone(cli, glance, work):
    """Glance would write back the locations and the hash that it had read."""
    if 'updated_at' in work:
        work = {**work, 'updated_at': timeutils.utcnow().isoformat() + 'Z'}
    glance.known[IMAGE].update(work)
    done = cli('image', 'clean', IMAGE)
    assert done.code == 1 and f'{IMAGE} (Glance is at work on it' in done.err
    assert 'bootcache_state' in glance.known[IMAGE]


def test_a_hash_that_will_never_come_keeps_nothing(cli, glance):
    glance.known[IMAGE].update(os_hash_value=None, updated_at='2020-01-01T00:00:00Z')
    assert [row['outcome'] for row in cli.json('image', 'clean', IMAGE)] == ['removed']
