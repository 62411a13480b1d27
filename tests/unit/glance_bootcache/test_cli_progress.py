"""Progress on a pseudo-terminal, on a pipe, and where nobody reads."""

import fcntl
import os
import re
import struct
import termios

import pytest
from fakes_cli import IMAGE, Time, report

from glance_bootcache import progressline
from glance_bootcache.progressline import ProgressLine

_END = '<end of what was shown>'


class Terminal:
    """A pseudo-terminal of so many columns; ``shown`` is what was written to it."""

    def __init__(self, columns):
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
        self.stream = os.fdopen(slave, 'w')

    def shown(self):
        self.stream.flush()
        # A mark of our own comes last: the kernel hands over what was written in any pieces.
        self.stream.write(_END)
        self.stream.flush()
        text = ''
        while not text.endswith(_END):
            text += os.read(self._master, 100_000).decode()
        return text.removesuffix(_END).replace('\r\n', '\n')

    def close(self):
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal():
    """Makes pseudo-terminals."""
    made = []

    def make(columns):
        made.append(Terminal(columns))
        return made[-1]
    yield make
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def time(monkeypatch):
    """Seconds pass when the test says so."""
    time = Time()
    monkeypatch.setattr(progressline, 'time', time)
    return time


def states(text):
    """The texts that a renewing line had."""
    return [part.rstrip('\n') for part in text.split('\r\x1b[K')[1:]]


def test_a_bar_grows(terminal, time):
    tty = terminal(80)
    shown = ProgressLine(tty.stream)
    for done in (0, 1, 2):
        shown.bar('warming', done, 2, 'hosts', '1 failed' if done else '')
        time.sleep(70)
    shown.end()
    text = tty.shown()
    assert states(text) == [
        f'     0 s  warming  [{"." * 30}]  0/2 hosts',
        f'    70 s  warming  [{"#" * 15}{"." * 15}]  1/2 hosts  1 failed',
        f'   140 s  warming  [{"#" * 30}]  2/2 hosts  1 failed']
    assert text.count('\n') == 1 and text.endswith('\n')


@pytest.mark.parametrize('columns', [10, 25, 33, 41, 42, 60, 79, 200])
def test_a_line_is_never_as_wide_as_the_terminal(terminal, columns):
    tty = terminal(columns)
    shown = ProgressLine(tty.stream)
    shown.bar('warming', 3, 12, 'hosts', 'x' * 5)
    shown.bar('warming', 3, 12, 'hosts')
    shown.show('recording', 'x' * 300)
    for text in states(tty.shown()):
        assert len(text) < columns


def test_a_narrow_terminal_has_the_numbers_without_the_bar(terminal):
    tty = terminal(34)
    ProgressLine(tty.stream).bar('warming', 3, 12, 'hosts')
    assert states(tty.shown()) == ['     0 s  warming  3/12 hosts']


def test_a_terminal_that_does_not_know_its_width(terminal):
    tty = terminal(0)
    ProgressLine(tty.stream).show('recording', 'x' * 300)
    assert len(states(tty.shown())[0]) == 79


def test_a_line_that_stays(terminal):
    tty = terminal(80)
    shown = ProgressLine(tty.stream)
    shown.bar('warming', 1, 2, 'hosts')
    shown.line('asked again')
    shown.line('only where there is no bar', terminal=False)
    shown.bar('warming', 2, 2, 'hosts')
    shown.end()
    shown.end()
    text = tty.shown()
    assert states(text)[1] == '     0 s  asked again' and 'only where' not in text
    assert text.count('\n') == 2


def test_nothing_shown_leaves_no_line(terminal):
    tty = terminal(80)
    shown = ProgressLine(tty.stream)
    shown.end()
    tty.stream.write('.')
    assert tty.shown() == '.'


def test_a_pipe_has_plain_lines_only():
    read, write = os.pipe()
    with os.fdopen(write, 'w') as stream:
        shown = ProgressLine(stream)
        shown.bar('warming', 0, 2, 'hosts')
        shown.bar('warming', 1, 2, 'hosts')
        shown.line('host one: cached', terminal=False)
        shown.end()
    with os.fdopen(read) as stream:
        assert stream.read() == '     0 s  warming  0/2 hosts\n     0 s  host one: cached\n'


def test_a_pipe_that_nobody_reads_ends_nothing():
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, 'w')
    shown = ProgressLine(stream)
    shown.line('lost')
    shown.bar('warming', 1, 2, 'hosts')
    shown.end()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_quiet(terminal):
    tty = terminal(80)
    shown = ProgressLine(tty.stream, quiet=True)
    shown.show('recording')
    shown.bar('warming', 1, 2, 'hosts')
    shown.line('a line')
    shown.end()
    tty.stream.write('.')
    assert tty.shown() == '.'


# The commands.

def test_warming_on_a_terminal(cli, terminal):
    tty = terminal(60)
    cli.time.after(1, lambda: cli.api.warming.update({IMAGE: [report(
        'racks', one=('cached', 1, ''), two=('error', 1, 'no room'))]}))
    cli.time.after(3, lambda: cli.api.warming.update({IMAGE: [report(
        'racks', True, one=('cached', 1, ''), two=('cached', 2, ''))]}))
    done = cli('warm', IMAGE, '--aggregate', 'racks', stderr=tty.stream)
    assert done.code == 0 and '| two  | cached' in done.out
    lines = states(tty.shown())
    assert lines[0] == '     0 s  waiting for Nova'
    assert re.fullmatch(r' +1 s  warming  \[#+\.+\]  1/2 hosts  1 failed', lines[1])
    assert re.fullmatch(r' +3 s  warming  \[#+\]  2/2 hosts', lines[-2])
    assert lines[-1].startswith('     3 s  nova-scheduler knows of hosts')


def test_evicting_on_a_terminal(cli, terminal):
    tty = terminal(60)
    cli.api.where[IMAGE] = {'storage': None, 'hosts': [
        {'host': 'one', 'leaving': False, 'seen': 0, 'medium': 'disk'}]}
    cli.api.hosts = [{'host': 'one'}]
    cli.time.after(2, lambda: cli.api.where[IMAGE]['hosts'].clear())
    assert cli('evict', IMAGE, stderr=tty.stream).code == 0
    lines = states(tty.shown())
    assert re.fullmatch(r' +0 s  letting go  \[\.+\]  0/1 hosts', lines[0])
    assert re.fullmatch(r' +2 s  letting go  \[#+\]  1/1 hosts', lines[-1])


def test_standard_error_that_nobody_reads_fails_no_command(cli):
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, 'w')
    cli.api.warming[IMAGE] = [report('racks', True, one=('cached', 1, ''))]
    assert cli('warm', IMAGE, '--aggregate', 'racks', stderr=stream).code == 0
    with pytest.raises(BrokenPipeError):
        stream.close()
