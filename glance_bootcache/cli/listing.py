"""Tables of the commands, as people read them."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from cliff import lister, show

from bootcache import exception
from glance_bootcache.cli.arguments import image_id, seconds
from glance_bootcache.cli.client import Away, Refused

_TABLE = 'table'


class _InWords:
    """cliff's formatter of tables, for rows in which nothing stands where there is no value."""

    def __init__(self, formatter: Any, unnamed: Mapping[str, str]):
        self._formatter = formatter
        self._unnamed = unnamed

    def emit_list(self, column_names: Sequence[str], data: Iterable[Sequence[Any]],
                  stdout: TextIO, parsed_args: argparse.Namespace) -> None:
        """As cliff's; the rows are sorted by now."""
        self._formatter.emit_list(column_names, [
            [self._unnamed.get(name, '') if value is None else value
             for name, value in zip(column_names, row, strict=True)] for row in data],
            stdout, parsed_args)

    def emit_one(self, column_names: Sequence[str], data: Sequence[Any], stdout: TextIO,
                 parsed_args: argparse.Namespace) -> None:
        """As cliff's."""
        self._formatter.emit_one(
            column_names, ['' if value is None else value for value in data], stdout, parsed_args)


class Showing(show.ShowOne):  # type: ignore[misc]
    """One thing; in its table nothing stands where there is no value.

    What programs read, as JSON, is as it is.
    """

    formatter: Any

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str],
                       data: Sequence[Any]) -> int:
        """Give it out."""
        if parsed_args.formatter == _TABLE:
            self.formatter = _InWords(self.formatter, {})
        return int(super().produce_output(parsed_args, column_names, data) or 0)


class Listing(lister.Lister):  # type: ignore[misc]
    """A list; one that is empty is told in words, on standard error.

    What programs read, as JSON, is as it is, also where there is no value.

    :ivar complaints: what did not come, which is the error that follows the table; each names the
        things at fault.
    :ivar nothing: what is told of an empty list; empty where something else tells it.
    :ivar unnamed: what stands in a table where a column has no value, by the column's name.
    """

    nothing = ''
    unnamed: Mapping[str, str] = {}
    formatter: Any

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.complaints: list[str] = []

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str],
                       data: Iterable[Sequence[Any]]) -> int:
        """Give it out, then fail if there is something to complain of."""
        rows = list(data)
        known = {_plain(name) for name in column_names}
        if unknown := [name for name in parsed_args.sort_columns if _plain(name) not in known]:
            # cliff passes over them.
            raise exception.BootcacheError(f'there is no column {", ".join(unknown)} to sort by;'
                                           f' there are {", ".join(column_names)}')
        if not rows and self.nothing and self.app.options.verbose_level:
            self.app.stderr.write(f'{self.nothing}\n')
        code, is_table = 0, parsed_args.formatter == _TABLE
        if is_table:
            self.formatter = _InWords(self.formatter, self.unnamed)
        # Of an empty table cliff gives out an empty line.
        if rows or parsed_args.print_empty or not is_table:
            code = int(super().produce_output(parsed_args, column_names, rows) or 0)
        if self.complaints:
            # As one thing may be wrong with several of them.
            raise exception.BootcacheError(names(list(dict.fromkeys(self.complaints)), '; '))
        return code


def _plain(column: str) -> str:
    return column.casefold().replace(' ', '_')


_WIDEST_BAR = 30
_NARROWEST_BAR = 5
_USUAL_COLUMNS = 80


class ProgressLine:
    """Shows a text that changes.

    :param stream: where to; standard error by default, so that output can be piped.
    :param quiet: show nothing at all.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False):
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        self._last = ''
        self._renewing = False
        self._began = time.monotonic()

    def show(self, what: str, detail: str = '') -> None:
        """Show where things are.

        :param what: the step; off a terminal only a new step gets a line.
        :param detail: what changes within a step.
        """
        self._renew(what, f'{what}  {detail}')

    def bar(self, what: str, done: int, total: int, unit: str, detail: str = '') -> None:
        """Show how many of several things are done.

        :param what: the step, as in :meth:`show`; its line off a terminal has no bar.
        :param unit: what is counted, in the plural.
        """
        text = f'{done}/{total} {unit}  {detail}'.rstrip()
        if self._terminal:
            # What is there beside the text: the seconds, blanks and brackets.
            room = self._columns() - len(self._stamp(f'{what}  []  {text}')) - 1
            width = min(room, _WIDEST_BAR)
            if width >= _NARROWEST_BAR:
                full = width * done // total if total else 0
                text = f'[{"#" * full}{"." * (width - full)}]  {text}'
        self._renew(what, f'{what}  {text}')

    def line(self, text: str, *, terminal: bool = True) -> None:
        """Add a line that stays.

        :param terminal: False if it is to be left out on a terminal, where a bar says it.
        """
        if not self._terminal:
            self._write(self._stamp(text) + '\n')
        elif terminal:
            self._write(f'\r\x1b[K{self._stamp(text)}\n')
            self._renewing = False

    def end(self) -> None:
        """Leave the last text on its line."""
        if self._renewing:
            self._write('\n')
            self._renewing = False

    def _renew(self, what: str, text: str) -> None:
        if self._terminal:
            # A line that is wider than the terminal would not be renewed but repeated.
            self._write(f'\r\x1b[K{self._stamp(text)[:self._columns() - 1]}')
            self._renewing = True
        elif what != self._last:
            self._write(self._stamp(text) + '\n')
        self._last = what

    def _stamp(self, text: str) -> str:
        return f'{time.monotonic() - self._began:6.0f} s  {text}'.rstrip()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _USUAL_COLUMNS
        except (OSError, ValueError):
            return _USUAL_COLUMNS

    def _write(self, text: str) -> None:
        if self._quiet:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Whoever read it has gone. The command goes on.
            self._quiet = True


_PERIOD_SECONDS = 1.0
# Names in a message; the table has all of them.
_MOST_NAMES = 20


def names(some: Sequence[str], between: str = ', ') -> str:
    """Return names for a message, the rest counted if there are many."""
    more = len(some) - _MOST_NAMES
    return between.join(some[:_MOST_NAMES]) + (f' and {more} more' if more > 0 else '')


class WaitingLister(Listing):
    """What came of it is a table, once it has been waited for."""

    default_timeout: int

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('images', type=image_id, nargs='+', metavar='image',
                            help='ids of images')
        parser.add_argument('--no-wait', action='store_true',
                            help='only ask for it; "bootcache image where" shows what came of it')
        parser.add_argument('--timeout', type=seconds, default=self.default_timeout,
                            metavar='SECONDS',
                            help=f'how long to wait (default: {self.default_timeout})')
        return parser

    def ask_each(self, images: Sequence[str], ask: Callable[[str], Any]) -> dict[str, Any]:
        """Ask for each image; one that is refused is complained of, and stops no other.

        :returns: the answers, by image.
        """
        answers = {}
        for image in dict.fromkeys(images):
            try:
                answers[image] = ask(image)
            except Refused as error:
                self.complaints.append(str(error))
        return answers

    def wait(self, progress: ProgressLine, step: Callable[[], bool], timeout: float) -> bool:
        """Repeat a step until it is the last one; a storage service that is away may come back.

        :param step: returns True if there is nothing more to wait for.
        :param timeout: seconds.
        :returns: False if time ran out.
        """
        deadline = time.monotonic() + timeout
        away = ''
        while True:
            try:
                if step():
                    return True
                away = ''
            except Away as error:
                if not away:
                    progress.line(f'{error}; it is asked again until time is out')
                away = str(error)
            left = deadline - time.monotonic()
            if left <= 0:
                self.complaints += [away] if away else []
                return False
            time.sleep(min(_PERIOD_SECONDS, left))
