"""Taking the snapshots of a checkpoint: RR-7482, section 3.2, "in parallel", by Nova's API.

What is asked of Nova is in the checkpoint's file before it is asked: a run that ends anywhere is
gone on with by another one, and a server that it has paused is known to be.
"""

import collections
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from bootcache.quoting import one_line
from glance_bootcache.deployment import steps
from glance_bootcache.deployment.checkpoint import Checkpoint, SavedServer, Status, now
from glance_bootcache.deployment.cloud import Cloud, CloudRefused, DeploymentLimits
from glance_bootcache.deployment.steps import NextStep, Seen
from glance_bootcache.progressline import ProgressLine

Answer = TypeVar('Answer')
_OPEN = (Status.CHOSEN, Status.ASKED)
_PERIOD_SECONDS = 1.0
# For servers that were paused, however the rest has ended.
RELEASE_SECONDS = 600.0


class Snapshotting:
    """Takes the snapshots of a checkpoint.

    :param checkpoint: changed as it goes on.
    :param save: writes it to its file.
    :param limits: the time is for all snapshots.
    """

    def __init__(self, cloud: Cloud, checkpoint: Checkpoint, save: Callable[[], None],
                 progress: ProgressLine, limits: DeploymentLimits):
        self._cloud = cloud
        self._checkpoint = checkpoint
        self._save = save
        self._progress = progress
        self._limits = limits
        self._servers = {saved.server_id: saved for saved in checkpoint.servers}
        self._tries: collections.Counter[str] = collections.Counter()
        self._away = ''

    def run(self) -> None:
        """Take them; whatever happens, what was paused goes on at the end.

        :raises BootcacheError: if the file cannot be written.
        """
        try:
            self._adopt()
            self._take()
        finally:
            self.release()

    def paused(self) -> list[SavedServer]:
        """Return the servers that were paused, and are not known to go on."""
        return [saved for saved in self._servers.values() if saved.paused]

    def release(self) -> None:
        """Have all servers go on that were paused, within ten minutes."""
        deadline = time.monotonic() + RELEASE_SECONDS
        while (left := self.paused()) and time.monotonic() < deadline:
            self._progress.show('unpausing', f'{len(left)} servers')
            self._act({server: steps.released(self._servers[server], seen)
                       for server, seen in self._look(left).items()})
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
        while left := [saved for saved in self._servers.values()
                       if saved.paused or saved.status in _OPEN]:
            seen = self._look(left)
            self._note_standing(seen)
            waiting = {saved.server_id for saved in left if saved.status is Status.CHOSEN}
            # One that could not be looked at may be about to be paused as well.
            found = dict.fromkeys(waiting, NextStep.WAIT) | {
                server: steps.next_step(self._servers[server], one, self._checkpoint.pause)
                for server, one in seen.items()}
            self._act(steps.gate(found, waiting))
            self._show()
            if time.monotonic() >= deadline:
                self._time_is_out()
                return
            time.sleep(_PERIOD_SECONDS)

    def _time_is_out(self) -> None:
        why = f'not done within {self._limits.timeout:g} s; go on with --continue'
        why += f' ({self._away})' if self._away else ''
        for saved in self._servers.values():
            if saved.status in _OPEN:
                # As far as it is: who goes on finds what Nova has done meanwhile.
                self._fail(saved, why, saved.status)
        self._save()

    def _look(self, servers: Iterable[SavedServer]) -> dict[str, Seen | None]:
        """Look at servers; those at which Nova does not let us look are left out."""
        found: dict[str, Seen | None] = {}
        self._away = ''
        self._each(servers, lambda saved: self._cloud.see(saved.server_id, saved.image_id),
                   self._not_seen, lambda saved, seen: found.update({saved.server_id: seen}))
        return found

    def _not_seen(self, saved: SavedServer, error: CloudRefused) -> None:
        self._away = str(error)
        if not error.passes and saved.status in _OPEN:
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
        of: dict[NextStep, list[SavedServer]] = {step: [] for step in NextStep}
        for server, step in found.items():
            of[step].append(self._servers[server])
        for saved in of[NextStep.GONE]:
            self._fail(saved, 'the server is deleted')
        for saved in of[NextStep.SAVED]:
            saved.status, saved.reason = Status.SAVED, ''
        for saved in of[NextStep.GOES_ON]:
            saved.paused = False
        for saved in of[NextStep.AGAIN]:
            self._again(saved, 'Nova\'s snapshot has come to nothing; the log of nova-compute on'
                               f' {saved.host or "its host"} says why')
        for saved in of[NextStep.PAUSE]:
            saved.paused = True
        for saved in of[NextStep.SNAPSHOT]:
            saved.status, saved.asked_at, saved.image_id = Status.ASKED, now(), ''
        if set(found.values()) - {NextStep.WAIT, NextStep.DONE, NextStep.UNPAUSE}:
            self._save()
        if pausing := of[NextStep.PAUSE]:
            self._progress.line(f'pausing {len(pausing)} servers: '
                                + ', '.join(saved.server_id for saved in pausing[:20]))
        self._each(pausing, lambda saved: self._cloud.pause(saved.server_id), self._not_done)
        self._each(of[NextStep.SNAPSHOT], lambda saved: self._cloud.snapshot(
            saved.server_id, saved.image_name, self._checkpoint.checkpoint_id), self._not_done,
            self._asked)
        self._each(of[NextStep.UNPAUSE], lambda saved: self._cloud.unpause(saved.server_id),
                   self._not_released)

    def _asked(self, saved: SavedServer, image: str) -> None:
        saved.image_id = image
        self._save()

    def _not_done(self, saved: SavedServer, error: CloudRefused) -> None:
        if saved.status is Status.ASKED and not error.status:
            # Nova may have begun: what there is in Glance tells.
            self._adopt()
            return
        self._again(saved, str(error), lasting=not error.passes)
        self._save()

    def _not_released(self, _saved: SavedServer, error: CloudRefused) -> None:
        # It is looked at again, and tried again until time is out.
        self._away = str(error)

    def _again(self, saved: SavedServer, why: str, *, lasting: bool = False) -> None:
        self._tries[saved.server_id] += 1
        tries = self._tries[saved.server_id]
        if saved.image_id:
            with contextlib.suppress(CloudRefused):
                self._cloud.delete_image(saved.image_id)
        if lasting or tries >= self._limits.tries:
            self._fail(saved, why)
            return
        self._progress.line(f'server {saved.server_id}, attempt {tries}: {why}; it is tried again')
        saved.status, saved.image_id = Status.CHOSEN, ''

    def _fail(self, saved: SavedServer, why: str, status: Status = Status.FAILED) -> None:
        saved.status, saved.reason = status, one_line(why)
        self._progress.line(f'server {saved.server_id}: {saved.reason}')

    def _each(self, servers: Iterable[SavedServer], call: Callable[[SavedServer], Answer],
              refused: Callable[[SavedServer, CloudRefused], None],
              done: Callable[[SavedServer, Answer], None] = lambda _saved, _answer: None) -> None:
        """Make a call for each server, several at once; take each answer in this thread."""
        pool = concurrent.futures.ThreadPoolExecutor(self._limits.at_once)
        try:
            under_way = {pool.submit(call, saved): saved for saved in servers}
            for future in concurrent.futures.as_completed(under_way):
                try:
                    answer = future.result()
                except CloudRefused as error:
                    refused(under_way[future], error)
                else:
                    done(under_way[future], answer)
        finally:
            # What is under way at Nova has an end, and changes what is seen.
            pool.shutdown(wait=True, cancel_futures=True)

    def _show(self) -> None:
        count = collections.Counter(saved.status for saved in self._servers.values())
        details = [f'{number} {what}' for number, what in (
            (count[Status.ASKED], 'under way'), (count[Status.FAILED], 'failed'),
            (len(self.paused()), 'paused')) if number]
        details += [one_line(self._away)] if self._away else []
        self._progress.bar('snapshots', count[Status.SAVED], len(self._servers), 'servers',
                           ', '.join(details))
