"""Tables of the commands, as people read them."""

import argparse
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cliff import lister, show

from bootcache import exception
from bootcache.rpc.messages import Message
from glance_bootcache.cli.arguments import image_id, seconds
from glance_bootcache.cli.client import Away, Refused

_TABLE = 'table'


class Showing(show.ShowOne):  # type: ignore[misc]
    """One thing; in its table nothing stands where there is no value.

    What programs read, as JSON, is as it is.
    """

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str],
                       data: Sequence[Any]) -> int:
        """Give it out."""
        if parsed_args.formatter == _TABLE:
            data = ['' if value is None else value for value in data]
        return int(super().produce_output(parsed_args, column_names, data))


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
            emit = self.formatter.emit_list
            # By then cliff has sorted the rows, which it cannot where some values are words.
            self.formatter = types.SimpleNamespace(emit_list=lambda columns, rows, *more: emit(
                columns, [[self.unnamed.get(name, '') if value is None else value
                           for name, value in zip(columns, row, strict=True)] for row in rows],
                *more))
        # Of an empty table cliff gives out an empty line.
        if rows or parsed_args.print_empty or not is_table:
            code = int(super().produce_output(parsed_args, column_names, rows))
        if self.complaints:
            # As one thing may be wrong with several of them.
            raise exception.BootcacheError(names(list(dict.fromkeys(self.complaints)), '; '))
        return code


def _plain(column: str) -> str:
    return column.casefold().replace(' ', '_')


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

    def ask_and_wait(self, parsed_args: argparse.Namespace, watch: Any,
                     message: Callable[[str], Message[Any]]) -> None:
        """Ask for each image, and wait for what comes of it, unless that is not wanted.

        An image that is refused is complained of, and stops no other. A storage service that is
        away may come back.

        :param watch: takes the answers, looks once more until all is done, and says what did not
            come.
        """
        is_done = False
        try:
            for image in dict.fromkeys(parsed_args.images):
                try:
                    watch.take(image, watch.client.send(message(image)))
                except Refused as error:
                    self.complaints.append(str(error))
            if parsed_args.no_wait:
                return
            away, deadline = '', time.monotonic() + parsed_args.timeout
            while not is_done:
                try:
                    is_done, away = watch.step(), ''
                except Away as error:
                    if not away:
                        watch.progress.line(f'{error}; it is asked again until time is out')
                    away = str(error)
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                if not is_done:
                    time.sleep(min(_PERIOD_SECONDS, left))
        finally:
            watch.progress.end()
        self.complaints += [away] if away else []
        self.complaints += watch.complaints(None if is_done else parsed_args.timeout)
