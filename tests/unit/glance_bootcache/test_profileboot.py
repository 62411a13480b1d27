"""Profile boots: when one is over, on which flavor it runs, and whose report counts."""

import threading
import time
import types

import pytest
from novaclient import exceptions as nova_exceptions

from bootcache import exception
from bootcache.ending import BootLimits, BootProgress, ended_by
from bootcache.manifest import ImageState
from bootcache.properties import Policy
from bootcache.workingset import WorkingSet
from glance_bootcache.decisions import STUCK, SWITCHED_OFF
from glance_bootcache.glance import tenants
from glance_bootcache.profileboot import direct, throughnova
from glance_bootcache.profileboot.job import BuildJob
from glance_bootcache.profileboot.throughnova import Flavor, NovaProfileBoots, choose_flavor

LIMITS = BootLimits(quota=1000, linger=20, silence=60, timeout=900)


@pytest.mark.parametrize('progress, expected', [
    # seconds, recorded bytes, idle seconds, marker age
    ((0, 0, 0, None), None),
    ((899, 500, 59, None), None),
    ((900, 500, 0, None), 'timeout'),
    ((900, 0, 0, None), 'timeout'),
    ((10, 1000, 0, None), 'quota'),
    ((10, 999, 0, None), None),
    ((80, 500, 60, None), 'silence'),
    # Nothing was read yet: the server is not running.
    ((80, 0, 70, None), None),
    ((100, 500, 0, 0), None),
    ((100, 500, 4.9, 19.9), None),
    ((100, 500, 5, 5), 'marker'),
    # Silence before the marker is no silence after it.
    ((100, 500, 30, 4.9), None),
    ((100, 500, 60, 0), None),
    ((100, 500, 0, 20), 'marker'),
    # A marker without a recording is a host without the driver, or a lie.
    ((100, 0, 0, 20), None),
    ((900, 0, 0, 20), 'timeout'),
    # What is nearest to the truth wins.
    ((900, 1000, 60, 20), 'marker'),
    ((900, 1000, 60, None), 'quota'),
    ((900, 500, 60, None), 'silence')])
def test_when_a_boot_is_over(progress, expected):
    assert ended_by(BootProgress(*progress), LIMITS) == expected


def test_no_linger_ends_with_the_marker():
    assert ended_by(BootProgress(10, 1, 0, 0), BootLimits(1000, 0, 60, 900)) == 'marker'


FLAVORS = [Flavor('1', 'big', 4096, 40), Flavor('2', 'small', 512, 5), Flavor('3', 'tiny', 64, 0),
           Flavor('4', 'bare', 512, 0), Flavor('5', 'twin', 512, 5)]
GIB = 1 << 30


@pytest.mark.parametrize('wanted, min_ram, min_disk, size, expected', [
    (None, 64, 0, 1, 'tiny'),
    (None, 512, 0, 1, 'bare'),
    (None, 513, 0, 40 * GIB, 'big'),
    (None, 512, 6, 1, 'bare'),
    ('big', 64, 0, 1, 'big'),
    # The operator knows better.
    ('tiny', 4096, 40, 99 * GIB, 'tiny'),
    ('', 64, 0, 1, 'tiny')])
def test_flavor(wanted, min_ram, min_disk, size, expected):
    assert choose_flavor(FLAVORS, wanted, min_ram, min_disk, size).name == expected


@pytest.mark.parametrize('size, fits', [(5 * GIB, True), (5 * GIB + 1, False), (1, True)])
def test_the_base_has_to_fit_the_flavors_disk(size, fits):
    flavors = [Flavor('2', 'small', 512, 5)]
    if fits:
        assert choose_flavor(flavors, None, 512, 0, size).name == 'small'
    else:
        with pytest.raises(exception.ProfileBootFailed, match='6 GiB'):
            choose_flavor(flavors, None, 512, 0, size)


def test_equal_flavors_have_an_order():
    assert choose_flavor([FLAVORS[4], FLAVORS[1]], None, 512, 5, 1).name == 'small'
    assert choose_flavor([FLAVORS[1], FLAVORS[4]], None, 512, 5, 1).name == 'small'


def test_the_operators_flavor_has_to_have_room_for_the_image():
    assert choose_flavor(FLAVORS, 'small', 64, 0, 5 * GIB).name == 'small'
    for min_disk, size in ((0, 5 * GIB + 1), (6, 1)):
        with pytest.raises(exception.ProfileBootFailed, match='profile_flavor'):
            choose_flavor(FLAVORS, 'small', 64, min_disk, size)


@pytest.mark.parametrize('flavors, wanted, option', [
    ([], None, 'profile_flavor'), (FLAVORS, 'huge', 'profile_flavor'),
    ([FLAVORS[2]], None, 'profile_flavor')])
def test_no_flavor_names_the_option(flavors, wanted, option):
    with pytest.raises(exception.ProfileBootFailed, match=option):
        choose_flavor(flavors, wanted, 512, 1, GIB)


def test_tokens_are_secret_and_compared_whole():
    one, two = BuildJob('image'), BuildJob('image')
    assert one.token != two.token and len(one.token) >= 32
    assert one.owns(one.token) is True
    for token in (two.token, '', None, one.token[:-1], one.token + 'x', one.token.upper() + ' '):
        assert one.owns(token) is False


def test_a_token_of_strange_letters_is_just_wrong():
    assert BuildJob('image').owns('tökén') is False


def test_a_job_that_begins_anew_forgets_the_old_one():
    job = BuildJob('image')
    old = job.token
    job.host, job.working_set = 'host', WorkingSet('image', '', 1, 512, ())
    job.heard(5, 0.5)
    job.restart()
    assert not job.owns(old) and job.owns(job.token)
    assert (job.host, job.recorded_bytes, job.idle_seconds, job.heard_at, job.working_set) \
        == ('', 0, 0.0, 0.0, None)


def test_cancelling_wakes_the_worker():
    job = BuildJob('image')
    job.check_cancelled()
    woken = threading.Event()
    waiter = threading.Thread(target=lambda: (job.changed.wait(30), woken.set()))
    waiter.start()
    job.cancel()
    waiter.join(30)
    assert woken.is_set()
    with pytest.raises(exception.Cancelled):
        job.check_cancelled()


def test_a_host_is_heard():
    job = BuildJob('image')
    job.heard(5, 0.5)
    assert (job.recorded_bytes, job.idle_seconds) == (5, 0.5) and job.heard_at > 0


def test_a_domain_of_strange_names_stays_well_formed():
    from xml.etree import ElementTree
    xml = direct.domain_xml('a<b>&c', direct.Machine(memory=128), 'qemu', "/x'\"<&>", '/c&d',
                            '/drive')
    tree = ElementTree.fromstring(xml)
    sources = [node.get('file') for node in tree.iter('source') if node.get('file')]
    assert sources == ["/x'\"<&>", '/drive'] and tree.findtext('name') == 'a<b>&c'
    assert tree.find('.//interface') is None
    assert tree.get('type') == 'qemu'


def test_untrusted_images_do_not_boot_without_kvm(monkeypatch):
    monkeypatch.setattr(direct.acceleration, 'kvm_works', lambda: False)
    with pytest.raises(exception.ProfileBootFailed, match='--allow-tcg'):
        direct.record(None, 'x', None, LIMITS, direct.Machine())


# Guests that end by themselves.

class Servers:
    """Stands for Nova's servers: one that is there, and then off."""

    def __init__(self, console='', status='SHUTOFF', diagnosed='shutdown'):
        self.console, self.status, self.diagnosed = console, status, diagnosed

    def get(self, server_id):
        return types.SimpleNamespace(status=self.status)

    def get_console_output(self, server_id, length):
        return self.console

    def diagnostics(self, server_id):
        if self.diagnosed is None:
            raise nova_exceptions.Conflict(409)
        return None, {'state': self.diagnosed}


@pytest.fixture
def watch(storage_conf):
    """Watches a server whose guest has read something, and goes on reading nothing."""
    def watch(nova, idle=0.0, quota=1 << 30, read=30 << 20, changed=None):
        boots = object.__new__(NovaProfileBoots)
        boots._conf, boots._client = storage_conf.bootcache, types.SimpleNamespace(
            servers=nova)
        job = BuildJob('image', host='host')
        job.heard(read, idle)
        job.changed = changed or job.changed
        return boots._watch('server', Policy('auto', quota, 'login:'), job, time.monotonic())

    return watch


def test_a_guest_that_switches_itself_off_has_not_booted(watch):
    """For want of its disk's driver: its loader has read the kernel all the same."""
    with pytest.raises(exception.ProfileBootFailed, match='hw_disk_bus') as failed:
        watch(Servers())
    assert str(failed.value).startswith(SWITCHED_OFF)


@pytest.mark.parametrize('end', [{'idle': 1000.0}, {'quota': 1 << 20}])
def test_nor_one_of_which_nova_does_not_know_yet(watch, end):
    """Nova gives a guest that has ended a quarter of a minute to come up again."""
    with pytest.raises(exception.ProfileBootFailed, match='hw_disk_bus'):
        watch(Servers(status='ACTIVE'), **end)


@pytest.mark.parametrize('diagnosed', ['running', 'paused', None])
def test_silence_of_a_guest_that_runs_ends_its_boot(watch, monkeypatch, diagnosed):
    nova = Silent(monkeypatch, '')
    nova.diagnosed = diagnosed
    assert watch(nova, idle=1000.0) == 'silence'


def test_one_that_says_its_marker_before_it_ends_has_booted(watch):
    assert watch(Servers(console='done\nlogin: \n')) == 'marker'


# Guests that do not come up.

class Silent(Servers):
    """A server that runs; its guest says and reads what a test tells, second by second."""

    def __init__(self, monkeypatch, *consoles):
        super().__init__('', 'ACTIVE', 'running')
        self.consoles, self.looks, self.now = list(consoles), 0, time.monotonic()
        monkeypatch.setattr(throughnova.time, 'monotonic', lambda: self.now)
        monkeypatch.setattr(throughnova, '_UNHEARD_SECONDS', 1e9)
        monkeypatch.setattr(throughnova, '_POLL_SECONDS', 0)

    def get(self, server_id):
        self.now += 1
        self.looks += 1
        self.console = self.consoles.pop(0) if self.consoles[1:] else self.consoles[0]
        if self.console is None:
            self.diagnosed = 'shutdown'
        return super().get(server_id)

    def get_console_output(self, server_id, length):
        return self.console or ''


def test_a_guest_that_waits_for_its_disk_is_waited_for(watch, monkeypatch):
    """Small images' guests wait a minute for it, and then switch themselves off."""
    nova = Silent(monkeypatch, *[''] * 70, None)
    with pytest.raises(exception.ProfileBootFailed, match='hw_disk_bus') as failed:
        watch(nova, idle=60.0)
    assert str(failed.value).startswith(SWITCHED_OFF)
    assert 'driver' in tenants.told(ImageState.FAILED, str(failed.value))


@pytest.mark.parametrize('line', [
    '[    1.2] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)',
    'ALERT!  UUID=5b007cac does not exist.  Dropping to a shell!',
    '[  OK  ] Started Emergency Shell.\nYou are in emergency mode. After logging in, type',
    'Boot failed: not a bootable disk'])
@pytest.mark.parametrize('end', [{'idle': 60.0}, {'read': 2 << 20}])
def test_a_console_tells_that_a_guest_does_not_come_up(watch, monkeypatch, line, end):
    nova = Silent(monkeypatch, f'Linux\n{line}\n')
    if 'idle' not in end:
        # It goes on reading, until the time is up.
        nova.now += 0.5
        monkeypatch.setattr(BuildJob, 'idle_seconds', property(lambda _job: -1e9, lambda *_: None),
                            raising=False)
    with pytest.raises(exception.ProfileBootFailed, match='hw_disk_bus') as failed:
        watch(nova, **end)
    assert str(failed.value).startswith(STUCK) and line.splitlines()[-1][:30] in str(failed.value)
    told = tenants.told(ImageState.FAILED, str(failed.value))
    assert 'driver' in told and line.splitlines()[-1][:30] not in told


def test_such_words_of_a_guest_that_comes_up_do_not_count(watch, monkeypatch):
    nova = Silent(monkeypatch, *['Linux'] * 30, 'You are in emergency mode\nhost login: ')
    assert watch(nova, idle=60.0) == 'marker'


@pytest.mark.parametrize('console, seconds', [('', 121), ('Linux', 121)])
def test_a_guest_of_which_nothing_is_known_ends_by_silence(watch, monkeypatch, console, seconds):
    """It is given three times as long; kernels are told to be quiet."""
    nova = Silent(monkeypatch, console)
    assert watch(nova, idle=60.0) == 'silence'
    assert abs(nova.looks - seconds) <= 2


class Patient(Servers):
    """A server whose guest is quiet; each call is counted, and only the waiting takes time."""

    def __init__(self, monkeypatch):
        super().__init__('', 'ACTIVE', 'running')
        self.calls, self.now = 0, time.monotonic()
        monkeypatch.setattr(throughnova.time, 'monotonic', lambda: self.now)
        monkeypatch.setattr(throughnova, '_UNHEARD_SECONDS', 1e9)

    def wait(self, seconds):
        """As the job's event, which nothing wakes."""
        self.now += seconds

    def get(self, server_id):
        self.calls += 1
        return super().get(server_id)

    def get_console_output(self, server_id, length):
        self.calls += 1
        return super().get_console_output(server_id, length)

    def diagnostics(self, server_id):
        self.calls += 1
        return super().diagnostics(server_id)


@pytest.mark.parametrize(('idle', 'seconds'), [(0.0, 180), (60.0, 120)])
def test_a_quiet_guest_is_looked_at_now_and_then_and_its_boot_ends_as_early(
        watch, monkeypatch, idle, seconds):
    """Nova's API is there for others as well: it was asked four times a second."""
    nova = Patient(monkeypatch)
    began = nova.now
    changed = types.SimpleNamespace(wait=nova.wait, clear=lambda: None)
    assert watch(nova, idle=idle, changed=changed) == 'silence'
    assert nova.now - began == pytest.approx(seconds, abs=1)
    assert nova.calls <= seconds


@pytest.mark.parametrize(('idle', 'left', 'expected'), [
    (0, 100, 1), (10, 100, 1), (20, 100, 2), (49, 100, 4.9), (1000, 100, 5), (1000, 3.5, 3.5),
    (1000, 0.1, 1), (1000, -5, 1)])
def test_when_a_guest_is_looked_at_again(idle, left, expected):
    assert throughnova.pause(idle, left) == expected


def test_silence_of_a_guest_that_stands_still_ends_nothing(watch, monkeypatch, storage_conf):
    """64 KiB were all that it had read in a minute, on a machine that had too much to do."""
    nova = Silent(monkeypatch, '')
    with pytest.raises(exception.ProfileBootFailed, match='but 65536 bytes') as failed:
        watch(nova, idle=60.0, read=65536)
    assert abs(nova.looks - storage_conf.bootcache.profile_timeout) <= 2
    assert tenants.told(ImageState.FAILED, str(failed.value)) != tenants.GENERAL[ImageState.FAILED]


def test_a_direct_profile_boot_is_judged_in_the_same_way(monkeypatch, tmp_path):
    console, store = tmp_path / 'console', direct._Store()
    console.write_text('GRUB\ngrub rescue> ')
    store.grew(30 << 20, 1000.0)
    monkeypatch.setattr(direct, '_POLL_SECONDS', 0)
    domain = types.SimpleNamespace(name=lambda: 'domain', isActive=lambda: True)
    with pytest.raises(exception.ProfileBootFailed, match='grub rescue>'):
        direct._watch(domain, str(console), Policy('auto', 1 << 30, 'login:'),
                      BootLimits(1 << 30, 20, 60, 900), store, time.monotonic(),
                      lambda _text: None, lambda: None)


# Servers of an image.

@pytest.mark.parametrize(('before', 'found'), [(None, True), (1767225600.0, False),
                                               (1767225601.0, True)])
def test_the_oldest_server_tells_whether_one_was_created_before(storage_conf, before, found):
    asked = []

    def servers(**wanted):
        asked.append(wanted)
        return [types.SimpleNamespace(created='2026-01-01T00:00:00Z')]

    boots = object.__new__(NovaProfileBoots)
    boots._client = types.SimpleNamespace(servers=types.SimpleNamespace(list=servers))
    assert boots.has_servers('image', before) is found
    assert asked == [{'search_opts': {'all_tenants': True, 'image': 'image'}, 'limit': 1,
                      'sort_keys': ['created_at'], 'sort_dirs': ['asc']}]
