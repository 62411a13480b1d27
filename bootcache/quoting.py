"""What others say, as it may stand in a log line or on a terminal: one line, and not too long."""

import reprlib
from typing import Any

_LONGEST = 80

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _LONGEST
_short.maxlist = _short.maxtuple = _short.maxdict = 4
_short.maxlevel = 2


def quoted(value: Any) -> str:
    """Return a value as Python writes it, shortened, however long or deep it is."""
    text = _short.repr(value)
    return one_line(text if len(text) <= 2 * _LONGEST else f'{text[:2 * _LONGEST]}...')


def one_line(text: Any) -> str:
    """Return a text as one line that changes no terminal."""
    return ''.join(letter if letter.isprintable() else '?'
                   for letter in ' '.join(str(text or '').split()))
