"""What is done next about each server of a checkpoint. Pure.

Where a server stands is Nova's word each time; the file only says what was begun. So whoever goes
on after a crash decides as who began.
"""

import dataclasses
import enum

from glance_bootcache.deployment.checkpoint import SavedServer, Status

_BROKEN = ('deleted', 'pending_delete', 'killed', 'deactivated')


@dataclasses.dataclass(frozen=True)
class Seen:
    """What Nova and Glance say of a server and its snapshot.

    :ivar status: the server's, such as ACTIVE.
    :ivar task: what Nova does with it; empty if nothing.
    :ivar image: the status of the snapshot's image; None if there is no such image.
    """

    status: str
    task: str
    image: str | None = None


class NextStep(enum.Enum):
    """What is done next about a server."""

    WAIT = 'wait'
    PAUSE = 'pause'
    STANDS = 'it is paused; its snapshot waits for the others'
    SNAPSHOT = 'snapshot'
    AGAIN = 'its snapshot has come to nothing'
    SAVED = 'saved'
    UNPAUSE = 'unpause'
    GOES_ON = 'it is not paused any more'
    GONE = 'the server is deleted'
    DONE = 'done'


def next_step(saved: SavedServer, seen: Seen | None, pause: bool) -> NextStep:
    """Return what is done next about a server.

    :param seen: None if Nova does not have it.
    :param pause: whether servers are to be paused for their snapshots.
    """
    if saved.status in (Status.SAVED, Status.FAILED):
        return released(saved, seen)
    if seen is None:
        return NextStep.GONE
    if saved.status is Status.ASKED:
        if seen.task:
            return NextStep.WAIT
        if seen.image == 'active':
            return NextStep.SAVED
        return NextStep.AGAIN if seen.image is None or seen.image in _BROKEN else NextStep.WAIT
    if seen.task:
        return NextStep.WAIT
    return NextStep.PAUSE if pause and seen.status == 'ACTIVE' else NextStep.STANDS


def released(saved: SavedServer, seen: Seen | None) -> NextStep:
    """Return what is done next that a server goes on which was paused for its snapshot.

    :param seen: None if Nova does not have it.
    """
    if not saved.paused:
        return NextStep.DONE
    if seen is None or (seen.status != 'PAUSED' and not seen.task):
        return NextStep.GOES_ON
    return NextStep.WAIT if seen.task else NextStep.UNPAUSE


def gate(steps: dict[str, NextStep], waiting: set[str]) -> dict[str, NextStep]:
    """Let snapshots begin when no server has to be waited for that is to be paused first.

    :param steps: by server.
    :param waiting: servers whose snapshot is not asked for yet.
    :returns: the same, with a snapshot where a server stands and may begin.
    """
    moving = any(steps[server] in (NextStep.PAUSE, NextStep.WAIT) for server in waiting)
    begun = NextStep.WAIT if moving else NextStep.SNAPSHOT
    return {server: begun if step is NextStep.STANDS else step for server, step in steps.items()}
