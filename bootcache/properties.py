"""What an image's properties ask of bootcache, and what bootcache says through them. Pure."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import regex
from oslo_utils import strutils

from bootcache import exception, naming
from bootcache.reasons import Reason

MODE = 'bootcache_mode'
QUOTA = 'bootcache_quota'
BOOT_MARKER = 'bootcache_boot_marker'
SETTLE = 'bootcache_settle'
REQUIRE = 'bootcache_require'
STATE = 'bootcache_state'
REASON = 'bootcache_reason'
# Glance's own; how the names of all that make a signature begin.
SIGNATURE = 'img_signature'

# Glance's image_type of what Nova makes of a server: by "image create" and "shelve", and by "backup
# create".
_OF_A_SERVER = ('snapshot', 'backup')

MODES = ('auto', 'off')
REQUIRE_DRIVER = 'driver'
REQUIRE_WARM = 'warm'
REQUIREMENTS = (REQUIRE_DRIVER, REQUIRE_WARM)
MIN_QUOTA = 1 << 20
MAX_MARKER_LENGTH = 256
# Counts are unrolled in memory when an expression is compiled, and nested ones multiply.
_COUNTS = re.compile(r'\{([0-9]*),?([0-9]*)\}')
_MAX_REPEATS = 10_000
# It allows blanks within a count, and so would hide one.
_VERBOSE = re.compile(r'\(\?[\^A-Za-z0-9]*x')
# Sets of characters, and what is escaped, with what follows it.
_SETS = re.compile(r'(?<!\\)((?:\\\\)*)\[\^?\]?(?:\\.|[^\]\\])*\]')
_ESCAPES = re.compile(r'\\(.)(?=(.?))', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Policy:
    """How one image is to be treated.

    :ivar quota: bytes that its cache image may have.
    :ivar boot_marker: regular expression that a console line of a finished boot matches.
    :ivar settle: whether its servers are to be settled.
    """

    quota: int
    boot_marker: str
    settle: bool = True


def parse_size(text: str) -> int:
    """Return bytes for a number with an optional unit: ``536870912``, ``512MiB``, ``512M``.

    :raises ValueError: if it is no size.
    """
    text = str(text).strip()
    if not text.isascii():
        raise ValueError(f'{text} has characters that are no ASCII')
    if text.isdigit():
        return int(text)
    if text[-1:] in ('K', 'M', 'G', 'T'):
        text += 'iB'
    try:
        return int(strutils.string_to_bytes(text, unit_system='mixed', return_int=True))
    except OverflowError as error:
        raise ValueError(f'{text} is too large') from error


def parse(properties: Mapping[str, Any], *, default_quota: int, max_quota: int,
          default_marker: str) -> Policy:
    """Read an image's properties.

    :param default_quota: bytes, where the image has no ``bootcache_quota``.
    :param max_quota: bytes; the operator's bound on ``bootcache_quota``.
    :param default_marker: where the image has no ``bootcache_boot_marker``.
    :raises InvalidProperty: if a value cannot be used; the message names the property and the cure.
    """
    requirement(properties)
    mode = str(properties.get(MODE, 'auto')).strip().lower()
    if mode not in MODES:
        raise exception.InvalidProperty(
            f'{MODE}={mode[:40]!r} is not one of: {", ".join(MODES)}', Reason.INVALID_MODE)
    quota = default_quota
    if QUOTA in properties:
        raw = str(properties[QUOTA])
        try:
            quota = parse_size(raw)
        except ValueError:
            raise exception.InvalidProperty(
                f'{QUOTA}={raw[:40]!r} is not a size; give bytes or a unit, as in 512MiB',
                Reason.INVALID_QUOTA) from None
        if not MIN_QUOTA <= quota <= max_quota:
            raise exception.InvalidProperty(
                f'{QUOTA}={raw[:40]!r} is not between {MIN_QUOTA} and {max_quota} bytes',
                Reason.INVALID_QUOTA)
    marker = str(properties.get(BOOT_MARKER, default_marker))
    try:
        compile_marker(marker)
    except ValueError as error:
        raise exception.InvalidProperty(f'{BOOT_MARKER}: {error}',
                                        Reason.INVALID_BOOT_MARKER) from None
    settle = str(properties.get(SETTLE, 'yes'))
    try:
        settles = strutils.bool_from_string(settle, strict=True)
    except ValueError:
        raise exception.InvalidProperty(
            f'{SETTLE}={settle[:40]!r} is not one of: yes, no',
            Reason.INVALID_SETTLE) from None
    return Policy(quota, marker, settles)


def requirement(properties: Mapping[str, Any]) -> str | None:
    """Return what an image requires of the hosts of its servers: driver, warm, or None.

    :raises InvalidProperty: if it is something else.
    """
    required = str(properties.get(REQUIRE, '')).strip().lower()
    if not required:
        return None
    if required not in REQUIREMENTS:
        raise exception.InvalidProperty(
            f'{REQUIRE}={required[:40]!r} is not one of: {", ".join(REQUIREMENTS)}',
            Reason.INVALID_REQUIRE)
    return required


def is_snapshot(properties: Mapping[str, Any]) -> bool:
    """Tell whether an image is a snapshot of a server, by its properties in Glance."""
    return properties.get('image_type') in _OF_A_SERVER


def snapshot_parent(properties: Mapping[str, Any]) -> str | None:
    """Return the id of the image that a snapshot's server was made of; None if it names none.

    Nova writes it, and its tenant may have written another one.
    """
    if not is_snapshot(properties):
        return None
    try:
        return naming.canonical_image_id(str(properties.get('base_image_ref')))
    except ValueError:
        return None


def _needs_two_lines(marker: str) -> bool:
    """Tell whether an expression has a line break that has to be there."""
    if len((marker + 'x').splitlines()) > 1:
        return True
    # One in a set, one of two alternatives, or one that may be missing does no harm.
    plain = _SETS.sub('x', marker)
    return '|' not in plain and any(
        escaped[1] in 'nrR' and escaped[2] not in ('?', '*', '{')
        for escaped in _ESCAPES.finditer(plain))


def compile_marker(marker: str) -> Any:
    """Compile a boot marker.

    :raises ValueError: if it is empty, too long, has a NUL or is no regular expression.
    """
    if not marker or len(marker) > MAX_MARKER_LENGTH or '\0' in marker:
        # PostgreSQL keeps no NUL.
        raise ValueError(f'a marker has 1 to {MAX_MARKER_LENGTH} characters, and none is NUL')
    if _VERBOSE.search(marker):
        raise ValueError(f'{marker!r} asks for the verbose syntax, which is not served')
    if _needs_two_lines(marker):
        raise ValueError(f'{marker!r} has a line break, and a console is looked at line by line:'
                         ' it would never be seen; choose a part of one line')
    repeats = math.prod(max(int(low or 0), int(high or 0), 1)
                        for low, high in _COUNTS.findall(marker))
    if repeats > _MAX_REPEATS:
        raise ValueError(f'{marker!r} counts up to {repeats}, more than {_MAX_REPEATS};'
                         ' use * or + instead')
    try:
        return regex.compile(marker)
    except regex.error as error:
        raise ValueError(f'{marker!r} is not a regular expression: {error}') from None
