"""What a storage daemon does for a while: it reads all that a node has."""

import contextlib
import time
from typing import Any

from bootcache import exception
from bootcache.storagedaemon import StorageDaemon

_ENDING_SECONDS = 10


def start_reading(daemon: StorageDaemon, job: str, node: str, sink: str, piece: int) -> None:
    """Begin to read all that a node has: above a copy-on-read filter that has it copied.

    :param job: id.
    :param sink: name of a node of the same size that keeps nothing.
    :param piece: bytes that it asks for at a time; a power of two.
    :raises StorageDaemonError: if the daemon refuses.
    """
    with daemon.session() as session:
        session.execute('blockdev-mirror', job_id=job, device=node, target=sink, sync='full',
                        granularity=piece, buf_size=piece)


def look(daemon: StorageDaemon, job: str) -> int | None:
    """Return how many bytes a job has read; None if that was all, and it waits to be ended.

    :raises StorageDaemonError: if the job has failed, which ends it: not all could be read, or
        written; or if the daemon does not answer.
    """
    entry = _jobs(daemon).get(job)
    if entry is None:
        raise exception.StorageDaemonError(
            f'{daemon.name}: not all of it could be read, or written')
    return None if entry['status'] == 'ready' else int(entry['current-progress'])


def is_there(daemon: StorageDaemon, job: str) -> bool:
    """Tell whether there is a job, whatever its state.

    :raises StorageDaemonError: if the daemon does not answer.
    """
    return job in _jobs(daemon)


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
