"""Ways to a base that fail, while guests read it and servers start: see doc/source/faults.rst."""

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from bench.faults import images
from bench.faults.images import Image
from bench.faults.kinds import HOST, READER, STORAGE
from bench.faults.lives import LifeOfImage
from bench.faults.plan import READING
from bench.faults.stage import Trouble
from bench.faults.wayplan import CEPH, DATABASE, GIVEN_UP, Case, Figures, WayOutcome, faults_of
from bench.faults.waystage import QEMU, WaysStage
from bench.replay import netns, trace

_GUESTS = 'scsi', 'virtio'
# So many times as many read while something is wrong with the database.
_OF_DATABASE = 10
# Between starts of servers.
_TICKS = 200


class _Trial:
    """A way, with guests that read by it, and its cases one after the other.

    :param stage: its processes, started.
    """

    def __init__(self, stage: WaysStage):
        self._stage = stage
        self._life = LifeOfImage(stage, stage.row)
        self._reads = [one for one in images.boot(stage.row.life)
                       if one.op == trace.READ and not images._is_missed(one)]
        self._wrong = self._errors = 0
        self._image_id = self._other_id = self._stopped_id = ''

    def begin(self, with_disk: bool) -> None:
        """Have two images, and guests of the first.

        :param with_disk: whether its base is on a disk that can hang.
        """
        stage = self._stage
        self._image_id, self._other_id = self._life._register(), self._life._register()
        if with_disk and stage.way != CEPH:
            stage.put_disk_below(stage.call(STORAGE, 'base', self._image_id))
        # The exporter may be about to start.
        self._stopped_id = stage.until(lambda: self._make_disk(self._image_id), 'a cache image')
        stage.until(lambda: self._start_new()[1], 'servers that start')
        self._life._servers.append(self._stopped_id)

    def _start_guests(self) -> list[str]:
        """Start guests, and return their servers once they have read."""
        stage, found = self._stage, []
        for bus in _GUESTS * (_OF_DATABASE if stage.way == DATABASE else 1):
            server_id = stage.until(lambda: self._make_disk(self._image_id), 'a cache image')
            stage.call(HOST, 'keep', server_id, self._image_id)
            stage.call(QEMU, 'start', server_id, bus, self._disk(server_id))
            found.append(server_id)
        stage.until(lambda: all(one.reads > 1 for one in self._seen()), 'guests that read')
        stage.call(QEMU, 'begin')
        return found

    def _delete(self, server_id: str) -> None:
        self._stage.call(HOST, 'server_goes', server_id)
        shutil.rmtree(self._stage.root / 'host/instances' / server_id)

    def _make_disk(self, image_id: str) -> str:
        """Make a server's disk, and return the server's id; none for the stock way."""
        stage, server_id = self._stage, str(uuid.uuid4())
        if not stage.call(HOST, 'make_disk', server_id, image_id):
            shutil.rmtree(stage.root / 'host/instances' / server_id)
            return ''
        return server_id

    def _disk(self, server_id: str) -> str:
        return str(self._stage.root / 'host/instances' / server_id / 'disk')

    def _boot(self, server_id: str) -> None:
        """Start a server, and have it read what a boot reads."""
        stage = self._stage
        stage.call(READER, 'know', str(stage.image.raw))
        stage.call(READER, 'start', self._disk(server_id))
        found = stage.call(READER, 'play', self._reads, 0.0)
        self._wrong, self._errors = self._wrong + found['wrong'], self._errors + found['errors']
        stage.call(READER, 'stop')

    def _start_new(self) -> tuple[float, bool]:
        """Start a new server of the other image, and delete it.

        :returns: the seconds until it has booted, and whether it stands on a cache image.
        """
        stage, began = self._stage, time.monotonic()
        if not (server_id := self._make_disk(self._other_id)):
            return time.monotonic() - began, False
        stage.call(HOST, 'keep', server_id, self._other_id)
        self._boot(server_id)
        took = time.monotonic() - began
        self._delete(server_id)
        return took, True

    def _start_again(self) -> float:
        """Start the stopped server of the guests' image; the seconds until it has booted."""
        began = time.monotonic()
        self._stage.call(HOST, 'open', self._stopped_id, self._image_id)
        self._boot(self._stopped_id)
        return time.monotonic() - began

    def _seen(self, since: float | None = None) -> list[Figures]:
        found: list[Figures] = self._stage.call(QEMU, 'figures', since)
        return found

    def run(self, case: Case) -> WayOutcome:
        """Try a case."""
        stage, began, returned = self._stage, time.monotonic(), 0.0
        self._wrong = self._errors = stock = 0
        other = same = 0.0

        def lift() -> None:
            nonlocal returned
            try:
                undo()
            finally:
                returned = time.monotonic()

        # New ones: those that stop again soon have to wait for longer each time.
        guests = self._start_guests()
        undo = stage.fail(case, self._image_id)
        if case.seconds:
            stage._lifts.append((time.monotonic() + case.seconds, lift))
        else:
            lift()
        is_first = True
        while is_first or not returned:
            is_first = False
            took, is_ours = self._start_new()
            other, same, stock = max(other, took), max(same, self._start_again()), \
                stock + (not is_ours)
            for _tick in range(_TICKS):
                if not returned:
                    stage.tick()
        with contextlib.suppress(Trouble):
            stage.until(lambda: all(one.until_on is not None for one in self._seen(returned)),
                        'that guests go on', GIVEN_UP)
        seen, removed = self._seen(returned), stage.removed()
        stage.call(QEMU, 'end_guests')
        for server_id in guests:
            self._delete(server_id)
        return WayOutcome(
            READING, case.name, self._stage.row.life.value, round(time.monotonic() - began, 1),
            round(max(max(one.unanswered, one.paused) for one in seen), 1),
            self._errors + sum(one.errors for one in seen),
            self._wrong + sum(one.wrong for one in seen), (), sum(one.pauses for one in seen),
            stock, (), '; '.join([*faults_of(case, seen, other, same),
                                  *(f'removed: {one}' for one in removed)]), stage.way,
            round(max(one.unanswered for one in seen), 1),
            round(max((one.until_on or 0.0) for one in seen), 1),
            round(other, 1), round(same, 1))

    def end(self) -> WayOutcome:
        """Delete servers and images; what is left of them."""
        began, trouble, left = time.monotonic(), '', []
        try:
            self._stage.take_disk_away()
            if self._stage.way == DATABASE:
                # As an operator does: "bootcache-manage files remove".
                self._stage.call(STORAGE, 'remove_unnamed')
            left = self._life._end()
        except Trouble as error:
            trouble = str(error)
        return WayOutcome(READING, 'deletion', self._stage.row.life.value,
                          round(time.monotonic() - began, 1), leftovers=tuple(left),
                          trouble=trouble, way=self._stage.way)


def run(way: tuple[str, list[Case]], root: Path, network: netns.Network,
        image: Image) -> Iterator[WayOutcome]:
    """Try the cases of a way, and yield what comes of each."""
    name, cases = way
    stage = WaysStage(root, network, image, name)
    try:
        stage.start()
        trial = _Trial(stage)
        trial.begin(any(case.name == 'disk-hangs' for case in cases))
        for case in cases:
            yield trial.run(case)
        yield trial.end()
    except Exception as error:
        stage.ask_what_they_do()
        yield WayOutcome(READING, 'start', '', 0.0, trouble=repr(error), way=name)
    finally:
        stage.close()
