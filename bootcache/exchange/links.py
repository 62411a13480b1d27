"""Open files that have no path of their own here, by paths that libtorrent can open them by.

libtorrent opens a file by its path for each read and write. Here that is a link to the descriptor,
under a name that is never used again: what is still to be written to a file that was let go of goes
to no other. So a file's owner may rename and remove it, and what is left of a process that was
killed are links to nothing.
"""

import contextlib
import dataclasses
import itertools
import os

# Of a file system: where it has less, files without a name are not kept.
_LEAST_FREE_PERCENT = 10


@dataclasses.dataclass(frozen=True)
class Link:
    """An open file.

    :ivar path: by which it can be opened.
    :ivar descriptor: a descriptor of its own.
    """

    path: str
    descriptor: int

    def close(self) -> None:
        """Let go of the file, also if somebody else has removed the link."""
        # First the link: nothing is opened by it from now on.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self.descriptor)

    def is_of(self, descriptor: int) -> bool:
        """Tell whether it is the file that another descriptor is open on.

        :raises OSError: if one of them cannot be looked at.
        """
        return os.path.samestat(os.fstat(descriptor), os.fstat(self.descriptor))

    def is_in_the_way(self) -> bool:
        """Tell whether the file has lost its name, and its file system has little space.

        :raises OSError: if it cannot be looked at.
        """
        there = os.fstatvfs(self.descriptor)
        return is_in_the_way(os.fstat(self.descriptor).st_nlink > 0,
                             there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize)


def is_in_the_way(is_named: bool, free: int, size: int) -> bool:
    """Tell whether a file takes space that others may need. Pure.

    :param is_named: whether it still has a name: who counts space counts it then.
    :param free: bytes of its file system, of those that are not only root's.
    :param size: of its file system, in bytes.
    """
    return not is_named and free * 100 < size * _LEAST_FREE_PERCENT


class Links:
    """The links of this process.

    :param directory: theirs only; what is left there is removed.
    :raises OSError: if it cannot be made, or read.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self._numbers = itertools.count()
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))

    def make(self, descriptor: int) -> Link:
        """Make a link to an open file, of which a descriptor of our own is made.

        :raises OSError: if there are no more descriptors, or the directory cannot be written.
        """
        copy = os.dup(descriptor)
        path = os.path.join(self.directory, str(next(self._numbers)))
        try:
            os.symlink(f'/proc/self/fd/{copy}', path)
        except OSError:
            os.close(copy)
            raise
        return Link(path, copy)
