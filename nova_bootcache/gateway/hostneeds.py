"""Who on this host needs what is below its servers' disks: the one answer to that.

A need is entered before anything is decided by what is here, so that what was decided by is still
here when it is done; and nothing is let go of while somebody enters.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator

from bootcache import tier
from bootcache.locks import KeyedLocks, UsageCounts, leaf
from nova_bootcache.locks import Rank

# Nova may wait for the network, five minutes by default, between a disk's making and its opening.
_OPENED_SECONDS = 900


def _was_opened(path: str, made_at: int) -> bool:
    """Tell whether a disk is open, or was written since a time in nanoseconds, or is gone."""
    try:
        return tier.is_open(path) or os.stat(path).st_mtime_ns != made_at
    except FileNotFoundError:
        return True


def _server_of(path: str) -> str:
    """Return the id of the server whose disk it is, also where that is kept for a revert."""
    return os.path.basename(os.path.dirname(path)).removesuffix('_resize')


class HostNeeds:
    """Disks in the making, boots that are watched, arrivals, and servers that are not settled.

    :ivar deciding: an image's lock is held while somebody enters, and by whoever finds that nobody
        needs something of the image until that is gone.
    """

    def __init__(self) -> None:
        self.deciding = KeyedLocks(Rank.DECIDING, 'the lock of the needs of image')
        # Guards what follows; held for dictionary steps.
        self._lock = leaf('the lock of the list of needs')
        # Disks that were just made or are about to be opened: their images, until when that is
        # believed in monotonic seconds, and their files' time.
        self._in_making: dict[str, tuple[str, float, int]] = {}
        self._arriving: set[str] = set()
        # None as long as nobody has looked: then all are needed.
        self._unsettled: frozenset[str] | None = None
        # Operations of Nova's, by server; boots that are watched, or about to be, by image.
        self._operations = UsageCounts('Nova\'s operations')
        self._booting = UsageCounts('boots')

    # Nova's operations.

    def operating(self, server_id: str) -> contextlib.AbstractContextManager[None]:
        """Note that Nova works on a server: what its disk needs stays until that has ended.

        Its disk may be opened before for another purpose, such as files that are put into it, and
        be renamed, before QEMU opens it.
        """
        return self._operations.of(server_id)

    def is_operated(self, server_id: str) -> bool:
        """Tell whether Nova works on a server."""
        return server_id in self._operations

    # Chains in the making.

    @contextlib.contextmanager
    def making(self, image_id: str, path: str) -> Iterator[None]:
        """Keep what a chain needs until its disk is opened, or is not going to be.

        And until Nova's operation on the server has ended, see ``operating``.

        :param path: of the disk; where the block has made none, nothing is kept.
        """
        until = time.monotonic() + _OPENED_SECONDS
        # Not while something is let go of: what is there from now on stays.
        with self.deciding.of(image_id), self._lock:
            self._in_making[path] = image_id, until, 0
        try:
            yield
            if os.path.exists(path):
                with self._lock:
                    self._in_making[path] = image_id, until, os.stat(path).st_mtime_ns
            else:
                self.not_made(path)
        except BaseException:
            self.not_made(path)
            raise

    def not_made(self, path: str) -> None:
        """Note that a disk is not going to be opened."""
        with self._lock:
            self._in_making.pop(path, None)

    def is_in_making(self, image_id: str) -> bool:
        """Tell whether a chain was made, or mended, that nobody has opened yet."""
        now = time.monotonic()
        with self._lock:
            pending = list(self._in_making.items())
        for path, known in pending:
            _image_id, until, made_at = known
            if not self.is_operated(_server_of(path)) \
                    and (now > until or (made_at and _was_opened(path, made_at))):
                with self._lock:
                    # It may have been mended anew meanwhile.
                    if self._in_making.get(path) == known:
                        del self._in_making[path]
        with self._lock:
            return any(image == image_id for image, _until, _made in self._in_making.values())

    # Boots.

    def begin_boot(self, image_id: str) -> None:
        """Note that a boot from an image is watched: its growing store stays."""
        self._booting.begin(image_id)

    def end_boot(self, image_id: str) -> None:
        """Note that one that was is not watched any more."""
        self._booting.end(image_id)

    def booting(self, image_id: str) -> contextlib.AbstractContextManager[None]:
        """Keep an image's growing store while the block runs: somebody is about to watch a boot."""
        return self._booting.of(image_id)

    def is_booting(self, image_id: str) -> bool:
        """Tell whether a boot from an image is watched, or about to be."""
        return image_id in self._booting

    def any_boots(self) -> bool:
        """Tell whether a server of this host boots, or is about to, as far as is known here."""
        with self._lock:
            if self._booting or self._arriving:
                return True
            images = {image_id for image_id, _until, _made in self._in_making.values()}
        return any(map(self.is_in_making, images))

    # Arrivals.

    def begin_arrival(self, image_id: str) -> bool:
        """Note that an image's cache image is on its way; False if it is already."""
        with self._lock:
            if image_id in self._arriving:
                return False
            self._arriving.add(image_id)
            return True

    def end_arrival(self, image_id: str) -> None:
        """Note that it is over."""
        with self._lock:
            self._arriving.discard(image_id)

    def is_arriving(self, image_id: str) -> bool:
        """Tell whether an image's cache image is on its way."""
        with self._lock:
            return image_id in self._arriving

    # Servers that are not settled.

    def note_unsettled(self, image_ids: Iterable[str]) -> None:
        """Note whose servers read what a cache image lacks through the gateway: settling knows."""
        found = frozenset(image_ids)
        with self._lock:
            self._unsettled = found

    @property
    def unsettled(self) -> frozenset[str] | None:
        """The images whose servers do; None as long as nobody has looked."""
        with self._lock:
            return self._unsettled

    def needs_base(self, image_id: str) -> bool:
        """Tell whether servers of this host read what a cache image lacks through the gateway."""
        unsettled = self.unsettled
        return unsettled is None or image_id in unsettled

    # All of these.

    def keeps_file(self, image_id: str, path: str) -> bool:
        """Tell whether somebody needs an image's cache image itself.

        :param path: of its file.
        """
        # What arrives takes the place of one that disks are being made on.
        return self.is_in_making(image_id) or self.is_arriving(image_id) or tier.is_open(path)
