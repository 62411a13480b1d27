"""Profile boots: when one is over, and whose report counts."""

import threading
import types

import pytest
from fakes_clock import Clock
from novaclient import exceptions as nova_exceptions

from bootcache import exception
from bootcache.ending import BootLimits, BootProgress, ProfileJudge, ended_by
from bootcache.manifest import ImageState
from bootcache.properties import Policy
from bootcache.reasons import Reason
from bootcache.workingset import WorkingSet
from glance_bootcache.glance import tenants
from glance_bootcache.profileboot import direct, throughnova
from glance_bootcache.profileboot.job import ImageJob, ProfileReport
from glance_bootcache.profileboot.throughnova import NovaProfileBoots

EMPTY = WorkingSet('image', '', 1, 512, ())
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


def test_tokens_are_secret_and_compared_whole():
    one, two = ImageJob('image'), ImageJob('image')
    assert one.token != two.token and len(one.token) >= 32
    assert one.owns(one.token) is True
    for token in (two.token, '', None, one.token[:-1], one.token + 'x', one.token.upper() + ' '):
        assert one.owns(token) is False


def test_a_token_of_strange_letters_is_just_wrong():
    assert ImageJob('image').owns('tökén') is False


def test_a_job_that_begins_anew_forgets_the_old_one():
    job = ImageJob('image')
    old = job.token
    job.host = 'host'
    job.take_report(ProfileReport(EMPTY, 'marker', 1.0))
    job.heard(5)
    job.restart()
    assert not job.owns(old) and job.owns(job.token)
    assert (job.host, job.recorded_bytes, job.heard_at, job.report) == ('', 0, 0.0, None)


def test_cancelling_wakes_the_worker():
    job = ImageJob('image')
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
    job = ImageJob('image')
    job.heard(5)
    assert job.recorded_bytes == 5 and job.heard_at > 0


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


def test_a_daemon_that_does_not_start_is_told_of_and_leaves_nothing(monkeypatch, tmp_path):
    def refuse(daemon):
        raise exception.StorageDaemonError('there is no qemu-storage-daemon')

    monkeypatch.setattr(direct.acceleration, 'kvm_works', lambda: True)
    monkeypatch.setattr(direct.tempfile, 'tempdir', str(tmp_path))
    monkeypatch.setattr(direct.StorageDaemon, 'ensure_running', refuse)
    with pytest.raises(exception.StorageDaemonError, match='there is no'):
        direct.record(None, 'x', None, LIMITS, direct.Machine())
    assert list(tmp_path.iterdir()) == []


# What the service waits for.

class Servers:
    """Stands for Nova's servers: one, whose state each look may change.

    :param looks: called with the number of the look.
    """

    def __init__(self, console='', status='ACTIVE', diagnosed='running', looks=lambda number: None):
        self.console, self.status, self.diagnosed = console, status, diagnosed
        self.number, self.looks = 0, looks

    def get(self, server_id):
        self.number += 1
        self.looks(self.number)
        return types.SimpleNamespace(status=self.status, fault={'message': 'no valid host'})

    def get_console_output(self, server_id, length):
        return self.console

    def diagnostics(self, server_id):
        if self.diagnosed is None:
            raise nova_exceptions.Conflict(409)
        return None, {'state': self.diagnosed}


@pytest.fixture
def waits(storage_conf, monkeypatch):
    """Waits for a report as a profile boot does; each look is a second later."""
    def waits(nova, report=None, host='host', heard=True, read=30 << 20):
        clock = Clock()
        monkeypatch.setattr(throughnova, 'time', clock)
        boots = object.__new__(NovaProfileBoots)
        boots._conf, boots._client = storage_conf.bootcache, types.SimpleNamespace(servers=nova)
        job = ImageJob('image', host=host, recorded_bytes=read)
        job.heard_at = clock.now if heard else 0.0
        job.wait = lambda seconds: setattr(clock, 'now', clock.now + seconds)
        if report is not None:
            job.take_report(ProfileReport(EMPTY, report[0], 1.0, report[1]))
        policy = Policy(1 << 30, 'login:')
        return boots._checked('server', policy, job, boots._wait('server', policy, job, clock.now))

    return waits


@pytest.mark.parametrize('ended_by', ['marker', 'silence', 'quota', 'timeout'])
def test_what_ended_a_boot_is_what_its_host_says(waits, ended_by):
    assert waits(Servers(), (ended_by, '')) == ended_by


@pytest.mark.parametrize('nova', [Servers(status='SHUTOFF', diagnosed=None),
                                  Servers(diagnosed='shutdown')], ids=['known', 'not known yet'])
@pytest.mark.parametrize('ended_by', ['silence', 'quota', 'timeout', 'nothing', 'shutdown'])
def test_a_guest_that_switches_itself_off_has_not_booted(waits, nova, ended_by):
    """For want of its disk's driver: its loader has read the kernel all the same. Nova gives it a
    quarter of a minute to come up again."""
    with pytest.raises(exception.ProfileBootFailed, match='hw_disk_bus') as failed:
        waits(nova, (ended_by, ''))
    assert failed.value.cause.reason is Reason.SWITCHED_OFF
    assert 'driver' in tenants.told(ImageState.FAILED, failed.value.cause)


def test_one_that_says_its_marker_before_it_ends_has_booted(waits):
    assert waits(Servers('done\nlogin: \n', 'SHUTOFF'), ('shutdown', '')) == 'marker'


def test_one_that_is_off_is_not_waited_for(waits):
    with pytest.raises(exception.ProfileBootFailed, match='switched itself off'):
        waits(Servers(status='SHUTOFF'))


@pytest.mark.parametrize('report', [None, ('silence', '')], ids=['waited for', 'reported'])
def test_one_that_is_off_has_said_why(waits, report):
    with pytest.raises(exception.ProfileBootFailed, match=r'console says .*Kernel panic'):
        waits(Servers('Linux\nKernel panic - not syncing: no init\n', 'SHUTOFF'), report)


def test_nova_takes_its_time_to_say_that_it_is_off(waits):
    """The host is told to stop it, and reports, before Nova says so."""
    def looks(number):
        nova.status = 'ACTIVE' if number < 5 else 'SHUTOFF'

    nova = Servers(diagnosed=None, looks=looks)
    with pytest.raises(exception.ProfileBootFailed, match='switched itself off'):
        waits(nova, ('shutdown', ''))
    assert nova.number == 5


def test_a_server_that_is_deleted_is_not_waited_for(waits):
    def looks(number):
        if number > 1:
            raise nova_exceptions.NotFound(404)

    nova = Servers(diagnosed='running', looks=looks)
    with pytest.raises(exception.ServiceAway, match='stopped, moved or deleted'):
        waits(nova, ('shutdown', ''))
    assert nova.number == 2


@pytest.mark.parametrize('heard', [True, False])
def test_a_server_that_is_deleted_before_its_host_reports_is_no_fault_of_the_image(waits, heard):
    """Its host may never tell: somebody else's hand, or another storage service's."""
    def looks(number):
        if number > 1:
            raise nova_exceptions.NotFound(404)

    with pytest.raises(exception.ServiceAway, match='stopped, moved or deleted'):
        waits(Servers(looks=looks), heard=heard)


@pytest.mark.parametrize('diagnosed', ['running', 'paused', None])
def test_a_server_that_somebody_stopped_was_no_boot(waits, diagnosed):
    with pytest.raises(exception.ServiceAway, match='stopped, moved or deleted'):
        waits(Servers(diagnosed=diagnosed), ('shutdown', ''))


def test_a_guest_that_is_stuck_is_told_of_by_its_line(waits):
    line = 'Kernel panic - not syncing: VFS: Unable to mount root fs'
    with pytest.raises(exception.ProfileBootFailed, match='hw_disk_bus') as failed:
        waits(Servers(), ('stuck', f'{line}\x1b[31m{"x" * 5000}'))
    assert failed.value.cause.reason is Reason.STUCK and line in str(failed.value)
    assert '\x1b' not in str(failed.value) and len(str(failed.value)) < 600
    told = tenants.told(ImageState.FAILED, failed.value.cause)
    assert 'driver' in told and 'Kernel' not in told


def test_a_guest_that_stands_still_is_told_of(waits):
    with pytest.raises(exception.ProfileBootFailed, match='but 65536 bytes') as failed:
        waits(Servers(), ('nothing', ''), read=65536)
    assert tenants.told(ImageState.FAILED, failed.value.cause) != tenants.GENERAL[ImageState.FAILED]


def test_a_server_that_fails_says_why(waits):
    with pytest.raises(exception.ProfileBootFailed, match='no valid host'):
        waits(Servers(status='ERROR'))


def test_a_host_that_falls_silent_has_lost_the_recording(waits):
    with pytest.raises(throughnova._RecordingLost, match='host stopped reporting'):
        waits(Servers())


@pytest.mark.parametrize(('host', 'said'), [('', 'did not ask for a recording'),
                                            ('host', 'compute host host stopped reporting')])
def test_a_host_that_does_not_speak_is_named_with_the_cure(waits, host, said):
    nova = Servers()
    with pytest.raises(exception.BootcacheError, match=said):
        waits(nova, host=host, heard=False)
    assert nova.number <= throughnova._UNHEARD_SECONDS + 2


def test_a_server_that_is_never_built_is_given_up(waits, storage_conf):
    with pytest.raises(exception.ServiceAway, match=r'did not report.*BUILD'):
        waits(Servers(status='BUILD'), host='', heard=False)


def test_a_report_wakes_who_waits():
    job = ImageJob('image')
    job.take_report(ProfileReport(EMPTY, 'marker', 1.0))
    job.wait(3600)
    assert not job.changed.is_set()


# Guests that do not come up.

def judged(idle, consoles, read=30 << 20, marks=True):
    """Return what ended a boot that reads nothing from a second on, after how many seconds."""
    judge = ProfileJudge(BootLimits(1 << 30, 20, 60, 900))
    for second in range(1, 1000):
        console = consoles[min(second, len(consoles)) - 1]
        ended = judge.ended_by(BootProgress(float(second), read, idle(second), None),
                               lambda console=console: console, marks)
        if ended:
            return ended, second, judge.line
    raise AssertionError('it does not end')


@pytest.mark.parametrize('line', [
    '[    1.2] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)',
    'ALERT!  UUID=5b007cac does not exist.  Dropping to a shell!',
    '[  OK  ] Started Emergency Shell.\nYou are in emergency mode. After logging in, type',
    'Boot failed: not a bootable disk', 'GRUB\ngrub rescue> '])
@pytest.mark.parametrize(('idle', 'seconds'), [(float, 60), (lambda second: 0.0, 900)],
                         ids=['quiet', 'reading'])
def test_a_console_tells_that_a_guest_does_not_come_up(line, idle, seconds):
    ended_by, second, said = judged(idle, [f'Linux\n{line}\n'])
    assert (ended_by, second) == ('stuck', seconds) and said == line.strip().splitlines()[-1]


@pytest.mark.parametrize('console', ['', 'Linux'])
def test_a_guest_of_which_nothing_is_known_ends_by_silence(console):
    """It is given three times as long; kernels are told to be quiet."""
    assert judged(float, [console])[:2] == ('silence', 180)


def test_one_whose_marker_is_given_up_is_not_given_so_long():
    assert judged(float, [''], marks=False)[:2] == ('silence', 60)


def test_silence_of_a_guest_that_stands_still_ends_nothing():
    """64 KiB were all that it had read in a minute, on a machine that had too much to do."""
    assert judged(float, ['Loading'], read=65536)[:2] == ('nothing', 900)


def test_one_that_says_nothing_and_has_read_next_to_nothing_is_not_given_all_of_the_time():
    """Its project's other images wait for their turns meanwhile."""
    assert judged(float, [' \n'], read=65536)[:2] == ('nothing', 300)
    # While it reads, it gets on.
    assert judged(lambda second: 0.0, [''], read=65536)[:2] == ('nothing', 900)
    # It need not have begun.
    assert judged(float, [''], read=0)[:2] == ('nothing', 900)


def test_such_words_of_a_guest_that_comes_up_do_not_count():
    judge = ProfileJudge(BootLimits(1 << 30, 20, 60, 900))
    progress = BootProgress(100.0, 30 << 20, 60.0, 6.0)
    assert judge.ended_by(progress, lambda: 'You are in emergency mode\nlogin: ', True) == 'marker'


def test_all_that_a_profile_boot_reads_counts():
    judge = ProfileJudge(BootLimits(1 << 30, 20, 60, 900))
    assert not judge.counts_until_marker(BootProgress(100.0, 30 << 20, 0.0, 20.0))


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
