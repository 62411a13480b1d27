"""How far something is, as the commands show it on standard error."""

import os
import time
from typing import TextIO

_WIDEST_BAR = 30
_NARROWEST_BAR = 5
_USUAL_COLUMNS = 80


class ProgressLine:
    """Shows a text that changes.

    :param stream: where to.
    :param quiet: show nothing at all.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False):
        self._stream = stream
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
