"""A file system with reflinks, whatever this machine's are: XFS on a loop device, in a mount
namespace of its own. It goes with the process that holds the namespace, however that ends."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

_MOUNT = 'mount -o loop "$1" "$2" && echo mounted && exec cat'
# mkfs.xfs takes no less than 300 MB; the file is sparse.
BYTES = 8 << 30


def reason_without() -> str:
    """Return why there can be no such file system here; empty if there can be."""
    return '' if os.path.exists('/dev/loop-control') else 'this machine has no loop devices'


@contextlib.contextmanager
def xfs(directory: str, size: int = BYTES) -> Iterator[str]:
    """Make and mount one; gives the path by which all processes of root reach it.

    :param directory: for the file that it is in.
    :param size: bytes.
    :raises RuntimeError: if it cannot be mounted.
    """
    image, place = f'{directory}/xfs.img', f'{directory}/xfs'
    os.mkdir(place)
    with open(image, 'wb') as stream:
        stream.truncate(size)
    program = shutil.which('mkfs.xfs', path=f'{os.environ["PATH"]}:/usr/sbin:/sbin')
    subprocess.run([program or 'mkfs.xfs', '-q', image], check=True)
    # "cat" ends with this process, whose end of the pipe it reads, or when it is told.
    with subprocess.Popen(['unshare', '--mount', '--propagation', 'private', 'sh', '-c', _MOUNT,
                           'sh', image, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            if holder.stdout.readline() != 'mounted\n':
                raise RuntimeError(f'{image} cannot be mounted')
            yield f'/proc/{holder.pid}/root{place}'
        finally:
            holder.stdin.close()
            holder.wait(30)
            os.unlink(image)
            os.rmdir(place)


def used(path: str) -> int:
    """Return the bytes that are taken of the file system at a path."""
    os.sync()
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
