"""A cache image's file and its entry take their place, and that of older ones."""

import contextlib
import os

from bootcache import savefile, steps
from bootcache.tier import Medium
from nova_bootcache.cache.cacheentry import CacheEntry
from nova_bootcache.cache.cachefiles import CacheFiles


def place(files: CacheFiles, partial: str, entry: CacheEntry, medium: Medium,
          used: float | None = None) -> None:
    """Put a file into its place; servers that run from an older one keep its inode.

    Whoever calls is the one who places the image's file: see ``CacheFiles.placing``.

    :param partial: the file, in the tier's directory; its sha256 was just computed.
    :param entry: of it.
    :param medium: the tier.
    :param used: when the image was last used, in seconds since the epoch; None for now.
    :raises OSError: if the tier cannot be written.
    """
    final = files.path(entry.remote.image_id)
    os.chmod(partial, 0o644)
    described = f'{final}.json.new.tmp'
    # What takes time comes first: for a moment the image has no entry, and others look.
    savefile.fsync_file(partial)
    entry.save(described)
    if used is not None:
        os.utime(described, (used, used))
    # An older file loses its entry before its name: no entry ever describes another file.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f'{final}.json')
    steps.reached('place: entry gone')
    stale = files.memory_path(entry.remote.image_id)
    if medium is Medium.MEMORY:
        assert stale is not None
        os.rename(partial, stale)
        link = f'{final}.tmp'
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(stale, link)
        os.rename(link, final)
    else:
        os.rename(partial, final)
        if stale is not None and os.path.exists(stale):
            os.unlink(stale)
    steps.reached('place: file there')
    files.note_verified(entry.remote.image_id, os.stat(final))
    os.rename(described, f'{final}.json')
    for directory in set(files.directories.values()):
        savefile.fsync_directory(directory)
