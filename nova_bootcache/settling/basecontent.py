"""Whether a full base that is here is of the content on which servers' disks stand.

Stock Nova, too, makes bases at that path, and of what the image is then: after Glance's database
was restored, of another content than servers of the host were started from. A base that was made
or compared here says so itself, by an extended attribute: a file that takes its place has none.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache import exception, qemuimg

LOG = logging.getLogger(__name__)

_ATTRIBUTE = 'user.bootcache.content'
# Each piece has a deadline of its own: a frozen storage node is not noticed otherwise.
_PIECE = 1 << 30
_SLOWEST = 1 << 20
_GRACE_SECONDS = 600
# Such an attribute has room in the inode, and takes no block of its own.
_DIGITS = 40


def identity(path: str) -> tuple[int, int]:
    """Return what tells a file from another one that takes its name.

    :raises OSError: if there is none.
    """
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _short(content: str) -> str:
    algorithm, colon, digest = content.partition(':')
    if not colon:
        return f'name-{hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]}'
    return f'{algorithm}:{digest[:_DIGITS]}'


def note(path: str, content: str) -> None:
    """Note in a base what content it has.

    libvirt may have given the file to its own user, or its file system know no such attributes:
    it is compared again then.

    :param content: hash of the image, or the exporter's name for the base where that is not known.
    """
    try:
        os.setxattr(path, _ATTRIBUTE, _short(content).encode())
    except OSError as error:
        LOG.debug('the content of %s is not noted in it: %s', path, error)


def noted(path: str) -> str:
    """Return the begin of what content a base has; empty if it does not say."""
    try:
        return os.getxattr(path, _ATTRIBUTE).decode()
    except (OSError, UnicodeDecodeError):
        return ''


def is_noted(path: str, contents: Collection[str]) -> bool:
    """Tell whether a base says that it is of a content; no if it does not say.

    :param contents: what it may be called, as in :func:`note`.
    """
    found = noted(path)
    return any(content and found == _short(content) for content in contents)


def check(path: str, image_format: str, content: str, source: Callable[[], Mapping[str, Any]],
          rate: int, is_over: Callable[[], None]) -> tuple[int, int]:
    """Check that a base is of a content; one that does not say is compared with the storage node's.

    That reads all of both, once for a file.

    :param image_format: of the base, raw or qcow2.
    :param content: what the servers' disks stand on, as in :func:`note`.
    :param source: gives the block node of the storage node's base.
    :param rate: bytes a second that are read of it at most; 0 for no limit.
    :param is_over: called several times a second; what it raises ends the comparing.
    :returns: the identity of the file that was checked.
    :raises BootcacheError: if it is of another content, or that cannot be told.
    :raises OSError: if it is not there.
    """
    checked = identity(path)
    found = noted(path)
    if found == _short(content):
        return checked
    # Names of exports tell nothing of each other.
    is_other = ':' in found and ':' in content
    if not is_other:
        LOG.info('base %s is compared with the storage node\'s, at %d bytes a second, as it was not'
                 ' made here', path, rate)
        is_other = not _is_same(path, image_format, source(), rate, is_over)
    if is_other:
        raise exception.BootcacheError(
            f'base {path} is of another content than the disks of the image\'s servers ({content});'
            ' these stay on their cache image. Restore the image\'s content and remove the base'
            ' once no server uses it, or rebuild the servers')
    if identity(path) != checked:
        raise exception.BootcacheError(f'base {path} was replaced while it was compared')
    note(path, content)
    return checked


def _is_same(path: str, image_format: str, source: Mapping[str, Any], rate: int,
             is_over: Callable[[], None]) -> bool:
    virtual_bytes = qemuimg.info(path, image_format)['virtual-size']
    for offset in range(0, max(virtual_bytes, 1), _PIECE):
        # The last one goes to the end of both: what is longer has to be zeros there.
        length = _PIECE if offset + _PIECE < virtual_bytes else None
        if not qemuimg.is_same_piece(
                source, path, image_format, offset=offset, length=length, rate=rate, check=is_over,
                seconds=_GRACE_SECONDS + 3 * _PIECE / (rate or _SLOWEST)):
            return False
    return True
