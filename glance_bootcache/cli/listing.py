"""Tables of the commands, as people read them."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from cliff import lister, show

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

    :ivar nothing: what is told of an empty list; empty where something else tells it.
    :ivar unnamed: what stands in a table where a column has no value, by the column's name.
    """

    nothing = ''
    unnamed: Mapping[str, str] = {}
    formatter: Any

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str],
                       data: Iterable[Sequence[Any]]) -> int:
        """Give it out."""
        rows = list(data)
        if not rows and self.nothing and self.app.options.verbose_level:
            self.app.stderr.write(f'{self.nothing}\n')
        if parsed_args.formatter == _TABLE:
            if not rows and not parsed_args.print_empty:
                # cliff gives out an empty line.
                return 0
            self.formatter = _InWords(self.formatter, self.unnamed)
        return int(super().produce_output(parsed_args, column_names, rows) or 0)
