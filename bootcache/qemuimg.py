"""qemu-img, always with explicit formats and under limits of time and memory."""

import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from bootcache import confined, exception, limited, tls, watched
from bootcache.limited import Limits

# Reading a header needs little; a hostile one must not get more (Glance's own limits for it).
INSPECT_LIMITS = Limits(cpu_seconds=2, memory_bytes=1 << 30, file_bytes=0)
# What convert reads at once.
_REQUEST = 2 << 20
_QCOW2_MAGIC = b'QFI\xfb'
# Its caches of tables, buffers, and the threads that unpack compressed clusters.
_READ_MEMORY = 2 << 30
# What it says goes into a file.
_READ_SAYS = 1 << 20
# Of a node behind a network.
_OPEN_SECONDS = 10
# A server that has not greeted by then says nothing.
_SILENCE_SECONDS = 3


def _run(*arguments: str, limits: Limits | None = None, confined_to: str = '',
         timeout: int = 600) -> str:
    command = ['env', 'LC_ALL=C', 'qemu-img', *arguments]
    if limits is not None:
        command = limited.command(limits, *command)
    if confined_to:
        command = confined.command(confined_to, *command)
    what = f'qemu-img {arguments[0]}'
    code, out, said = watched.output(what, command, timeout)
    if code:
        detail = (said or out).strip().replace(confined.IMAGE, confined_to or confined.IMAGE)
        raise (exception.Interrupted if limited.was_interrupted(code)
               else exception.BootcacheError)(f'{what} failed (exit {code}): {detail}')
    return out


def file_node(path: str, image_format: str) -> str:
    """Return a ``json:`` file name that opens just this layer: explicit format, no backing file."""
    return 'json:' + json.dumps(_layer(image_format, filename=path))


def confined_node(image_format: str) -> str:
    """Return the file name of what a confined command reads; nobody writes to it meanwhile."""
    # To learn which locks there are QEMU opens a file to write to.
    return 'json:' + json.dumps(_layer(image_format, filename=confined.IMAGE, locking='off'))


def _layer(image_format: str, **file: str) -> dict[str, Any]:
    return {'driver': image_format, 'file': {'driver': 'file', **file}} | (
        {'backing': None} if image_format == 'qcow2' else {})


def info(path: str, image_format: str, confine: bool = False) -> dict[str, Any]:
    """Return ``qemu-img info`` of one layer, run under limits as a tenant may have made it.

    :param confine: whether it runs confined as well, see ``confined``.
    :raises Interrupted: if others ended the look, or it was not done in time.
    :raises BootcacheError: if it is not of that format or is damaged.
    """
    document: dict[str, Any] = json.loads(
        _run('info', '-U', '--output=json',
             confined_node(image_format) if confine else file_node(path, image_format),
             limits=INSPECT_LIMITS, timeout=30, confined_to=path if confine else ''))
    return document


@functools.cache
def major_version() -> int:
    """Return the first number of QEMU's version, 0 if it does not tell."""
    version = re.search(r'version ([0-9]+)', _run('--version', timeout=_OPEN_SECONDS))
    return int(version[1]) if version is not None else 0


def knows_open_timeout() -> bool:
    """Tell whether QEMU's NBD gives up a server that says nothing: since 7.0."""
    return major_version() >= 7


def changes_wait() -> bool:
    """Tell whether adding or removing a block node or an export waits for all reads that a daemon
    has, and nobody reads anything of it meanwhile: since 10."""
    return major_version() >= 10


def open_timeout() -> dict[str, int]:
    """Return the option of an NBD node by which QEMU gives up a server that says nothing."""
    return {'open-timeout': _SILENCE_SECONDS} if knows_open_timeout() else {}


def check_driver(name: str) -> None:
    """Check that this machine's QEMU has a block driver.

    :raises BootcacheError: if it has not.
    """
    try:
        _run('info', 'json:' + json.dumps({'driver': name}), timeout=_OPEN_SECONDS)
    except exception.Interrupted:
        raise
    except exception.BootcacheError as error:
        if f"Unknown driver '{name}'" in str(error):
            raise exception.BootcacheError(
                f'QEMU has no driver {name}; Debian has it in qemu-block-extra') from error


def check_object(wanted: Mapping[str, Any]) -> None:
    """Check that QEMU can make an object.

    :param wanted: as QMP has it.
    :raises BootcacheError: if it cannot; the message is QEMU's.
    """
    try:
        _run('info', '--object', json.dumps(wanted), 'json:' + json.dumps(
            {'driver': 'raw', 'file': {'driver': 'null-co', 'size': 512}}), timeout=_OPEN_SECONDS)
    except exception.BootcacheError as error:
        raise type(error)(str(error).rpartition('qemu-img: ')[2]) from error


def _objects(node: Mapping[str, Any]) -> list[str]:
    """Return what has qemu-img make the objects that a node needs."""
    return [word for wanted in tls.objects_of(node) for word in ('--object', json.dumps(wanted))]


def is_qcow2(path: str) -> bool:
    """Tell by a disk's first bytes whether it can be a qcow2; qemu-img is not asked.

    :raises OSError: if it cannot be read.
    """
    with open(path, 'rb') as stream:
        return stream.read(len(_QCOW2_MAGIC)) == _QCOW2_MAGIC


def create_overlay(path: str, virtual_bytes: int, backing: str, backing_format: str, *,
                   cluster_bytes: int, subclusters: bool = False,
                   open_backing: bool = True) -> None:
    """Create a qcow2 with a backing pointer.

    :param virtual_bytes: size of the new image.
    :param subclusters: extended L2 entries, 32 subclusters a cluster; with them come lazy
        refcounts, so that a guest's flush waits for fewer of the host's.
    :param open_backing: False writes the pointer without looking whether anything is there.
    :raises BootcacheError: if qemu-img refuses, for instance as the backing does not answer.
    """
    options = f'cluster_size={cluster_bytes}'
    if subclusters:
        options += ',extended_l2=on,lazy_refcounts=on'
    arguments = ['create', '-q', '-f', 'qcow2', '-o', options, '-b', backing, '-F', backing_format]
    if not open_backing:
        arguments.append('-u')
    _run(*arguments, path, str(virtual_bytes), timeout=60)


def create_standalone(path: str, virtual_bytes: int, cluster_bytes: int,
                      data_path: str = '', compression: str = '') -> None:
    """Create an empty qcow2 without a backing file.

    :param compression: zstd or zlib, of the clusters that are written compressed; empty for none.
    :param data_path: of a file for its content, each byte at its place; created as well.
    :raises BootcacheError: if qemu-img refuses.
    """
    options = f'cluster_size={cluster_bytes}'
    if data_path:
        # A comma in a value is doubled.
        options += f',data_file={data_path.replace(",", ",,")}'
    if compression:
        options += f',compression_type={compression}'
    _run('create', '-q', '-f', 'qcow2', '-o', options, path, str(virtual_bytes), timeout=60)


def shrink(path: str, virtual_bytes: int) -> None:
    """Make a qcow2 without a backing file smaller; what was beyond its new end is gone.

    :param virtual_bytes: its size from now on.
    :raises BootcacheError: if the file is no qcow2 or is in use.
    """
    _run('resize', '-q', '-f', 'qcow2', '--shrink', path, str(virtual_bytes), timeout=60)


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


def copy_raw(source: Mapping[str, Any], target: str, *, seconds: float, stalled: float) -> None:
    """Copy the bytes of a block node into a new file.

    If the process ends, the copying ends with it.

    :param source: the node, without probing: ``driver`` is explicit on every level.
    :param seconds: that it may take in all.
    :param stalled: seconds after which it ends if nothing has come meanwhile: a source may be slow,
        as many read from it, and need not be dead.
    :raises BootcacheError: if the source does not answer or the target cannot be written.
    """
    there, since = 0, time.monotonic()

    def check() -> None:
        nonlocal there, since
        with contextlib.suppress(FileNotFoundError):
            if (blocks := os.stat(target).st_blocks) != there:
                there, since = blocks, time.monotonic()
        if time.monotonic() - since >= stalled:
            raise exception.BootcacheError(
                f'{json.dumps(source)}: nothing has come for {stalled:.0f} s')

    _convert([*_objects(source), '-O', 'raw', 'json:' + json.dumps(source), target], seconds, check)


def copy_paced(source: Mapping[str, Any], target: str, *, length: int, rate: int, seconds: float,
               check: Callable[[], None]) -> None:
    """Copy a block node's content into a raw file, with holes where it has or reads as zeros.

    When this returns the data is on the medium. If the process ends, the copying ends with it.

    :param source: the node, without probing: ``driver`` is explicit on every level.
    :param length: of the source, in bytes.
    :param rate: bytes that are read a second at most, holes not counted; 0 for no limit.
    :param seconds: that it may take in all.
    :param check: called several times a second; what it raises ends the copying.
    :raises BootcacheError: if the source does not answer or the target cannot be written.
    """
    # The throttle lets a first request pass, whatever its size, and then has the next one wait for
    # it. A small file has no next one, so that the first one waits its time here.
    _wait(min(length, _REQUEST) / rate if rate else 0, check)
    _convert([*_paced(source, target, rate, '-O', 'raw'), target], seconds, check)


def copy_piece(source: Mapping[str, Any], target: str, *, offset: int, length: int,
               target_bytes: int, rate: int, seconds: float, check: Callable[[], None]) -> bool:
    """Copy a piece of a block node's content to the same place of a raw file, else as copy_paced.

    :param target: exists, and has nothing but zeros in that place.
    :param offset: where the piece begins, a multiple of 512 bytes.
    :param length: of the piece, a multiple of 512 bytes.
    :param target_bytes: that the file has from the offset on, so many or more; at least the length.
    :returns: whether the file has got data by that, and no holes only.
    :raises BootcacheError: if the source does not answer or has no such piece, or the target cannot
        be written.
    """
    before = os.stat(target).st_blocks
    piece = {'driver': 'raw', 'offset': offset, 'size': length, 'file': source}
    place = f'driver=raw,offset={offset},size={target_bytes},file.driver=file,file.filename='
    # A comma in a value is doubled.
    _convert([*_paced(piece, target, rate, '-n', '--target-is-zero', '--target-image-opts'),
              place + target.replace(',', ',,')], seconds, check)
    data = (os.stat(target).st_blocks - before) * 512
    _wait(min(data, _REQUEST) / rate if rate else 0, check)  # As of copy_paced.
    return data > 0


def send_own(overlay: str, backing: str, backing_format: str, target: Mapping[str, Any], *,
             seconds: float, check: Callable[[], None]) -> None:
    """Write what an overlay itself has, zeros as well, to where its backing's content is already.

    The overlay is read with what is below it: what it has of a cluster may be a part. It is stored
    when this returns. If the process ends, the sending ends with it.

    :param overlay: path of a qcow2 that nobody writes; its header says what is below.
    :param backing: path of that.
    :param target: the node, without probing; not smaller than the overlay.
    :param seconds: that it may take in all.
    :param check: called several times a second; what it raises ends the sending.
    :raises BootcacheError: if one of them cannot be read, or the target not be written.
    """
    code, detail = watched.run(limited.command(
        Limits(int(seconds), _READ_MEMORY), 'qemu-img', 'convert', '-q', *_objects(target),
        # Never with --target-is-zero, nor without what is below: areas that were zeroed were lost.
        '-t', 'writeback', '-n', '-f', 'qcow2', '-B', backing, '-F', backing_format, '-O', 'raw',
        overlay, 'json:' + json.dumps({'driver': 'raw', 'file': target})), seconds, check)
    if code:
        raise exception.BootcacheError(f'qemu-img convert failed (exit {code}): {detail}')


def is_same_piece(source: Mapping[str, Any], path: str, image_format: str, *, offset: int,
                  length: int | None, rate: int, seconds: float,
                  check: Callable[[], None]) -> bool:
    """Tell whether a block node and an image file read the same in a piece of both.

    If the process ends, the comparing ends with it.

    :param source: the node, without probing.
    :param path: of the image file; may be open elsewhere, as long as nobody writes to it.
    :param offset: where the piece begins, a multiple of 512 bytes.
    :param length: of the piece, a multiple of 512 bytes; None for all that there is, where what is
        longer has to read as zeros.
    :param rate: bytes of data that are read of the node a second at most; 0 for no limit.
    :param seconds: that it may take in all.
    :param check: called several times a second; what it raises ends the comparing.
    :raises BootcacheError: if one of them does not answer or cannot be read.
    """
    file = _layer(image_format, filename=path)
    piece = {'driver': 'raw', 'offset': offset} | ({} if length is None else {'size': length})
    pace, paced = _throttled({**piece, 'file': source}, rate)
    code, detail = watched.run(['qemu-img', 'compare', '-q', *pace, paced,
                                'json:' + json.dumps({**piece, 'file': file})], seconds, check)
    if code not in (0, 1):
        raise exception.BootcacheError(f'qemu-img compare failed (exit {code}): {detail}')
    return code == 0


def _throttled(source: Mapping[str, Any], rate: int) -> tuple[list[str], str]:
    # A throttle node limits what is read; convert's own -r limits what is written, and so lets
    # zeros that are stored as data cross the network unpaced. One with limit 0 is no limit.
    throttle = {'qom-type': 'throttle-group', 'id': 'pace', 'limits': {'bps-read': rate}}
    paced = {'driver': 'throttle', 'throttle-group': 'pace', 'file': source}
    return [*_objects(source), '--object', json.dumps(throttle)], 'json:' + json.dumps(paced)


def _paced(source: Mapping[str, Any], target: str, rate: int, *form: str) -> list[str]:
    pace, paced = _throttled(source, rate)
    # As Nova does it: past the page cache where the file system lets us, synced in any case.
    cache = 'none' if _takes_direct_io(target) else 'writeback'
    return [*pace, '-t', cache, *form, paced]


def _wait(seconds: float, check: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check()
        time.sleep(min(left, 0.1))


def read_all(path: str, image_format: str, virtual_bytes: int, *, cpu_seconds: int,
             seconds: float, check: Callable[[], None]) -> None:
    """Read all that an image file has as data, as a server would, and keep nothing of it.

    It runs with the lowest priority, under limits and confined, as a tenant may have made the
    file. If the process ends, the reading ends with it.

    :param virtual_bytes: size of the base.
    :param cpu_seconds: of CPU time that it may take.
    :param seconds: that it may take in all.
    :param check: called several times a second; what it raises ends the reading.
    :raises ImageRefused: if a part of it cannot be read, or it takes more CPU time or memory.
    :raises Interrupted: if it is not done in time, others end it, or qemu-img cannot be run.
    """
    code, detail = watched.run(confined.command(path, *limited.command(
        Limits(cpu_seconds, _READ_MEMORY, file_bytes=_READ_SAYS), 'nice', '-n', '19',
        'qemu-img', 'convert', '-q', '-n', '--target-image-opts', confined_node(image_format),
        f'driver=null-co,size={virtual_bytes}')), seconds, check)
    detail = detail.replace(confined.IMAGE, path)
    if limited.was_interrupted(code):
        raise exception.Interrupted(
            f'the reading of all of the image was ended by others (exit {code}): {detail}')
    if limited.took_too_long(code):
        raise exception.ImageRefused(
            f'to read all of the image takes more than {cpu_seconds} s of CPU time')
    if code:
        raise exception.ImageRefused(f'a part of the image cannot be read: {detail}')


def _convert(arguments: list[str], seconds: float, check: Callable[[], None]) -> None:
    code, detail = watched.run(['qemu-img', 'convert', '-q', *arguments], seconds, check)
    if code:
        raise exception.BootcacheError(f'qemu-img convert failed (exit {code}): {detail}')


def _takes_direct_io(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644))
    except OSError:
        return False
    return True
