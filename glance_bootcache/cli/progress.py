"""Telling people how far something is: one line that renews itself, or plain lines."""

import sys
import time
from typing import TextIO


class Progress:
    """Shows a text that changes.

    :param stream: where to; standard error by default, so that output can be piped.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._last = ''
        self._began = time.monotonic()

    def show(self, what: str, detail: str = '') -> None:
        """Show where things are.

        :param what: the step; off a terminal only a new step gets a line.
        :param detail: what changes within a step.
        """
        seconds = time.monotonic() - self._began
        if self._terminal:
            self._stream.write(f'\r\x1b[K{seconds:6.0f} s  {what}  {detail}')
        elif what != self._last:
            self._stream.write(f'{seconds:6.0f} s  {what}  {detail}'.rstrip() + '\n')
        self._stream.flush()
        self._last = what

    def end(self) -> None:
        """Leave the last text on its line."""
        if self._terminal and self._last:
            self._stream.write('\n')
            self._stream.flush()
