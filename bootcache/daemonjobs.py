"""What a storage daemon does for a while: it makes image files, and fills one from its backing.

An image file is made in some milliseconds so, where starting qemu-img takes ten times that.
"""

import contextlib
import dataclasses
import os
import time
import uuid
from typing import Any

from bootcache import exception
from bootcache.storagedaemon import Session, StorageDaemon

# Of jobs and nodes.
_MAKING, _NEW = 'make', 'new'
_MAKING_SECONDS = 30
_ENDING_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a job is.

    :ivar done: bytes, or what else the job counts.
    :ivar is_over: whether it has ended.
    :ivar error: why it failed; empty if it did not.
    """

    done: int
    is_over: bool
    error: str


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
    while not (state := progress(daemon, job)).is_over:
        if time.monotonic() > deadline:
            raise exception.StorageDaemonError(
                f'{path} was not made within {_MAKING_SECONDS} s')
        time.sleep(0.001)
    if state.error:
        raise exception.StorageDaemonError(f'{path} cannot be made: {state.error}')


def discard_leftovers(daemon: StorageDaemon) -> None:
    """Forget what an earlier process had the daemon make, and was killed before it was made.

    :raises StorageDaemonError: if the daemon does not answer, or refuses.
    """
    with daemon.session() as session:
        jobs = [entry['id'] for entry in session.execute('query-jobs')]
    for job in jobs:
        if job.startswith(f'{_MAKING}-'):
            end(daemon, job)
    daemon.remove_nodes(*(node for node in daemon.nodes() if node.startswith(f'{_NEW}-')))


def _look(session: Session, job: str) -> Progress:
    for entry in session.execute('query-jobs'):
        if entry['id'] == job:
            return Progress(int(entry['current-progress']), entry['status'] == 'concluded',
                            str(entry.get('error', '')))
    raise exception.StorageDaemonError(f'job {job} is gone')


def start_stream(daemon: StorageDaemon, job: str, node: str) -> None:
    """Begin to fill a node's file with all that its backing has.

    :param job: id; it stays until :func:`end`.
    :raises StorageDaemonError: if the daemon refuses.
    """
    with daemon.session() as session:
        session.execute('block-stream', job_id=job, device=node, auto_dismiss=False)


def progress(daemon: StorageDaemon, job: str) -> Progress:
    """Return how far a job is.

    :raises StorageDaemonError: if it is gone, or the daemon with it.
    """
    with daemon.session() as session:
        return _look(session, job)


def end(daemon: StorageDaemon, job: str) -> None:
    """End a job, whatever its state, and forget it; one that is not there is no error.

    :raises StorageDaemonError: if it does not end: it may wait for a storage node.
    """
    with daemon.session() as session:
        present = {entry['id']: entry['status'] for entry in session.execute('query-jobs')}
        if job not in present:
            return
        if present[job] != 'concluded':
            with contextlib.suppress(exception.StorageDaemonError):
                # It may end at this moment by itself.
                session.execute('job-cancel', id=job)
    deadline = time.monotonic() + _ENDING_SECONDS
    while not progress(daemon, job).is_over:
        if time.monotonic() > deadline:
            raise exception.StorageDaemonError(
                f'{daemon.name}: job {job} did not end within {_ENDING_SECONDS} s')
        time.sleep(0.02)
    with daemon.session() as session:
        session.execute('job-dismiss', id=job)
