"""Storage nodes that fail, while guests read from all of them: see doc/source/faults.rst."""

import collections
import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.faults import images, lanes, nodestage
from bench.faults.images import Image
from bench.faults.kinds import HOST, READER
from bench.faults.nodeplan import (
    DELETION,
    GIVEN_UP,
    NODES,
    NodeOutcome,
    Turn,
    faults_of,
    files_of,
    homes_of,
    moved_between,
    node_name,
    unsettled,
)
from bench.faults.nodestage import NodesStage
from bench.faults.nodesteps import AtStep
from bench.faults.plan import READING
from bench.faults.stage import PATIENCE, Trouble, file_systems
from bench.faults.wayplan import Figures
from bench.faults.waystage import QEMU
from bench.replay import netns, trace
from bootcache import naming

_IMAGES = 20
# Of so many contents: a guest that read another image's base would see wrong bytes. The last ones
# are of images that no node has in Glance's store.
_CONTENTS, _WITHOUT_FILE = 4, 3
_BUSES = 'scsi', 'virtio'
_RECENT_SECONDS = 3.0
_BACK_SECONDS = 120.0
_LEFT_SECONDS = 120.0
_TABLES = 'images', 'files', 'working_sets', 'snapshots'
_LIFE = 'nodes'


@dataclasses.dataclass
class _Image:
    """An image, with its guest's server.

    :ivar content: of which it is.
    :ivar is_in_store: whether Glance's store has its file.
    """

    content: Image
    is_in_store: bool
    image_id: str = ''
    server_id: str = ''


class _Trial:
    """Guests of images that storage nodes work on, and its cases one after the other.

    :param stage: its processes, started.
    :param contents: of images.
    """

    def __init__(self, stage: NodesStage, contents: Sequence[Image]):
        self._stage = stage
        self._images = [_Image(contents[number % len(contents)],
                               number < _IMAGES - _WITHOUT_FILE) for number in range(_IMAGES)]
        self._reads = [one for one in images.boot(stage.row.life)
                       if one.op == trace.READ and not images._is_missed(one)]

    def begin(self) -> None:
        """Have images, of which each node works on some, and a guest of each."""
        stage = self._stage
        for number, image in enumerate(self._images):
            image.image_id = image.content.register(stage.root / 'glance', stage.row.life)
            if image.is_in_store:
                os.link(stage.root / 'glance' / image.image_id, stage.store() / image.image_id)
            stage.call(stage.nodes[number % NODES], 'look', image.image_id)
        self._until_none(lambda: unsettled(stage.rows()), 'the cache images', PATIENCE)
        # A guest's sums are made for each content once.
        for content in {id(image.content): image.content for image in self._images}.values():
            stage.call(QEMU, 'know', str(content.raw))
            for number, image in enumerate(self._images):
                if image.content is content:
                    image.server_id = self._start_guest(image, _BUSES[number % len(_BUSES)])
        stage.until(lambda: all(one.reads > 1 for one in self._seen()), 'guests that read')

    def _start_guest(self, image: _Image, bus: str) -> str:
        stage = self._stage
        server_id: str = stage.until(lambda: self._make_disk(image), 'a cache image')
        stage.call(HOST, 'keep', server_id, image.image_id)
        stage.call(QEMU, 'start', server_id, bus, self._disk(server_id))
        return server_id

    def _make_disk(self, image: _Image) -> str:
        """Make a server's disk, and return the server's id; none for the stock way."""
        stage, server_id = self._stage, str(uuid.uuid4())
        if not stage.call(HOST, 'make_disk', server_id, image.image_id):
            shutil.rmtree(stage.root / 'host/instances' / server_id)
            return ''
        return server_id

    def _disk(self, server_id: str) -> str:
        return str(self._stage.root / 'host/instances' / server_id / 'disk')

    def _delete(self, server_id: str) -> None:
        self._stage.call(HOST, 'server_goes', server_id)
        shutil.rmtree(self._stage.root / 'host/instances' / server_id)

    def _boot(self, image: _Image) -> tuple[bool, int, int]:
        """Boot a server of an image, and delete it.

        :returns: whether it stood on a cache image; errors, and wrong bytes.
        """
        stage = self._stage
        if not (server_id := self._make_disk(image)):
            return False, 0, 0
        stage.call(HOST, 'keep', server_id, image.image_id)
        stage.call(READER, 'know', str(image.content.raw))
        stage.call(READER, 'start', self._disk(server_id))
        found = stage.call(READER, 'play', self._reads, 0.0)
        stage.call(READER, 'stop')
        self._delete(server_id)
        return True, found['errors'], found['wrong']

    def _seen(self, since: float | None = None) -> list[Figures]:
        found: list[Figures] = self._stage.call(QEMU, 'figures', since)
        return found

    def _all_read(self) -> bool:
        """Tell whether each guest has read just now."""
        recent = time.monotonic() - _RECENT_SECONDS
        return all(one.until_on is not None for one in self._seen(recent))

    def _until_none(self, find: Callable[[], list[str]], what: str, seconds: float) -> None:
        """Wait until nothing is found.

        :raises Trouble: with what was found last.
        """
        found = ['?']

        def is_none() -> bool:
            nonlocal found
            found = find()
            return not found

        try:
            self._stage.until(is_none, what, seconds)
        except Trouble as error:
            raise Trouble(f'{error}: {"; ".join(found[:5])}, {len(found)} in all') from None

    def _not_back(self) -> list[str]:
        """Return what is not as it is when all nodes work, and nothing moves any more."""
        stage = self._stage
        if not self._all_read():
            return ['a guest does not read']
        if not stage.all_see_all():
            return ['a node is not seen to work']
        return unsettled(stage.rows()) or [
            f'{what} on {node}' for node in stage.nodes for what in stage.call(node, 'under_way')]

    def _recorded(self) -> collections.Counter[str]:
        path = nodestage.recordings(str(self._stage.root / self._stage.nodes[0]))
        return collections.Counter(path.read_text().split())

    # Cases.

    def run(self, turn: Turn) -> NodeOutcome:
        """Try a case."""
        stage, case, began = self._stage, turn.case, time.monotonic()
        self._until_none(self._not_back, 'that all nodes work', _BACK_SECONDS)
        at = AtStep(stage, turn.step, self._images[-1].content) if turn.step else None
        if at is not None:
            at.prepare()
        node = at.node if at is not None else self._node(turn, homes_of(stage.rows()))
        leaving = {node} if at is None else at.leaving
        before, recorded = stage.rows(), self._recorded()
        homes = homes_of(before)
        lost = [image for image in self._images if not node or homes[image.image_id] in leaving]
        keep = [one for one in stage.nodes if one != node or case.is_gone]
        if at is not None:
            keep = [one for one in keep if one not in at.gives_up]
        rows, files = files_of(before, keep), stage.files(keep)
        stage.call(QEMU, 'begin')
        failed = time.monotonic()
        undo = stage.fail(case, node) if at is None else at.strike()
        # Whatever becomes of this.
        lift = (float('inf'), undo)
        stage._lifts.append(lift)
        is_ours, errors, wrong = self._boot(lost[0]) if lost else (True, 0, 0)
        with contextlib.suppress(Trouble):
            stage.until(lambda: time.monotonic() > failed + turn.seconds and self._all_read()
                        and not (case.moves and self._are_homes(leaving)),
                        'that guests go on', turn.seconds + GIVEN_UP)
        removed = sorted(files - stage.files(keep))
        if not case.of_all:
            removed = sorted({*removed, *(rows - files_of(stage.rows(), keep))})
        stage._lifts.remove(lift)
        undo()
        returned, troubles = time.monotonic(), []
        try:
            if at is not None:
                stage.until(at.is_done, 'what the killed node has begun', _BACK_SECONDS)
                at.end()
            self._until_none(self._not_back, 'that all is as before', _BACK_SECONDS)
        except Trouble as error:
            troubles.append(str(error))
            stage.ask_what_they_do()
        now = time.monotonic()
        seen, gaps = self._seen(failed), stage.call(QEMU, 'gaps', failed)
        own = '' if at is None else at.image_id
        moved = moved_between(before, stage.rows()) - {own}
        removed = [one for one in removed if not own or own not in one]
        # What was recorded and not written yet is recorded again.
        again = self._recorded() - recorded
        twice = sorted(image_id for image_id, count in again.items() if recorded[image_id] + count
                       > (2 if image_id == own and turn.step == 'record: kept' else 1))
        troubles = [*faults_of(turn, seen, gaps, len(moved), len(lost)), *troubles]
        return NodeOutcome(
            turn.step or READING, case.name, _LIFE, round(now - began, 1), round(max(gaps), 1),
            errors + sum(one.errors for one in seen), wrong + sum(one.wrong for one in seen), (),
            sum(one.pauses for one in seen), int(not is_ours), (), '; '.join(troubles),
            node or 'all', len(moved), len(lost), round(max(one.paused for one in seen), 1),
            round(max(one.unanswered for one in seen), 1), round(now - returned, 1),
            tuple(twice), tuple(removed))

    def _are_homes(self, nodes: set[str]) -> bool:
        homes = homes_of(self._stage.rows())
        return any(homes[image.image_id] in nodes for image in self._images)

    def _node(self, turn: Turn, homes: dict[str, str]) -> str:
        """Return the node that fails; empty for all of them."""
        if turn.node or turn.case.of_all:
            return node_name(turn.node) if turn.node else ''
        return homes[next(image.image_id for image in self._images if not image.is_in_store)]

    def end(self) -> NodeOutcome:
        """Delete servers and images; what is left of them."""
        stage, began = self._stage, time.monotonic()
        trouble, left = '', ['?']
        instances = stage.root / 'host/instances'

        def find() -> list[str]:
            nonlocal left
            rows = stage.rows()
            left = [f'{len(rows[table])} rows in {table}' for table in _TABLES if rows[table]]
            for node in stage.nodes:
                left += [f'{one} on {node}' for one in stage.call(node, 'left')]
            left += stage.call(HOST, 'left')
            return left

        try:
            stage.call(QEMU, 'end_guests')
            for image in self._images:
                self._delete(image.server_id)
            for number, image in enumerate(self._images):
                # As Nova's own image cache manager does.
                for path in (instances / '_base').glob(
                        f'{naming.cache_file_name(image.image_id)}*'):
                    if not path.name.partition('.')[2].startswith('bootcache.'):
                        path.unlink()
                (stage.root / 'glance' / f'{image.image_id}.json').unlink()
                (stage.store() / image.image_id).unlink(missing_ok=True)
                stage.call(stage.nodes[number % NODES], 'look', image.image_id)
            self._until_none(find, 'the end of all', _LEFT_SECONDS)
        except Trouble as error:
            trouble = '' if left != ['?'] else str(error)
            stage.ask_what_they_do()
        return NodeOutcome(READING, DELETION, _LIFE, round(time.monotonic() - began, 1),
                           leftovers=() if left == ['?'] else tuple(left), trouble=trouble,
                           node='all')


def run(turns: Sequence[Turn], report: Path, is_galera: bool = False) -> Iterator[NodeOutcome]:
    """Try cases one after the other, and yield what comes of each, and of the deletion of all.

    :param report: directory that gets the logs if something is wrong.
    :param is_galera: whether the database is a Galera cluster of as many nodes.
    """
    root = Path(tempfile.mkdtemp(prefix='bcf', dir='/tmp'))
    outcomes: list[NodeOutcome] = []
    try:
        with tempfile.TemporaryDirectory(prefix='bcf', dir='/tmp') as content, \
                netns.network(1, 0, NODES - 1) as network, \
                file_systems(root, nodestage.FILE_SYSTEMS):
            contents = []
            for seed in range(_CONTENTS):
                place = Path(content, str(seed))
                place.mkdir()
                contents.append(Image(place, seed))
            for outcome in _run(turns, root, network, contents, is_galera):
                outcomes.append(outcome)
                yield outcome
            lanes._keep_logs(root / 'log', report, 0, outcomes)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(turns: Sequence[Turn], root: Path, network: netns.Network,
         contents: Sequence[Image], is_galera: bool) -> Iterator[NodeOutcome]:
    nodes = NodesStage(root, network, contents[0],
                       any(turn.case.name == 'disk-hangs' for turn in turns), is_galera)
    try:
        nodes.start()
        trial = _Trial(nodes, contents)
        trial.begin()
        for turn in turns:
            yield trial.run(turn)
        yield trial.end()
    except Exception as error:
        nodes.ask_what_they_do()
        yield NodeOutcome(READING, 'start', _LIFE, 0.0, trouble=repr(error))
    finally:
        nodes.close()
