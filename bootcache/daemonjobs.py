"""What a storage daemon does for a while: it fills an image from its backing."""

import contextlib
import time
from typing import Any

from bootcache import exception
from bootcache.storagedaemon import StorageDaemon

_ENDING_SECONDS = 10


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


def end(daemon: StorageDaemon, job: str, seconds: float | None = None) -> None:
    """End a job, whatever its state, and forget it; one that is not there is no error.

    :param seconds: for which to wait until it has ended; None for ten.
    :raises StorageDaemonError: if it does not end: it may wait for a storage node.
    """
    seconds = _ENDING_SECONDS if seconds is None else seconds
    deadline, asked = time.monotonic() + seconds, False
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
                f'{daemon.name}: job {job} did not end within {seconds:g} s')
        time.sleep(0.002)
