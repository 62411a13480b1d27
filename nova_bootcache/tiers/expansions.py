"""Which cache images of a host are expanded, and when: one at a time, when nobody waits."""

import contextlib
import dataclasses
import enum
import os
import threading
import time
from collections.abc import Iterable

from oslo_log import log as logging

from bootcache import cacheimage, exception, expansion, naming, savefile, steps, tier
from bootcache.cachelayout import Compression
from bootcache.tier import Medium, TierLimits
from bootcache.util.backoff import Backoff
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles, place
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.tiers.room import Room

LOG = logging.getLogger(__name__)

_PAUSE_SECONDS = 60
_LONGEST_PAUSE = 6 * 3600
# It looks ten times a second, but for what takes no long.
_END_SECONDS = 10
# Room comes and goes with other images.
_LONGEST_WITHOUT_ROOM = 600


class Expand(enum.StrEnum):
    """Which cache images are expanded; the values are the option's."""

    AUTO = 'auto'
    ALWAYS = 'always'
    NEVER = 'never'


# The decision.

def is_wanted(expand: Expand, entry: CacheEntry, spins: bool, has_base: bool) -> bool:
    """Tell whether a cache image is to be expanded where it has room. Pure.

    From a disk whose head moves half the bytes are read in less time than it takes to unpack them
    (doc/source/tiers.rst has the figures).

    :param entry: of it.
    :param spins: whether it is on such a disk.
    :param has_base: whether the image's full base is on this host: new servers do not need the
        cache image then.
    """
    return entry.cache_image is not None and not entry.expanded and not has_base \
        and entry.cache_image.compression is not Compression.NONE \
        and (expand is Expand.ALWAYS or (expand is Expand.AUTO and not spins))


def most_bytes(expand: Expand, limits: TierLimits, medium: Medium) -> int:
    """Return how much a tier may have with the expanded file beside the compressed one. Pure.

    Never so much that another one has to go for it. With ``auto`` so little that none has to go
    for the next one that comes, either: within what eviction would go down to, and in memory, which
    is dear, half of that. There twice as many compressed ones are worth more than what unpacking
    them takes.
    """
    if expand is Expand.ALWAYS:
        return limits.high
    return limits.low if medium is Medium.DISK else limits.low // 2


def is_quiet(ages: Iterable[float], delay: float, any_boots: bool, is_fetching: bool) -> bool:
    """Tell whether nobody waits for this host's disk and CPU, as far as is known here. Pure.

    :param ages: seconds since the last use of each cache image: a server's start.
    :param delay: seconds that a boot takes at most.
    :param any_boots: whether one is watched, or a disk was made that nobody has opened yet.
    :param is_fetching: whether a cache image is on its way here.
    """
    return not any_boots and not is_fetching and all(age >= delay for age in ages)


class Expansions:
    """Expands what came compressed, in a thread of its own for each.

    :param files: the host's cache images.
    :param room: of the tiers.
    :param needs: who boots.
    :param expand: which are.
    :param delay: seconds from a server's start for which nothing is.
    :param base_directory: of full bases; None where there are none.
    """

    def __init__(self, files: CacheFiles, room: Room, needs: HostNeeds, expand: Expand,
                 delay: float, base_directory: str | None):
        self._files = files
        self._room = room
        self._needs = needs
        self._expand = expand
        self._delay = delay
        self._base_directory = base_directory
        self._stopped = threading.Event()
        # Only upkeep begins one.
        self._thread: threading.Thread | None = None
        self._backoff = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE, lambda: time.monotonic())
        self._no_room = Backoff(_PAUSE_SECONDS, _LONGEST_WITHOUT_ROOM,
                                lambda: time.monotonic())

    def stop(self) -> None:
        """Give up what is under way; the compressed cache image stays as it is."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def look(self) -> None:
        """Begin to expand a cache image, if one is to be and nobody waits.

        :raises BootcacheError: if there is nothing that can do it.
        :raises OSError: if the cache images cannot be looked at.
        """
        if self._expand is Expand.NEVER or self._stopped.is_set() \
                or (self._thread is not None and self._thread.is_alive()):
            return
        entry = self._next()
        if entry is not None:
            thread = threading.Thread(target=self._run, args=(entry,), daemon=True,
                                      name='bootcache-expansion')
            try:
                thread.start()
            except RuntimeError as error:
                raise exception.BootcacheError(f'there is no thread for it: {error}') from error
            self._thread = thread

    def is_to_come(self, entry: CacheEntry) -> bool:
        """Tell whether a cache image is to be expanded as soon as nobody waits."""
        return not self._stopped.is_set() and self._is_due(
            entry, tier.spins(self._files.directory))

    def _next(self) -> CacheEntry | None:
        """Return what is to be expanded now: of those that are, what was used last."""
        entries = self._files.entries()
        images = [entry.remote.image_id for entry in entries]
        for pauses in (self._backoff, self._no_room):
            pauses.keep_only(images)
        spins = bool(entries) and tier.spins(self._files.directory)
        found = [entry for entry in entries if self._is_due(entry, spins)]
        if not found:
            return None
        ages = {image_id: self._files.age(image_id) for image_id in images}
        if not is_quiet(ages.values(), self._delay, self._needs.any_boots(),
                                     bool(self._room.arriving())):
            return None
        return min(found, key=lambda entry: ages[entry.remote.image_id])

    def _is_due(self, entry: CacheEntry, disk_spins: bool) -> bool:
        image_id = entry.remote.image_id
        spins = disk_spins and self._files.medium(image_id) is Medium.DISK
        return is_wanted(self._expand, entry, spins, self._has_base(image_id)) \
            and self._backoff.is_due(image_id) and self._no_room.is_due(image_id) \
            and os.path.exists(self._files.path(image_id))

    def _has_base(self, image_id: str) -> bool:
        return self._base_directory is not None and os.path.exists(
            os.path.join(self._base_directory, naming.cache_file_name(image_id)))

    def _run(self, entry: CacheEntry) -> None:
        image_id = entry.remote.image_id
        try:
            self.expand(entry)
        except exception.Cancelled as error:
            LOG.debug('image %s: its cache image stays compressed, for now: %s', image_id, error)
        except exception.NoRoom as error:
            self._no_room.postpone(image_id)
            LOG.debug('image %s: its cache image stays compressed: %s', image_id, error)
        except (exception.BootcacheError, OSError) as error:
            pause = self._backoff.postpone(image_id)
            LOG.warning('image %s: its cache image stays compressed, and is tried to be expanded'
                        ' again in %.0f s; [bootcache]expand=never ends that: %s', image_id, pause,
                        error)
        except Exception:
            self._backoff.postpone(image_id)
            LOG.exception('bootcache: unexpected error')

    def expand(self, entry: CacheEntry) -> None:
        """Expand a cache image, and put it into the place of the compressed one.

        Servers that run from that keep its inode.

        :param entry: of the cache image that is here.
        :raises Cancelled: if somebody came to wait, or another one has taken its place.
        :raises NoRoom: if it has no room.
        :raises BootcacheError: if it cannot be expanded.
        :raises OSError: if the tier cannot be read or written.
        """
        image_id = entry.remote.image_id
        path, medium = self._files.path(image_id), self._files.medium(image_id)
        # What is wrong in it would be right, by its sha256, in what is made of it.
        there = os.stat(path)
        try:
            cacheimage.verify(path, entry.file_sha256, there.st_size)
        except exception.InvalidManifest:
            # Whoever is to boot from it sees the same, and has it fetched again.
            self._files.note_doubt(image_id)
            raise
        layout = expansion.layout(path)
        if not layout.compressed:
            self._files.note_expanded(entry)
            return
        partial, began = self._files.expanding_path(image_id, medium), time.monotonic()
        with self._room.for_expansion(image_id, medium, layout.expanded_bytes,
                                      most_bytes(self._expand, self._room.limits[medium],
                                                 medium)):
            try:
                steps.reached('expand: begun')
                expansion.fill(path, partial, layout, self._check)
                steps.reached('expand: filled')
                expansion.compare(path, partial, layout, self._check)
                size, sha256 = os.path.getsize(partial), savefile.file_digest(partial)
                steps.reached('expand: compared')
                self._place(entry, savefile.identity(there), partial, sha256, medium)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(partial)
        self._backoff.forget(image_id)
        LOG.info('image %s: its cache image of %d bytes in compute %s was expanded to %d in %.2f s',
                 image_id, there.st_size, medium.value, size, time.monotonic() - began)

    def _place(self, entry: CacheEntry, identity: tuple[int, int, int], partial: str, sha256: str,
               medium: Medium) -> None:
        image_id = entry.remote.image_id
        # What takes time is done before anybody may wait for it.
        savefile.fsync_file(partial)
        with self._files.placing(image_id, gives_way=True):
            now = self._files.known(image_id)
            if now is None or now.file_sha256 != entry.file_sha256 \
                    or savefile.signature(self._files.path(image_id)) != identity:
                raise exception.Cancelled('it has gone, or another one has its place')
            used = time.time() - self._files.age(image_id)
            place(self._files, partial, dataclasses.replace(
                now, file_sha256=sha256, expanded=True), medium, used)

    def _check(self) -> None:
        """Give way to who boots; what was done until now is done again then.

        :raises Cancelled: if somebody does, or the host ends.
        """
        if self._stopped.is_set():
            raise exception.Cancelled('nova-compute ends')
        if self._needs.any_boots() or self._room.arriving():
            raise exception.Cancelled('a server boots')
