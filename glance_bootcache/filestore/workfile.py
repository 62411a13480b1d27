"""The file of a snapshot before anything of the server's is in it: copied, and made larger.

QEMU's tools do it, with explicit formats. The base was accepted when its image was registered.
"""

from bootcache import exception, qemuimg, watched

_RESIZE_SECONDS = 60


def copy(source: str, target: str, seconds: float) -> None:
    """Copy a file's bytes, whatever they are, with holes where there are zeros.

    The copy is whole sectors long. If this process ends, the copying ends with it.

    :param seconds: that it may take in all.
    :raises Interrupted: if it is not done in time.
    :raises BootcacheError: if it cannot be read, or the target not be written.
    """
    _run('convert', ['-f', 'raw', '-O', 'raw', source, target], seconds)


def grow(path: str, image_format: str, virtual_bytes: int) -> None:
    """Make an image that nobody has open larger; what it gets reads as zeros.

    :param virtual_bytes: its size from now on, at least what it has.
    :raises Interrupted: if it is not done in time.
    :raises BootcacheError: if the file is not of that format or is in use.
    """
    _run('resize', [qemuimg.file_node(path, image_format), str(virtual_bytes)], _RESIZE_SECONDS)


def _run(what: str, arguments: list[str], seconds: float) -> None:
    code, detail = watched.run(['qemu-img', what, '-q', *arguments], seconds, lambda: None)
    if code:
        raise exception.BootcacheError(f'qemu-img {what} failed (exit {code}): {detail}')
