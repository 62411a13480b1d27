"""Nova is asked for a host's servers when there is a reason, and not each 10 s."""

import pytest

from nova_bootcache.settling.occasions import LONGEST_SECONDS, Occasions, is_due


@pytest.mark.parametrize('last, changed, waits, due', [
    (None, False, False, True), (4990.0, False, False, False), (4990.0, True, False, True),
    (4990.0, False, True, True), (5000.0 - LONGEST_SECONDS, False, False, True)])
def test_the_reasons(last, changed, waits, due):
    assert is_due(5000.0, last, changed, waits) is due


@pytest.fixture
def host():
    """Directories of servers, and those that are chained; counts the looks."""
    class Host:
        chained, present, asked = set(), ['a', 'b'], 0

        def ask(self):
            self.asked += 1

        def looks(self, *times, waits=False):
            before = self.asked
            for now in times:
                self.occasions.look(now, waits, self.ask)
            return self.asked - before

    host = Host()
    host.occasions = Occasions(lambda: host.present, lambda directory: directory in host.chained)
    return host


def test_nova_is_not_asked_while_all_is_settled(host):
    assert host.looks(0) == 1, 'nobody knows at first'
    assert host.looks(*range(10, LONGEST_SECONDS, 10)) == 0
    assert host.looks(LONGEST_SECONDS, LONGEST_SECONDS + 10) == 1


def test_a_server_that_boots_from_a_cache_image_or_goes_is_a_reason(host):
    host.looks(0)
    host.chained.add('b')
    assert host.looks(10, 20, 30) == 1, 'until something can be done for it'
    host.present.remove('b')
    assert host.looks(40, 50) == 1


def test_what_waits_is_a_reason(host):
    host.looks(0)
    assert host.looks(10, 20, waits=True) == 2
    assert host.looks(30) == 0


def test_what_failed_is_tried_again(host):
    def away():
        raise RuntimeError('the conductor is away')

    host.looks(0)
    host.chained.add('a')
    with pytest.raises(RuntimeError):
        host.occasions.look(10, False, away)
    assert host.looks(20, 30) == 1


def test_what_changes_during_a_look_is_another_one(host):
    host.looks(0)
    host.chained.add('a')
    host.occasions.look(10, False, lambda: host.chained.add('b'))
    assert host.looks(20, 30) == 1
