"""What arguments of several commands mean; one that cannot be used ends a command with 2."""

import argparse
import math
from collections.abc import Callable

from oslo_utils import uuidutils

from bootcache import properties


def image_id(text: str) -> str:
    """Check an image id given on the command line."""
    if not uuidutils.is_uuid_like(text):
        raise argparse.ArgumentTypeError(f'{text!r} is not an image id;'
                                         ' "openstack image list" shows them')
    return text


def seconds(text: str) -> float:
    """Parse a duration given on the command line."""
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number of seconds above 0')
    return value


def count(most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1 on.

    :param most: the largest one that is taken.
    """
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= most):
            raise argparse.ArgumentTypeError(f'{text!r} is not a number from 1 to {most}')
        return int(text)
    return parse


def instead(cure: str) -> Callable[[str], str]:
    """Return a parser of an option that other commands have, and this one does not.

    :param cure: what to do.
    """
    def parse(_text: str) -> str:
        raise argparse.ArgumentTypeError(cure)
    return parse


def size(text: str) -> int:
    """Parse a size given on the command line, in bytes."""
    try:
        return properties.parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a size; give bytes or a unit, as in 512MiB') from None


def marker(text: str) -> str:
    """Check the pattern of a console line given on the command line."""
    try:
        properties.compile_marker(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
