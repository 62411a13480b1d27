"""qemu-img, always with explicit formats and under limits of time and memory."""

import json
import subprocess
from typing import Any

from oslo_concurrency import processutils

from bootcache import exception

# Reading a header needs little; a hostile one must not get more (Glance's own limits for it).
INSPECT_LIMITS = processutils.ProcessLimits(cpu_time=2, address_space=1 << 30)
_ENVIRONMENT = ('env', 'LC_ALL=C', 'qemu-img')


def _run(*arguments: str, limits: processutils.ProcessLimits | None = None,
         timeout: int = 600, check_exit_code: tuple[int, ...] = (0,)) -> str:
    started: list[Any] = []
    try:
        out: str
        out, _err = processutils.execute(*_ENVIRONMENT, *arguments, prlimit=limits,
                                         timeout=timeout, check_exit_code=list(check_exit_code),
                                         on_execute=started.append)
    except subprocess.TimeoutExpired as error:
        for process in started:
            process.kill()
            process.wait()
        raise exception.BootcacheError(
            f'qemu-img {arguments[0]} was not done after {timeout} s') from error
    except processutils.ProcessExecutionError as error:
        detail = (error.stderr or error.stdout or '').strip()
        raise exception.BootcacheError(
            f'qemu-img {arguments[0]} failed (exit {error.exit_code}): {detail}') from error
    except OSError as error:
        raise exception.BootcacheError(f'qemu-img cannot be run: {error}') from error
    return out


def file_node(path: str, image_format: str) -> str:
    """Return a ``json:`` file name that opens just this layer: explicit format, no backing file."""
    node: dict[str, Any] = {'driver': image_format, 'file': {'driver': 'file', 'filename': path}}
    if image_format == 'qcow2':
        node['backing'] = None
    return 'json:' + json.dumps(node)


def info(path: str, image_format: str) -> dict[str, Any]:
    """Return ``qemu-img info`` of one layer, run under limits as a tenant may have made it.

    :raises BootcacheError: if it is not of that format or is damaged.
    """
    document: dict[str, Any] = json.loads(
        _run('info', '-U', '--output=json', file_node(path, image_format), limits=INSPECT_LIMITS,
             timeout=30))
    return document


def create_overlay(path: str, virtual_bytes: int, backing: str, backing_format: str, *,
                   cluster_bytes: int, subclusters: bool = False,
                   open_backing: bool = True) -> None:
    """Create a qcow2 with a backing pointer.

    :param virtual_bytes: size of the new image.
    :param subclusters: extended L2 entries, 32 subclusters a cluster.
    :param open_backing: False writes the pointer without looking whether anything is there.
    :raises BootcacheError: if qemu-img refuses, for instance as the backing does not answer.
    """
    options = f'cluster_size={cluster_bytes}'
    if subclusters:
        options += ',extended_l2=on'
    arguments = ['create', '-q', '-f', 'qcow2', '-o', options, '-b', backing, '-F', backing_format]
    if not open_backing:
        arguments.append('-u')
    _run(*arguments, path, str(virtual_bytes), timeout=60)


def create_standalone(path: str, virtual_bytes: int, cluster_bytes: int) -> None:
    """Create an empty qcow2 without a backing file.

    :raises BootcacheError: if qemu-img refuses.
    """
    _run('create', '-q', '-f', 'qcow2', '-o', f'cluster_size={cluster_bytes}', path,
         str(virtual_bytes), timeout=60)


def set_backing_pointer(path: str, backing: str, backing_format: str) -> None:
    """Rewrite the backing pointer in a qcow2's header; the data is not touched.

    :raises BootcacheError: if the file is no qcow2 or is in use.
    """
    _run('rebase', '-q', '-u', '-f', 'qcow2', '-b', backing, '-F', backing_format, path, timeout=60)


def allocation_map(path: str) -> list[dict[str, Any]]:
    """Return ``qemu-img map`` of a qcow2's own layer, also while it is in use.

    Entries have start, length, present, zero, data and, for data, offset within the file, in bytes.

    :raises BootcacheError: if it cannot be read.
    """
    entries: list[dict[str, Any]] = json.loads(
        _run('map', '-U', '--output=json', file_node(path, 'qcow2')))
    return entries


def check(path: str) -> None:
    """Check a qcow2's tables.

    :raises BootcacheError: if there is a corruption or a leak.
    """
    _run('check', '-q', file_node(path, 'qcow2'))


def copy_raw(source: str, target: str) -> None:
    """Copy the bytes behind a file name or an NBD URI into a new file.

    :raises BootcacheError: if the source does not answer or the target cannot be written.
    """
    _run('convert', '-f', 'raw', '-O', 'raw', source, target)
