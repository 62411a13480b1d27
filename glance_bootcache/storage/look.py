"""A look at one tenant's file, in a process of its own: inspection.py starts it, under limits.

``python -m glance_bootcache.storage.look PATH DISK_FORMAT MAX_VIRTUAL_BYTES FILTER`` writes a JSON
object: ``reason``, of bootcache/reasons.py, says why the file is not to be opened, empty if it may
be, and ``detail`` is a line with more of that. A file
that this machine cannot read is another matter: there is no answer then. All is loaded before the
process confines itself, by seccomp's ``FILTER`` in hexadecimal digits, and the file is read after.
"""

import dataclasses
import json
import os
import sys

from bootcache import confining, fileformat
from bootcache.exception import ImageRefused
from bootcache.reasons import NO_CAUSE, Cause, Reason
from glance_bootcache.qcow2 import tables
from glance_bootcache.qcow2.header import Reader
from glance_bootcache.storage import inspection

_LONGEST_REASON = 1000


def _inspect(path: str, disk_format: str) -> None:
    """Have oslo.utils look at it, as Glance and Nova do before they open a file."""
    inspector = fileformat.inspect(path)
    found = str(inspector)
    if found != disk_format and not (disk_format == 'raw' and found in fileformat.RAW_NAMES):
        raise ImageRefused(f'the content is {found}, but disk_format says {disk_format}',
                           Reason.FORMAT_MISMATCH)
    fileformat.check_safe(inspector)
    if disk_format == 'raw':
        with open(path, 'rb') as stream:
            found = inspection.taken_for(stream.read(inspection.PROBED_BYTES))
        if found:
            raise ImageRefused(f'the content is {found}, but disk_format says raw',
                               Reason.FORMAT_MISMATCH)


def _check_tables(path: str, max_virtual_bytes: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        tables.check(Reader(descriptor, os.fstat(descriptor).st_size), max_virtual_bytes)
    except ImageRefused as error:
        raise ImageRefused(f'the image is not safe to open: {error}', Reason.UNSAFE) from error
    finally:
        os.close(descriptor)


def look(path: str, disk_format: str, max_virtual_bytes: int) -> Cause:
    """Return why a file is not to be opened as what Glance says it is, if it may not.

    :param disk_format: qcow2 or raw.
    :param max_virtual_bytes: that its disk may have.
    :raises OSError: if it cannot be read.
    """
    try:
        _inspect(path, disk_format)
        if disk_format == 'qcow2':
            _check_tables(path, max_virtual_bytes)
    except MemoryError:
        return Cause(Reason.UNSAFE,
                     'the image is not safe to open: to look at it takes too much memory')
    except ImageRefused as error:
        # One line, as tenants' bytes may be in it.
        return dataclasses.replace(
            error.cause, detail=' '.join(error.cause.detail.split())[:_LONGEST_REASON])
    return NO_CAUSE


def main(path: str, disk_format: str, max_virtual_bytes: str, program: str) -> None:
    """Look at a file as somebody who can do nothing else, and write what is found.

    :raises OSError: if the file cannot be read, or the kernel does not confine this process.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    confining.confine(opened, bytes.fromhex(program))
    print(json.dumps(dataclasses.asdict(
        look(f'/proc/self/fd/{opened}', disk_format, int(max_virtual_bytes)))))


if __name__ == '__main__':
    main(*sys.argv[1:])
