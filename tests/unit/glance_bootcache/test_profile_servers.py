"""Profile boots' servers: Nova is away for a while, or starts one on another host.

Nova is a stand-in; the e2e tests have the real one.
"""

import contextlib
import re
import types

import pytest
from fakes_clock import Clock
from fakes_database import locked
from novaclient import exceptions as nova_exceptions

from bootcache import exception
from bootcache.properties import Policy
from bootcache.workingset import WorkingSet
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.profileboot import throughnova
from glance_bootcache.profileboot.job import ImageJob, ProfileReport
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage.nodefiles import FileKind, FileState
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
FACTS = ImageFacts(IMAGE, 'active', 'raw', 'bare', 1, 'sha512:ab', 0, 0, {})
SET = WorkingSet(IMAGE, 'sha512:ab', 1 << 20, 4096, ())


class Nova:
    """Stands for Nova: its servers by id, with their metadata; ``away`` while it does not answer.

    :ivar happens: called with each second in which the profile boot waits.
    :ivar nics: the networks that were asked for with the last server.
    """

    def __init__(self, clock):
        self.clock, self.away, self.there, self.made = clock, False, {}, 0
        self.lost_answers, self.happens, self.nics = 0, lambda second: None, None
        # Made later than its client gives it up.
        self.late = None
        self.servers = self
        self.flavors = types.SimpleNamespace(list=lambda is_public: [
            types.SimpleNamespace(id='1', name='small', ram=512, disk=5, is_public=True,
                                  extra_specs={})])

    def _answer(self):
        if self.away:
            raise nova_exceptions.ClientException(503)

    def create(self, name, meta, nics=None, **_others):
        self._answer()
        self.nics = nics
        self.made += 1
        made = self.there[f'server-{self.made}'] = types.SimpleNamespace(
            id=f'server-{self.made}', name=name, metadata=meta, status='ACTIVE')
        if self.late is not None:
            self.late.append(self.there.popitem())
            raise nova_exceptions.ClientException(504)
        if self.lost_answers:
            self.lost_answers -= 1
            self.away = True
        self._answer()
        return made

    def list(self, search_opts):
        self._answer()
        return [server for server in self.there.values()
                if re.search(search_opts['name'], server.name)]

    def get(self, server_id):
        self._answer()
        if server_id not in self.there:
            raise nova_exceptions.NotFound(404)
        return self.there[server_id]

    def delete(self, server_id):
        self._answer()
        del self.there[server_id]

    def diagnostics(self, server_id):
        raise nova_exceptions.Conflict(409)

    def get_console_output(self, server_id, length):
        return ''


@pytest.fixture
def nova(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(throughnova, 'time', clock)
    return Nova(clock)


@pytest.fixture
def boots(storage_conf, database, nova):
    """Of a service; ``started`` is one that was started since."""
    def started(may_remove=True):
        boots = object.__new__(NovaProfileBoots)
        boots._conf, boots._client = storage_conf.bootcache, nova
        boots._files = storedimages.opened(storage_conf, database).files
        boots._files._clock, boots._files.may_remove = nova.clock.time, lambda: may_remove
        boots._files.retire_left()
        boots.started = started
        return boots

    return started()


@pytest.fixture
def job(nova, monkeypatch):
    """Waiting for it lets seconds pass."""
    job = ImageJob(IMAGE, host='host')
    began = nova.clock.now

    def wait(seconds):
        for _second in range(int(seconds)):
            nova.clock.now += 1
            nova.happens(int(nova.clock.now - began))

    monkeypatch.setattr(job, 'wait', wait)
    return job


def run(boots, job):
    return boots.run(FACTS, 1 << 20, Policy(1 << 30, 'login:'), job)


def hear(job, nova):
    job.recorded_bytes, job.heard_at = 1 << 20, nova.clock.now


def test_nova_may_be_away_while_a_host_records(boots, nova, job):
    """It failed for good after half a minute, and its server stayed."""
    def happens(second):
        hear(job, nova)
        nova.away = 5 < second < 280
        if second == 290:
            job.take_report(ProfileReport(SET, 'marker', 1.0))

    nova.happens = happens
    assert run(boots, job).ended_by == 'marker'
    assert nova.made == 1 and nova.there == {}


def test_its_server_has_no_network(boots, nova, job):
    """The cloud of the e2e tests has none to give."""
    nova.happens = lambda second: job.take_report(ProfileReport(SET, 'marker', 1.0))
    run(boots, job)
    assert nova.nics == 'none'


@pytest.mark.parametrize('heard', [False, True])
def test_nova_is_not_waited_for_for_ever(boots, nova, job, heard, storage_conf):
    def happens(second):
        nova.away = second > 5
        if heard:
            hear(job, nova)

    nova.happens = happens
    began = nova.clock.now
    with pytest.raises(exception.BootcacheError, match='Nova'):
        run(boots, job)
    limit = storage_conf.bootcache.profile_timeout + throughnova._REPORT_SECONDS if heard else 40
    assert nova.clock.now - began < limit + 10


def others(nova):
    """Servers of other storage services of the project, and of people."""
    for number, name in enumerate([f'bootcache-profile-{IMAGE}', f'bootcache-profile-{IMAGE}-0a1b',
                                   'web']):
        nova.there[f'other-{number}'] = types.SimpleNamespace(id=f'other-{number}', name=name)


def rows(boots, *states):
    return list(boots._files.named(FileKind.SERVER, *states))


def test_a_server_that_cannot_be_deleted_is_when_nova_is_back(boots, nova, job, caplog):
    """It stayed until the storage service was started again."""
    def happens(second):
        nova.away = True
        job.take_report(ProfileReport(SET, 'marker', 1.0))

    nova.happens = happens
    assert run(boots, job).ended_by == 'marker'
    assert list(nova.there) == ['server-1'] and 'could not be deleted' in caplog.text
    with pytest.raises(nova_exceptions.ClientException):
        boots.remove_retired()
    nova.away = False
    others(nova)
    boots.remove_retired()
    assert list(nova.there) == ['other-0', 'other-1', 'other-2']


def test_a_server_that_an_earlier_process_made_is_deleted(boots, nova, job):
    """And one that is in hand is not."""
    class Killed(BaseException):
        """Nothing is done after it."""

    boots._end = lambda image_id, name: None

    def happens(second):
        raise Killed

    nova.happens = happens
    with pytest.raises(Killed):
        run(boots, job)
    others(nova)
    boots.remove_retired()
    assert 'server-1' in nova.there
    again = boots.started()
    again.remove_retired()
    assert list(nova.there) == ['other-0', 'other-1', 'other-2']
    again.remove_retired()
    assert rows(again) != [], 'until Nova has shown that it has no such one'
    nova.clock.now += 600
    again.remove_retired()
    assert rows(again) == []


def test_what_no_row_names_is_left_and_told_of(boots, nova, job, caplog):
    """As of another service of the project, or where the database was lost."""
    nova.happens = lambda second: (boots.tell_unnamed(),
                                   job.take_report(ProfileReport(SET, 'marker', 1.0)))
    run(boots, job)
    assert 'of no row' not in caplog.text
    others(nova)
    boots.tell_unnamed()
    assert f'2 servers of profile boots are of no row of the database, and are left, as' \
        f' bootcache-profile-{IMAGE};' in caplog.text and len(nova.there) == 3


def test_a_database_that_is_another_one_deletes_what_is_in_hand_only(boots, nova, job):
    boots._files.begin(IMAGE, FileKind.SERVER, f'bootcache-profile-{IMAGE}-0a1b')
    others(nova)
    again = boots.started(may_remove=False)
    nova.happens = lambda second: job.take_report(ProfileReport(SET, 'marker', 1.0))
    run(again, job)
    again.remove_retired()
    assert nova.made == 1 and list(nova.there) == ['other-0', 'other-1', 'other-2']


def test_without_the_database_no_server_is_made(boots, nova, job, database):
    with locked(database), pytest.raises(exception.DatabaseAway):
        run(boots, job)
    assert nova.made == 0


def test_a_server_whose_end_cannot_be_written_is_deleted_all_the_same(boots, nova, job, database):
    with contextlib.ExitStack() as stack:
        def happens(second):
            stack.enter_context(locked(database))
            job.take_report(ProfileReport(SET, 'marker', 1.0))

        nova.happens = happens
        assert run(boots, job).ended_by == 'marker' and nova.there == {}
    assert rows(boots, FileState.MAKING) != []
    boots.remove_retired()
    assert rows(boots, FileState.MAKING) == [] and rows(boots, FileState.RETIRING) != []


def test_a_server_whose_making_was_not_answered_is_deleted_when_nova_is_back(boots, nova, job):
    nova.lost_answers = 1
    with pytest.raises(exception.BootcacheError, match='Nova'):
        run(boots, job)
    assert list(nova.there) == ['server-1']
    nova.away = False
    boots.remove_retired()
    assert nova.there == {}


def test_a_server_that_nova_makes_later_than_anybody_waits_is_deleted(boots, nova, job):
    """Its proxy has answered for Nova meanwhile."""
    nova.late = []
    with pytest.raises(exception.BootcacheError, match='Nova'):
        run(boots, job)
    nova.clock.now += 300
    boots.remove_retired()
    nova.there.update(nova.late)
    boots.remove_retired()
    assert nova.there == {}


def test_a_boot_whose_server_was_stopped_or_moved_is_tried_once_more(boots, nova, job, caplog):
    def happens(second):
        hear(job, nova)
        if second == 3:
            job.take_report(ProfileReport(SET, 'shutdown', 1.0))
        elif second == 60:
            job.take_report(ProfileReport(SET, 'silence', 1.0))

    nova.happens = happens
    assert run(boots, job).ended_by == 'silence'
    assert nova.made == 2 and nova.there == {} and 'tried once more' in caplog.text


def test_one_that_is_stopped_each_time_is_given_up_for_now(boots, nova, job):
    """Nothing is wrong with the image: it failed for good."""
    nova.happens = lambda second: job.take_report(ProfileReport(SET, 'shutdown', 1.0))
    with pytest.raises(exception.ServiceAway, match='stopped, moved or deleted'):
        run(boots, job)
    assert nova.made == 2 and nova.there == {}


def fails(nova, job, message, host=''):
    """Each server goes to ERROR."""
    def happens(second):
        job.host = host
        for server in nova.there.values():
            server.status, server.fault = 'ERROR', {'message': message}
            server.flavor = {'original_name': 'small'}

    nova.happens = happens


def test_one_that_nova_finds_no_host_for_is_put_off(boots, nova, job):
    """As where the cloud is full for a moment: it failed for good, and named no flavor."""
    fails(nova, job, 'No valid host was found. ')
    job.host = ''
    with pytest.raises(exception.ServiceAway, match=r'flavor small.*No valid host.*profile_flavor'):
        run(boots, job)
    assert nova.made == 1 and nova.there == {}


def test_one_that_does_not_start_says_where_and_why_and_is_tried_once_more(boots, nova, job):
    """Another host may start it: that it failed on one Nova's own weigher knows."""
    fails(nova, job, 'Build of instance x aborted: loader attribute', 'host-7')
    with pytest.raises(exception.ProfileBootFailed, match=r'small.*host-7.*loader attribute'):
        run(boots, job)
    assert nova.made == 2 and nova.there == {}


def test_a_quota_of_the_service_project_s_is_no_fault_of_the_image(boots, nova, job):
    def create(**_asked):
        raise nova_exceptions.Forbidden(403, 'Quota exceeded for cores')

    nova.create = create
    with pytest.raises(exception.ServiceAway, match='Quota exceeded'):
        run(boots, job)


def test_one_that_nova_starts_on_another_host_goes_on(boots, nova, job):
    """The first host does not say that it is over, as its guest has read nothing: see
    tests/functional/test_compute_host.py."""
    def happens(second):
        if second < 3 or second > 25:
            hear(job, nova)
        if second == 40:
            job.take_report(ProfileReport(SET, 'marker', 1.0))

    nova.happens = happens
    assert run(boots, job).ended_by == 'marker' and nova.made == 1
