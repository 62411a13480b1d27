"""A boot marker is found where it is, and costs no more than its budget where it is hostile."""

import types

import pytest

from bootcache import bootend, properties
from bootcache.bootend import LOOK_SECONDS, BootMarker
from glance_bootcache.bootconf import DEFAULT_MARKER


def seen(marker, console):
    return BootMarker(marker, 'server 1').seen(lambda: console)


@pytest.mark.parametrize('console, expected', [
    ('', False), ('booting\nhost login: ', True), ('host login:', True), ('login: root', True),
    ('host login: [  9.1] cloud-init', True),
    ('login:x', False),
    ('\x1b[32mlogin:', False), ('xlogin:', False), ('a\r\nlogin:\r\nb', True)])
def test_the_default_marker(console, expected):
    assert seen(DEFAULT_MARKER, console) is expected


def test_only_the_start_of_a_line_is_looked_at():
    assert seen('here', 'x' * 1020 + 'here')
    assert not seen('here', 'x' * 1021 + 'here')


def test_only_the_last_lines_are_looked_at():
    assert seen('here', 'here\n' + 'x\n' * 199)
    assert not seen('here', 'here\n' + 'x\n' * 200)


@pytest.mark.parametrize('pattern', [r'^(a+)+$', r'(x+x+)+y', r'^((a|a)+)+$', r'(a|aa)+c'])
def test_a_catastrophic_marker_is_given_up_with_one_line(pattern, caplog):
    """Without a limit this runs for longer than the universe has been there."""
    marker = BootMarker(pattern, 'server 1')
    console = '\n'.join(['a' * 1000 + '!', 'x' * 1000] * 20)
    for _look in range(3):
        assert marker.seen(lambda: console) is False
    assert marker.given_up
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert pattern in warnings[0].replace('\\\\', '\\')
    assert 'server 1' in warnings[0] and properties.BOOT_MARKER in warnings[0]


class Hostile:
    """An expression whose every line costs so many seconds of a clock that it keeps itself."""

    def __init__(self, cost):
        self.now, self._cost, self.timeouts = 0.0, cost, []

    def search(self, _line, timeout):
        self.timeouts.append(timeout)
        self.now += min(self._cost, timeout)
        if self._cost > timeout:
            raise TimeoutError
        return None

    def thread_time(self):
        return self.now


@pytest.mark.parametrize('cost', [0.0002, 0.001, 0.004, 0.03, 0.2])
def test_all_lines_of_a_look_share_one_budget(monkeypatch, cost):
    """Lines that are each below a limit took 18 s together: 585 of 30 ms."""
    expression = Hostile(cost)
    monkeypatch.setattr(properties, 'compile_marker', lambda marker: expression)
    monkeypatch.setattr(bootend, 'time',
                        types.SimpleNamespace(thread_time=expression.thread_time))
    marker = BootMarker('x', 'server 1')
    asked = []

    def console():
        asked.append(True)
        return 'line\n' * 585

    for _look in range(4):
        marker.seen(console)
    if cost * 200 < LOOK_SECONDS:
        # Lines that people write: each look is whole.
        assert not marker.given_up and len(asked) == 4 and len(expression.timeouts) == 800
    else:
        assert marker.given_up and len(asked) == 1
        assert expression.now <= LOOK_SECONDS + 0.001
    assert all(0 < timeout <= LOOK_SECONDS for timeout in expression.timeouts)


def test_a_marker_that_was_found_is_not_paid_for_by_what_follows():
    assert seen(r'^here$|(a+)+$', 'here\n' + ('a' * 1000 + '!\n') * 20)
