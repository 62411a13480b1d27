"""How much a process holds: of the kernel, of Python, of the product's own collections."""

import collections
import gc
import os
import stat
import sys
from collections.abc import Sized
from pathlib import Path

PACKAGES = ('bootcache', 'glance_bootcache', 'nova_bootcache')
# What keeps something of an image that is gone, for a while or up to a number, and why.
BOUNDED = (
    # That Glance does not have it, for a minute; 10,000 at most.
    'glance_bootcache.images.controller.Controller._unknown',
    # What was active at the last sweep, until the next one in an hour.
    'glance_bootcache.upkeep.ServiceUpkeep._active',
    # When to try again, and what was logged; 10,000 keys at most.
    'bootcache.util.backoff.Backoff.', 'bootcache.util.logthrottle.LogThrottle.',
    # Reports that are expected, for as long as a boot may take.
    'glance_bootcache.images.reportedboots.',
    # Of the growing store that was looked at last, until another one is.
    'nova_bootcache.gateway.sharedstore.SharedStore.', 'bootcache.recording.Recording.',
    'bootcache.recorder.Sample',
)
# Beside a cache image: what is noted of it, which its quota does not count.
_UNCOUNTED = ('.json', '.tmp')
# Until two of them see the same files.
_WALKS = 10


def collections_held(packages: tuple[str, ...] = PACKAGES) -> dict[str, int]:
    """Return the sizes of all collections that objects of some packages have as attributes.

    By names as ``module.Class.attribute``, of all instances together; and of how many instances
    there are of each class.
    """
    gc.collect()
    found: collections.Counter[str] = collections.Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        module = getattr(kind, '__module__', None)
        if not isinstance(module, str) or module.partition('.')[0] not in packages:
            continue
        name = f'{module}.{kind.__qualname__}'
        found[name] += 1
        for attribute, value in list(getattr(thing, '__dict__', {}).items()):
            if isinstance(value, Sized) and not isinstance(value, str | bytes | type):
                found[f'{name}.{attribute}'] += len(value)
    return {name: count for name, count in found.items() if count}


def blocks() -> int:
    """Return how many blocks of memory Python has allocated in this process."""
    gc.collect()
    return sys.getallocatedblocks()


def of_process(pid: int) -> dict[str, int]:
    """Return a process's memory in bytes, descriptors and threads.

    :raises OSError: if there is none.
    """
    status = dict(line.split(':', 1) for line in
                  Path(f'/proc/{pid}/status').read_text().splitlines() if ':' in line)
    return {'rss': int(status['VmRSS'].split()[0]) << 10, 'threads': int(status['Threads']),
            'descriptors': len(os.listdir(f'/proc/{pid}/fd'))}


def of_directory(path: Path) -> dict[str, int]:
    """Return how many files there are below a directory, and the bytes that they take."""
    inodes = _inodes(path, ())
    return {'files': len(inodes), 'bytes': sum(inodes.values())}


def of_tier(path: Path, pattern: str = '') -> int | None:
    """Return the bytes of a tier: what counts for its quota, entries and links do not.

    :param pattern: what files are called that count, as for ``Path.match``; all, if empty.
    :returns: None if files come and go all the time: one that went while others were looked at
        would count together with what came in its place.
    """
    found = _inodes(path, _UNCOUNTED, pattern)
    for _attempt in range(_WALKS):
        before, found = found, _inodes(path, _UNCOUNTED, pattern)
        if found.keys() == before.keys():
            return sum(found.values())
    return None


def _inodes(path: Path, uncounted: tuple[str, ...], pattern: str = '') -> dict[int, int]:
    """Return the bytes of files by inode: one that gets another name meanwhile is one."""
    found = {}
    for folder, _folders, names in os.walk(path):
        for name in names:
            if name.endswith(uncounted) or (pattern and not Path(name).match(pattern)):
                continue
            try:
                status = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                found[status.st_ino] = status.st_blocks * 512
    return found
