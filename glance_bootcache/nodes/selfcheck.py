"""Whether this storage node works as others are to see it: asked before each beat.

Who cannot be reached by the message bus, or cannot read its own bases through its exporter or from
its disk, serves nobody, however well its process is.
"""

import contextlib
import functools
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as messaging

from bootcache.rpc import messages
from glance_bootcache.health import BUS, EXPORTER, HealthChecks, bus_check
from glance_bootcache.nodes import routing
from glance_bootcache.storage import inspection
from glance_bootcache.storage.exporters import Exporters

DISK = 'disk'
_BLOCK = 4096
# The part of a node's disk that is left free when it is chosen by its room.
_LEFT_FREE = 4


def checks(bus: messaging.Transport, own: str, exporters: Exporters, directory: str
           ) -> HealthChecks:
    """Return what is asked: its own message over the bus, the exporters, and its disk.

    :param bus: as of :func:`bootcache.rpc.transport.get_transport`.
    :param own: this node's name.
    :param directory: of its images.
    """
    return HealthChecks({
        BUS: bus_check(bus, routing.target(server=own), **{routing.NODE: own}),
        # One that hangs, of many, hangs wherever its host reads.
        EXPORTER: lambda: exporters.check(each=False), DISK: lambda: read_disk(directory)})


def told(state_dir: str) -> dict[str, Any]:
    """Return what this node's row has of it beside its beat.

    :raises OSError: if its disk cannot be looked at.
    """
    disk = shutil.disk_usage(state_dir)
    return {'rpc': messages.VERSION, 'look_rules': inspection.RULES,
            # Some of the total is nobody's but root's.
            'free_bytes': max(0, disk.free - (disk.used + disk.free) // _LEFT_FREE)}


def read_disk(directory: str) -> None:
    """Read 4 KiB of a file of a directory's file system, past the page cache where that goes.

    :raises OSError: if it cannot be read.
    """
    path = next(_files(directory), None)
    with contextlib.ExitStack() as stack:
        if path is None:
            made = stack.enter_context(tempfile.NamedTemporaryFile(dir=directory))
            made.write(bytes(_BLOCK))
            made.flush()
            path = made.name
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            file = os.open(path, flags | os.O_DIRECT)
        except FileNotFoundError:
            return  # It was removed meanwhile: the file system has answered.
        except OSError:
            # As tmpfs before Linux 6.6.
            file = os.open(path, flags)
        stack.callback(os.close, file)
        with mmap.mmap(-1, _BLOCK) as aligned:
            os.preadv(file, [aligned], 0)


def _files(directory: str) -> Iterator[str]:
    with os.scandir(directory) as images:
        for image in images:
            if not image.is_dir(follow_symlinks=False):
                continue
            # Files are removed meanwhile, and directories with them.
            with contextlib.suppress(FileNotFoundError), os.scandir(image.path) as files:
                for file in files:
                    if file.is_file(follow_symlinks=False) and file.stat().st_size >= _BLOCK:
                        yield file.path


def fault(made: Callable[[], HealthChecks], is_needed: Callable[[], bool]) -> Callable[[], str]:
    """Return what tells why this node does not work; empty while it does, or nobody else does.

    :param made: makes what is asked, once.
    :param is_needed: tells whether there are other nodes.
    """
    found = functools.cache(made)

    def ask() -> str:
        return '; '.join(f'{name}: {why}' for name, why in found().failures().items() if why) \
            if is_needed() else ''

    return ask
