"""Whether this host's QEMU can read cache images that are compressed: found out at the start.

A cache image that it cannot read is as right as any other, on another host. So it is neither
fetched nor mistrusted here: servers read from the base, as those of an image that has none.
"""

import os
import tempfile
import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception, qemuimg
from bootcache.cachelayout import Compression
from bootcache.manifest import CacheInfo
from bootcache.pauses import GrowingPauses

LOG = logging.getLogger(__name__)

_TRIED_BYTES = 64 << 10
# What was not found out, or was fetched in vain: all of it travels again.
_FIRST_SECONDS, _LONGEST_SECONDS = 600.0, 86400.0
_CURE = ('install a QEMU that was built with {0} and start nova-compute anew, or set'
         ' [bootcache]compression to none on the storage node')


class Readable:
    """What this host's QEMU can read: asked once for each kind of compression.

    :param clock: gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        # Of kinds of compression that could not be looked into, and of files, by their digest.
        self._again = GrowingPauses(_FIRST_SECONDS, _LONGEST_SECONDS, clock)
        # Several threads may find out the same at once.
        self._reads: dict[Compression, bool] = {}

    def find_out(self) -> None:
        """Ask for each kind now, so that no server waits for it."""
        for compression in Compression:
            if compression is not Compression.NONE:
                self._reads_kind(compression)

    def reads(self, info: CacheInfo) -> bool:
        """Tell whether a cache image can be read here, as far as that is known."""
        compression = info.compression
        if compression is Compression.NONE:
            return True
        return self._reads_kind(compression) and self._again.is_time(info.sha256)

    def _reads_kind(self, compression: Compression) -> bool:
        found = self._reads.get(compression)
        if found is not None:
            return found
        if not self._again.is_time(compression.value):
            return False
        try:
            with tempfile.TemporaryDirectory() as directory:
                qemuimg.create_standalone(os.path.join(directory, 'tried'), _TRIED_BYTES,
                                          _TRIED_BYTES, compression=compression.value)
        except (exception.Interrupted, OSError) as error:
            LOG.warning('it cannot be found out now whether this host\'s QEMU reads cache images'
                        ' that are compressed with %s (%s): servers of such images read from the'
                        ' base for %.0f s', compression.value, error,
                        self._again.postpone(compression.value))
            return False
        except exception.BootcacheError as error:
            self._reads[compression] = False
            LOG.error('this host\'s QEMU cannot read cache images that are compressed with %s, so'
                      ' that servers of such images read from the base: %s (%s)',
                      compression.value, _CURE.format(compression.value), error)
            return False
        self._reads[compression] = True
        return True

    def check(self, image_id: str, path: str, info: CacheInfo) -> None:
        """Check that this host's QEMU can open a cache image that came as it was built.

        One that it cannot open is not fetched again for a while.

        :raises BootcacheError: if it cannot, or did not in its time.
        """
        if info.compression is Compression.NONE:
            return
        try:
            qemuimg.info(path, 'qcow2')
        except exception.BootcacheError as error:
            cure = '' if isinstance(error, exception.Interrupted) \
                else f'; {_CURE.format(info.compression.value)}'
            raise exception.BootcacheError(
                f'the cache image of {image_id} cannot be opened here ({error}), and is not fetched'
                f' again for {self._again.postpone(info.sha256):.0f} s{cure}') from error
        self._again.forget(info.sha256)
