"""Taking the snapshots of a checkpoint: RR-7482, section 3.2, "in parallel", by Nova's API.

What is asked of Nova is in the checkpoint's file before it is asked: a run that ends anywhere is
gone on with by another one, and a server that it has paused is known to be.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from bootcache.quoting import one_line
from glance_bootcache.deployment import steps
from glance_bootcache.deployment.checkpoint import Checkpoint, SavedServer, Status, now
from glance_bootcache.deployment.cloud import Cloud, CloudRefused
from glance_bootcache.deployment.resuming import Telling
from glance_bootcache.deployment.steps import NextStep, Seen

Answer = TypeVar('Answer')
_PERIOD_SECONDS = 1.0
# For servers that were paused, however the rest has ended.
RELEASE_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class SnapshotLimits:
    """How a checkpoint is taken.

    :ivar at_once: requests that are under way at a time.
    :ivar tries: for each snapshot.
    :ivar timeout: seconds for all of them.
    """

    at_once: int
    tries: int
    timeout: float


class Snapshotting:
    """Takes the snapshots of a checkpoint.

    :param checkpoint: changed as it goes on.
    :param save: writes it to its file.
    """

    def __init__(self, cloud: Cloud, checkpoint: Checkpoint, save: Callable[[], None],
                 progress: Telling, limits: SnapshotLimits):
        self._cloud = cloud
        self._checkpoint = checkpoint
        self._save = save
        self._progress = progress
        self._limits = limits
        self._servers = {saved.server_id: saved for saved in checkpoint.servers}
        self._tries: dict[str, int] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(limits.at_once)
        self._away = ''

    def run(self) -> None:
        """Take them; whatever happens, what was paused goes on at the end.

        :raises BootcacheError: if the file cannot be written.
        """
        try:
            self._adopt()
            self._take()
        finally:
            # What is under way at Nova has an end, and changes what is seen.
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = concurrent.futures.ThreadPoolExecutor(self._limits.at_once)
            try:
                self.release()
            finally:
                self._pool.shutdown(wait=True, cancel_futures=True)

    def paused(self) -> list[SavedServer]:
        """Return the servers that were paused, and are not known to go on."""
        return [saved for saved in self._servers.values() if saved.paused]

    def release(self) -> None:
        """Have all servers go on that were paused, within ten minutes."""
        deadline = time.monotonic() + RELEASE_SECONDS
        while (left := self.paused()) and time.monotonic() < deadline:
            self._progress.show('unpausing', f'{len(left)} servers')
            seen = self._look(left)
            found = {server: steps.released(self._servers[server], seen[server])
                     for server in seen}
            self._act(found)
            if self.paused():
                time.sleep(_PERIOD_SECONDS)

    def _adopt(self) -> None:
        """Find the images that were asked for by a run that ended before it was told their ids."""
        lost = [saved for saved in self._servers.values()
                if saved.status is Status.ASKED and not saved.image_id]
        if lost:
            known = self._cloud.images_of(self._checkpoint.checkpoint_id)
            for saved in lost:
                saved.image_id = known.get(saved.server_id, '')
            self._save()

    def _take(self) -> None:
        deadline = time.monotonic() + self._limits.timeout
        self._save()
        while True:
            open_ones = [saved for saved in self._servers.values()
                         if saved.paused or saved.status in (Status.CHOSEN, Status.ASKED)]
            if not open_ones:
                return
            seen = self._look(open_ones)
            self._note_standing(seen)
            found = {server: steps.next_step(self._servers[server], seen[server],
                                             self._checkpoint.pause) for server in seen}
            waiting = {saved.server_id for saved in open_ones if saved.status is Status.CHOSEN}
            # One that could not be looked at may be about to be paused as well.
            found |= {server: NextStep.WAIT for server in waiting - set(found)}
            self._act(steps.gate(found, waiting))
            self._show()
            if time.monotonic() >= deadline:
                self._time_is_out()
                self._save()
                return
            time.sleep(_PERIOD_SECONDS)

    def _time_is_out(self) -> None:
        why = f'not done within {self._limits.timeout:g} s; go on with --continue'
        why += f' ({self._away})' if self._away else ''
        for saved in self._servers.values():
            if saved.status in (Status.CHOSEN, Status.ASKED):
                # As far as it is: who goes on finds what Nova has done meanwhile.
                self._fail(saved, why, saved.status)

    def _look(self, servers: Iterable[SavedServer]) -> dict[str, Seen | None]:
        """Look at servers; those at which Nova does not let us look are left out."""
        found: dict[str, Seen | None] = {}
        self._away = ''

        def note(server: str, answer: Seen | None) -> None:
            found[server] = answer

        self._each({saved.server_id: lambda one=saved: self._cloud.see(  # type: ignore[misc]
            one.server_id, one.image_id) for saved in servers}, note, self._not_seen)
        return found

    def _not_seen(self, server: str, error: CloudRefused) -> None:
        self._away = str(error)
        saved = self._servers[server]
        if not error.passes and saved.status in (Status.CHOSEN, Status.ASKED):
            self._fail(saved, str(error))

    def _note_standing(self, seen: dict[str, Seen | None]) -> None:
        """Note since when servers are paused; one that goes on before its snapshot spoils it."""
        for server, one in seen.items():
            saved = self._servers[server]
            if saved.status is not Status.CHOSEN or one is None or not self._checkpoint.pause:
                continue
            if one.status == 'ACTIVE' and saved.stands_since:
                self._progress.line(f'server {server} goes on, by somebody else: its snapshot is'
                                    ' of a later point in time than the others')
                saved.stands_since = ''
            elif one.status != 'ACTIVE' and not saved.stands_since:
                saved.stands_since = now()

    def _act(self, found: dict[str, NextStep]) -> None:
        """Do what is to be done: first the file says it, then Nova is asked."""
        of: dict[NextStep, list[SavedServer]] = {}
        for server, step in found.items():
            of.setdefault(step, []).append(self._servers[server])
        for saved in of.get(NextStep.GONE, ()):
            self._fail(saved, 'the server is deleted')
        for saved in of.get(NextStep.SAVED, ()):
            saved.status, saved.reason = Status.SAVED, ''
        for saved in of.get(NextStep.GOES_ON, ()):
            saved.paused = False
        for saved in of.get(NextStep.AGAIN, ()):
            self._again(saved, 'Nova\'s snapshot has come to nothing; the log of nova-compute on'
                               f' {saved.host or "its host"} says why')
        for saved in of.get(NextStep.PAUSE, ()):
            saved.paused = True
        for saved in of.get(NextStep.SNAPSHOT, ()):
            saved.status, saved.asked_at = Status.ASKED, now()
            saved.image_id = ''
        if set(of) - {NextStep.WAIT, NextStep.DONE, NextStep.UNPAUSE}:
            self._save()
        if NextStep.PAUSE in of:
            self._progress.line(f'pausing {len(of[NextStep.PAUSE])} servers: '
                                + ', '.join(saved.server_id for saved in of[NextStep.PAUSE][:20]))
        cloud, checkpoint = self._cloud, self._checkpoint.checkpoint_id
        self._each({saved.server_id: lambda one=saved: cloud.pause(  # type: ignore[misc]
            one.server_id) for saved in of.get(NextStep.PAUSE, ())}, None, self._not_done)
        self._each({saved.server_id: lambda one=saved: cloud.snapshot(  # type: ignore[misc]
            one.server_id, one.image_name, checkpoint)
            for saved in of.get(NextStep.SNAPSHOT, ())}, self._asked, self._not_done)
        self._each({saved.server_id: lambda one=saved: cloud.unpause(  # type: ignore[misc]
            one.server_id) for saved in of.get(NextStep.UNPAUSE, ())}, None, self._not_released)

    def _asked(self, server: str, image: str) -> None:
        self._servers[server].image_id = image
        self._save()

    def _not_done(self, server: str, error: CloudRefused) -> None:
        saved = self._servers[server]
        if saved.status is Status.ASKED and not error.status:
            # Nova may have begun: what there is in Glance tells.
            self._adopt()
            return
        self._again(saved, str(error), lasting=not error.passes)
        self._save()

    def _not_released(self, server: str, error: CloudRefused) -> None:
        # It is looked at again, and tried again until time is out.
        self._away = str(error)

    def _again(self, saved: SavedServer, why: str, *, lasting: bool = False) -> None:
        tries = self._tries[saved.server_id] = self._tries.get(saved.server_id, 0) + 1
        if saved.image_id:
            self._each({saved.server_id: lambda: self._cloud.delete_image(saved.image_id)}, None,
                       lambda _server, _error: None)
        if lasting or tries >= self._limits.tries:
            self._fail(saved, why)
            return
        self._progress.line(f'server {saved.server_id}, attempt {tries}: {why}; it is tried again')
        saved.status, saved.image_id = Status.CHOSEN, ''

    def _fail(self, saved: SavedServer, why: str, status: Status = Status.FAILED) -> None:
        saved.status, saved.reason = status, one_line(why)
        self._progress.line(f'server {saved.server_id}: {saved.reason}')

    def _each(self, calls: dict[str, Callable[[], Answer]],
              done: Callable[[str, Answer], None] | None,
              refused: Callable[[str, CloudRefused], None]) -> None:
        """Make calls, several at once, and take each answer in this thread as it comes."""
        under_way = {self._pool.submit(call): server for server, call in calls.items()}
        for future in concurrent.futures.as_completed(under_way):
            server = under_way[future]
            try:
                answer = future.result()
            except CloudRefused as error:
                refused(server, error)
            else:
                if done:
                    done(server, answer)

    def _show(self) -> None:
        count = {status: sum(saved.status is status for saved in self._servers.values())
                 for status in Status}
        details = [f'{count[Status.ASKED]} under way'] if count[Status.ASKED] else []
        details += [f'{count[Status.FAILED]} failed'] if count[Status.FAILED] else []
        details += [f'{len(self.paused())} paused'] if self.paused() else []
        details += [one_line(self._away)] if self._away else []
        self._progress.bar('snapshots', count[Status.SAVED], len(self._servers), 'servers',
                           ', '.join(details))
