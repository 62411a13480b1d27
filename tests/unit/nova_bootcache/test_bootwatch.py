"""When a watched boot is over, and what is told of it.

Time is a stand-in: each look at the boot is a second later than the one before. The store is one,
too: tests/functional/test_growingstore.py has real ones.
"""

import threading
import types

import pytest
from fakes_clock import Clock

from bootcache import ending, exception
from bootcache.ending import BootLimits, BootProgress, ProfileJudge, ServerJudge
from bootcache.growingstore import Mark
from bootcache.workingset import Extent
from nova_bootcache.recording import bootwatch
from nova_bootcache.recording.bootwatch import BootWatch, WatchedBoots

LIMITS = BootLimits(quota=1 << 30, linger=30, silence=60, timeout=900)
EXTENTS = [Extent(65536, 65536, 0.5), Extent(0, 65536)]
TABLES = 300_000


class Looks:
    """Stands for the event that ends a watch: waiting for it lets a second pass."""

    def __init__(self, clock, boot):
        self._clock, self._boot, self._set = clock, boot, False

    def set(self):
        self._set = True

    def wait(self, seconds):
        if self._set:
            return True
        self._clock.now += seconds
        self._boot.second += 1
        assert self._boot.second < 10_000, 'the watch does not end'
        self._boot.happens(self._boot.second)
        return self._set


class Boot:
    """A boot, as a script says it: what happens at which second. It is its own store and console.

    :param script: by second a callable that gets the boot.
    """

    def __init__(self, clock, script):
        self._clock, self._script = clock, script
        self.second, self.text = 0, ''
        self.bytes, self.grown_at, self.grows = TABLES, clock.monotonic(), True
        self.is_full = False
        self.marks, self.reads, self.told = [], True, []

    def happens(self, second):
        if second in self._script:
            self._script[second](self)

    # What a script does.

    def read(self, count):
        self.bytes += count
        self.grown_at = self._clock.monotonic()

    def say(self, text):
        self.text += f'{text}\n'

    # What the watch asks of a store.

    def mark(self):
        return Mark(self.bytes, 1)

    def size(self):
        return self.bytes

    def idle_since(self):
        return self.grown_at

    def extents_between(self, begin, end):
        self.marks.append((begin, end))
        return list(EXTENTS) if self.reads else []


@pytest.fixture
def watched(monkeypatch):
    """Watches a scripted boot to its end; gives the boot, the reports, and who was told."""
    clock = Clock()
    monkeypatch.setattr(bootwatch, 'time', clock)

    def watch(script=(), marker='boot finished', limits=LIMITS, report=None, console=None,
              judge=None):
        boot = Boot(clock, dict(script))
        reports, over = [], []
        looks = Looks(clock, boot)
        found = BootWatch('server-1', boot, boot.mark(), (judge or ServerJudge)(limits),
                          marker, console or (lambda: boot.text), boot.told.append,
                          report or (lambda *arguments: reports.append(arguments)), over.append)
        found._shutdown = looks
        boot.watch = found
        found._run()
        assert over == [found]
        boot.reports = reports
        return boot

    return watch


def reading(*seconds):
    return {second: lambda boot: boot.read(65536) for second in seconds}


def ended_by(boot):
    assert len(boot.reports) == 1
    return boot.reports[0][1:3]


def test_a_marker_ends_it_once_it_is_quiet(watched):
    boot = watched({**reading(1, 2, 3), 10: lambda boot: boot.say('[  OK  ] boot finished.')})
    # Five seconds after the marker nothing had been read for longer than that.
    assert ended_by(boot) == ('marker', 15.0)


def test_what_is_read_after_the_marker_is_waited_for_but_not_for_ever(watched):
    boot = watched({**reading(*range(1, 100)), 10: lambda boot: boot.say('boot finished')})
    assert ended_by(boot) == ('marker', 40.0)


def test_a_marker_counts_wherever_it_is_on_the_console(watched):
    boot = watched({1: lambda boot: boot.say('x\n' * 50 + 'boot finished\nlogin:')})
    assert ended_by(boot) == ('marker', 6.0)


def test_a_marker_that_scrolled_away_was_seen(watched):
    def scroll(boot):
        boot.text = 'much else'

    boot = watched({**reading(1), 2: lambda boot: boot.say('boot finished'), 4: scroll})
    assert ended_by(boot) == ('marker', 7.0)


def test_silence_ends_it(watched):
    boot = watched(reading(1, 2, 7))
    # It is waited for longer than it took.
    assert ended_by(boot) == ('silence', 7.0) and boot.second == 67


def test_a_boot_that_reads_nothing_new_ends_as_well(watched):
    boot = watched({1: lambda boot: boot.say('Linux')})
    assert ended_by(boot) == ('silence', 0.0) and boot.second == 60


def test_a_profile_boot_s_silence_is_no_part_of_it(watched):
    """A guest that halted after three seconds was said to boot for three minutes."""
    boot = watched({3: lambda boot: boot.read(3 << 20)}, judge=ProfileJudge)
    assert ended_by(boot) == ('silence', 3.0) and boot.second == 183


def test_silence_of_a_guest_that_has_not_begun_ends_nothing(watched):
    """Nova waits for its network. Its boot was over before it began, and what it read was not told:
    the next one found it in the store, and had the rest taken for all."""
    boot = watched({**reading(200, 201, 202), 210: lambda boot: boot.say('boot finished')})
    assert ended_by(boot) == ('marker', 215.0)
    assert counted(boot) == 3 * 65536
    assert ended_by(watched()) == ('timeout', 900.0)


def standing(begin, end):
    """Its guest waits for its disk, from one second to another."""
    return {begin: lambda boot: boot.watch.stands_still(True),
            end: lambda boot: boot.watch.stands_still(False)}


def test_standing_still_is_no_silence(watched):
    """It was cut short in its record, though it read on when its disk could be read again."""
    boot = watched({**reading(1, 2), **standing(4, 400), **reading(402, 403),
                    410: lambda boot: boot.say('boot finished')})
    assert ended_by(boot) == ('marker', 415.0) and counted(boot) == 4 * 65536


def test_silence_begins_when_it_goes_on(watched):
    boot = watched({**reading(1, 2), **standing(4, 400)})
    assert ended_by(boot) == ('silence', 399.0) and boot.second == 459


def test_one_that_stood_still_for_too_long_was_cut_short(watched):
    """The limit is of a boot's own time: another one is to take its place."""
    assert ended_by(watched({**reading(1, 2), **standing(4, 5000)})) == (ending.SHUTDOWN, 900.0)
    boot = watched({**standing(4, 400), **reading(*range(1, 1000, 30))})
    assert ended_by(boot) == (ending.SHUTDOWN, 900.0)


def test_a_profile_boot_that_stands_still_is_not_over_either(watched):
    boot = watched({1: lambda boot: boot.read(2 << 20), **standing(4, 400), **reading(402),
                    410: lambda boot: boot.say('boot finished')}, judge=ProfileJudge)
    assert ended_by(boot) == ('marker', 415.0)


def test_who_watches_boots_is_told_who_stands_still(monkeypatch):
    boots = WatchedBoots(None, None, None, None, None)
    told = {}
    for server in 'ab':
        boots._watches[server] = types.SimpleNamespace(
            server_id=server, stands_still=lambda stands, server=server: told.update(
                {server: stands}))
    boots.stand_still({'b', 'c'})
    assert told == {'a': False, 'b': True}


def test_a_boot_that_never_ends_does(watched):
    assert ended_by(watched(reading(*range(1, 1000, 30)))) == ('timeout', 900.0)


def test_reading_as_much_as_the_cache_image_may_have_ends_it(watched):
    boot = watched({5: lambda boot: boot.read(1 << 20), 9: lambda boot: boot.read(3 << 20)},
                   limits=BootLimits(4 << 20, 30, 60, 900))
    assert ended_by(boot) == ('quota', 9.0)


def test_what_the_store_had_before_does_not_count(watched):
    boot = watched(reading(1), limits=BootLimits(TABLES, 30, 60, 900))
    assert ended_by(boot)[0] == 'silence'


def test_a_store_that_is_full_ends_it(watched):
    def fill(boot):
        boot.grows, boot.is_full = False, True

    assert ended_by(watched({**reading(1, 2), 8: fill})) == ('quota', 8.0)


def test_a_store_that_nobody_looks_after_any_more_tells_of_no_boot(watched, caplog):
    """nova-compute ends, or the gateway has: that was taken for the quota, and half a boot for all
    of it. A boot whose nova-compute is killed tells nothing either."""
    def stop(boot):
        boot.grows = False

    assert 'nova-compute' in lost(watched({**reading(1, 2), 8: stop}), caplog).getMessage()


def test_a_server_that_goes_ends_it(watched):
    boot = watched({**reading(1), 3: lambda boot: boot.watch.end()})
    assert ended_by(boot) == (ending.SHUTDOWN, 3.0)


def test_the_report_says_what_was_read_since_the_boot_began(watched):
    boot = watched(reading(1))
    assert boot.marks == [(Mark(TABLES, 1), Mark(TABLES + 65536, 1))]
    assert boot.reports == [(EXTENTS, 'silence', 1.0, '')]


def test_that_nothing_was_missed_is_reported_too(watched, monkeypatch):
    monkeypatch.setattr(Boot, 'extents_between', lambda boot, begin, end: [])
    assert watched(reading(1)).reports == [([], 'silence', 1.0, '')]


def lost(boot, caplog):
    lines = [record for record in caplog.records if 'is lost' in record.getMessage()]
    assert boot.reports == [] and len(lines) == 1 and 'server-1' in lines[0].getMessage()
    return lines[0]


def test_a_store_that_cannot_be_read_is_logged(watched, monkeypatch, caplog):
    def broken(boot, begin, end):
        raise exception.StorageDaemonError('gateway: refused')

    monkeypatch.setattr(Boot, 'extents_between', broken)
    assert lost(watched(reading(1)), caplog).levelname == 'WARNING'


@pytest.mark.parametrize('error', [RuntimeError('bus'), OSError('bus'), KeyError('bus')], ids=repr)
def test_a_report_that_cannot_be_made_is_logged(watched, caplog, error):
    def report(*_arguments):
        raise error

    assert lost(watched(reading(1), report=report), caplog).levelname == 'ERROR'


def test_a_marker_that_is_no_expression_is_logged(watched, caplog):
    lost(watched(reading(1), marker='('), caplog)


def test_a_console_that_cannot_be_read_is_logged(watched, caplog):
    def console():
        raise RuntimeError('no console')

    lost(watched(reading(1), console=console), caplog)


def test_it_runs_in_a_thread_of_its_own_until_it_is_told_to_end():
    reports, over = [], threading.Event()
    boot = Boot(bootwatch.time, {})
    watch = BootWatch('server-1', boot, boot.mark(), ServerJudge(LIMITS), 'never', lambda: '',
                      boot.told.append, lambda *arguments: reports.append(arguments),
                      lambda watch: over.set())
    watch.start()
    watch.end()
    watch.join(60)
    assert over.is_set() and [report[1] for report in reports] == [ending.SHUTDOWN]


def test_a_marker_that_takes_too_long_is_given_up_and_silence_ends_the_boot(watched, caplog):
    boot = watched({**reading(1, 2), 3: lambda boot: boot.say('a' * 1000 + '!')},
                   marker='^(a|aa)+$')
    assert ended_by(boot) == ('silence', 2.0) and boot.second == 62
    assert len([record for record in caplog.records if 'is given up' in record.getMessage()]) == 1


# Up to where a boot's reads count.

def counted(boot):
    """Bytes from the boot's begin to where it ended."""
    (begin, end), = boot.marks
    return end.file_bytes - begin.file_bytes


def test_a_boot_that_becomes_quiet_counts_with_its_tail(watched):
    boot = watched({**reading(1, 2, 11, 12), 10: lambda boot: boot.say('boot finished')})
    assert ended_by(boot) == ('marker', 17.0)
    assert counted(boot) == 4 * 65536


def test_a_boot_that_never_becomes_quiet_counts_up_to_its_marker(watched):
    """A tenant who reads all of the disk right after login, for instance."""
    boot = watched({**reading(1, 2, *range(11, 100)), 10: lambda boot: boot.say('boot finished')})
    assert ended_by(boot) == ('marker', 40.0)
    assert counted(boot) == 2 * 65536


@pytest.mark.parametrize('idle, linger, quiet', [
    (5.0, 30, True), (4.9, 30, False), (3.0, 3, True), (2.9, 3, False), (0.0, 0, True)])
def test_quiet_is_five_seconds_or_the_linger(idle, linger, quiet):
    judge = ServerJudge(BootLimits(1, linger, 60, 900))
    assert judge.counts_until_marker(BootProgress(100, 1, idle, 30)) is not quiet


def test_what_is_discarded_is_not_reported(watched, caplog):
    with caplog.at_level('INFO'):
        boot = watched({**reading(1), 3: lambda boot: boot.watch.discard('it was copied')})
    assert boot.reports == [] and boot.marks == []
    assert 'server server-1 read while it booted is not reported: it was copied' in caplog.text


def test_what_is_discarded_while_it_is_read_is_not_reported(watched, monkeypatch):
    def discarded(boot, _begin, _end):
        boot.watch.discard('it was copied')
        return list(EXTENTS)

    monkeypatch.setattr(Boot, 'extents_between', discarded)
    assert watched(reading(1)).reports == []


# What is said of it.

@pytest.mark.parametrize('script, told', [
    ({**reading(1), 2: lambda boot: boot.say('boot finished')}, 'has booted, as its marker was'),
    (reading(1), 'has read nothing new for a while'),
    ({**reading(*range(1, 1000))}, 'is not known to have booted'),
    ({**reading(1), 3: lambda boot: boot.watch.end()}, 'was stopped, moved or deleted before'),
], ids=['marker', 'silence', 'timeout', 'shutdown'])
def test_only_a_marker_tells_that_it_has_booted(watched, caplog, script, told):
    caplog.set_level('INFO')
    watched(script)
    (line,) = [record.getMessage() for record in caplog.records]
    assert told in line and ('has booted' in line) is ('marker' in told)
