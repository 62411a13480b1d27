"""What arguments of several commands mean; one that cannot be used ends a command with 2."""

import argparse
import math

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
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number of seconds above 0')
    return value


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
