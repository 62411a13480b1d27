"""What a storage daemon does for a while: it makes image files, and fills one from its backing."""

import contextlib
import os
import time
import uuid
from typing import Any

from bootcache import exception
from bootcache.storagedaemon import StorageDaemon

# Of jobs and nodes.
_MAKING, _NEW = 'make', 'new'
_MAKING_SECONDS = 30
_ENDING_SECONDS = 10


def create_qcow2(daemon: StorageDaemon, path: str, virtual_bytes: int, cluster_bytes: int, *,
                 backing: str = '', backing_format: str = '', data_path: str = '') -> None:
    """Have a daemon make an empty qcow2 file.

    The daemon's monitor is free for others while it does so: it waits for the disk.

    :param path: made new; the daemon has to be able to write there.
    :param virtual_bytes: size of the image.
    :param backing: what its header names below it; not opened.
    :param data_path: a file of its own for the image's content, each byte at its place; made new.
    :raises BootcacheError: if the file is there already, or the daemon refuses.
    """
    unique = uuid.uuid4().hex[:16]
    job = f'{_MAKING}-{unique}'
    nodes = {f'{_NEW}-{unique}': path, **({f'{_NEW}-{unique}d': data_path} if data_path else {})}
    options: dict[str, Any] = {'driver': 'qcow2', 'size': virtual_bytes,
                               'cluster-size': cluster_bytes,
                               **dict(zip(('file', 'data-file'), nodes, strict=False))}
    if backing:
        options.update({'backing-file': backing, 'backing-fmt': backing_format})
    made: list[str] = []
    try:
        for name in nodes.values():
            _make_file(name)
            made.append(name)
        daemon.add_nodes(*({'driver': 'file', 'node-name': node, 'filename': name}
                           for node, name in nodes.items()))
        try:
            with daemon.session() as session:
                session.execute('blockdev-create', job_id=job, options=options)
            _wait_made(daemon, job, path)
        finally:
            end(daemon, job)
            daemon.remove_nodes(*nodes)
    except BaseException:
        for name in made:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        raise


def _make_file(path: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except OSError as error:
        raise exception.BootcacheError(f'{path} cannot be made: {error}') from error


def _wait_made(daemon: StorageDaemon, job: str, path: str) -> None:
    deadline = time.monotonic() + _MAKING_SECONDS
    while (entry := _jobs(daemon).get(job, {})).get('status') != 'concluded':
        if not entry:
            raise exception.StorageDaemonError(f'{path} was not made: {daemon.name} was restarted')
        if time.monotonic() > deadline:
            raise exception.StorageDaemonError(
                f'{path} was not made within {_MAKING_SECONDS} s')
        time.sleep(0.001)
    if entry.get('error'):
        raise exception.StorageDaemonError(f'{path} cannot be made: {entry["error"]}')


def discard_leftovers(daemon: StorageDaemon) -> None:
    """Forget what an earlier process had the daemon make, and was killed before it was made.

    :raises StorageDaemonError: if the daemon does not answer, or refuses.
    """
    for job in _jobs(daemon):
        if job.startswith(f'{_MAKING}-'):
            end(daemon, job)
    daemon.remove_nodes(*(node for node in daemon.nodes() if node.startswith(f'{_NEW}-')))


def start_stream(daemon: StorageDaemon, job: str, node: str) -> None:
    """Begin to fill a node's file with all that its backing has.

    :param job: id. It is gone when it is over, and what came of it :func:`is_filled` tells: while
        one that is over waits to be dismissed, QEMU 7.2 crashes if nodes are queried.
    :raises StorageDaemonError: if the daemon refuses.
    """
    with daemon.session() as session:
        session.execute('block-stream', job_id=job, device=node)


def progress(daemon: StorageDaemon, job: str) -> int | None:
    """Return what a job has done, in bytes; None if it is over.

    :raises StorageDaemonError: if the daemon does not answer.
    """
    entry = _jobs(daemon).get(job)
    return None if entry is None else int(entry['current-progress'])


def is_filled(daemon: StorageDaemon, node: str) -> bool:
    """Tell whether a stream has ended well: its node has no backing any more.

    :raises StorageDaemonError: if the daemon does not answer, or has no such node.
    """
    with daemon.session() as session:
        for entry in session.execute('query-named-block-nodes', flat=True):
            if entry['node-name'] == node:
                return 'backing_file' not in entry
    raise exception.StorageDaemonError(f'{daemon.name}: there is no node {node}')


def _jobs(daemon: StorageDaemon) -> dict[str, dict[str, Any]]:
    with daemon.session() as session:
        return {entry['id']: entry for entry in session.execute('query-jobs')}


def end(daemon: StorageDaemon, job: str) -> None:
    """End a job, whatever its state, and forget it; one that is not there is no error.

    :raises StorageDaemonError: if it does not end: it may wait for a storage node.
    """
    deadline, asked = time.monotonic() + _ENDING_SECONDS, False
    while (entry := _jobs(daemon).get(job)) is not None:
        with contextlib.suppress(exception.StorageDaemonError), daemon.session() as session:
            # It may end, and go, at this moment by itself.
            if entry['status'] == 'concluded':
                session.execute('job-dismiss', id=job)
            elif not asked:
                session.execute('job-cancel', id=job)
                asked = True
        if time.monotonic() > deadline:
            raise exception.StorageDaemonError(
                f'{daemon.name}: job {job} did not end within {_ENDING_SECONDS} s')
        time.sleep(0.002)
