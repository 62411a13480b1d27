"""Servers boot and settle while the parts below them are replaced by an earlier version, and back.

All begins with the earlier version. One part after the other is replaced by this tree's, and then
by the earlier one again. While a part is replaced a server
boots: its disk was made before, and its guest reads on. Afterwards it settles, and another one
boots of an image that was registered at the beginning; before the next one an image is registered.
"""

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.faults import images, report, stage, versions
from bench.faults.gate import Worker
from bench.faults.guestside import GuestSide
from bench.faults.images import Image
from bench.faults.kinds import GATEWAY, HOST, READER, STORAGE
from bench.faults.plan import Life
from bench.faults.rabbit import Rabbit
from bench.faults.report import Outcome
from bench.faults.stage import PATIENCE, Stage, Trouble
from bench.faults.versions import TOP, VersionedWorker
from bench.replay import netns
from bootcache import naming

# The order of doc/source/install.rst, and the other way round.
ORDERS = ((STORAGE, HOST, GATEWAY), (GATEWAY, HOST, STORAGE))
_THINK = 0.02
_ASK_SECONDS = 120.0
_LEFT_SECONDS = 120.0
_SERVERS = 4
_LEARN_SECONDS = 30.0


class UpgradeStage(Stage):
    """A storage node and a compute host whose processes have versions.

    :param old: tree of the earlier version.
    :param options: of both sides, by side.
    """

    def __init__(self, root: Path, network: netns.Network, image: Image, old: Path,
                 options: dict[str, dict[str, Any]]):
        super().__init__(root, network, image, {})
        self.trees, self._by_side = {STORAGE: old, HOST: old}, options

    def start(self) -> None:
        """Make the directories, and start all processes."""
        for name in ('storage/tmp', 'host/tmp', 'host/instances/_base', 'log', 'glance', 'g', 'r',
                     'q', 'memory'):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in (STORAGE, HOST):
            self.call(name, 'version')
        self.call(READER, 'left')

    def _make(self, name: str) -> Worker:
        root = str(self.root)
        if name == READER:
            return Worker(self.network.hosts[0], lambda: GuestSide(root), self._clocks[READER])
        namespace = self.network.storage if name == STORAGE else self.network.hosts[0]
        return VersionedWorker(namespace, self.trees[name], name, root, self._by_side[name])

    def replace(self, part: str, tree: Path) -> None:
        """Have a part run another version; the gateway's is that of who starts it."""
        if part == GATEWAY:
            self._kill(GATEWAY)
            return
        self.call(part, 'end')
        self._workers[part].kill()
        self.trees[part] = tree
        self.call(part, 'version')


class Walk:
    """One way up, down and up again.

    :param old: tree of the earlier version.
    :param name: of that version, for people.
    :param life: of the images.
    """

    def __init__(self, stage_: UpgradeStage, old: Path, name: str, life: Life):
        self._stage, self._old, self._name, self._life = stage_, old, name, life
        self._images: list[str] = []
        self._servers: list[str] = []
        self._plays: list[dict[str, Any]] = []
        self._stock = 0

    def run(self, order: Sequence[str]) -> Iterator[Outcome]:
        """Walk it, and yield what came of each step; the first that does not end is the last."""
        trees = (TOP, self._old, TOP)
        steps = [(part, tree) for tree in trees for part in order]
        try:
            first = self._register()
            for part, tree in steps:
                yield self._outcome(f'{part} to {self._named(tree)}',
                                    lambda part=part, tree=tree: self._step(part, tree, first))
            yield self._outcome('the end', self._end)
        except Trouble:
            return

    def _named(self, tree: Path) -> str:
        return 'this' if tree == TOP else self._name

    def _outcome(self, what: str, do: Any) -> Outcome:
        self._plays, self._stock, began = [], 0, time.monotonic()
        left: list[Any] = []
        trouble = ''
        try:
            left = do() or []
        except Trouble as error:
            trouble = str(error)
            self._stage.ask_what_they_do()
        return Outcome(
            what, f'from {self._name}', self._life.value, round(time.monotonic() - began, 1),
            round(max((one['waited'] for one in self._plays), default=0.0), 1),
            sum(one['errors'] for one in self._plays), sum(one['wrong'] for one in self._plays),
            tuple(left), sum(one['pauses'] for one in self._plays), self._stock,
            trouble=trouble)

    def _step(self, part: str, tree: Path, first: str) -> None:
        image_id = self._register()
        server_id = self._make(image_id)
        self._stage.call(READER, 'know', str(self._stage.image.raw))
        self._play(image_id, server_id, lambda: self._stage.replace(part, tree))
        self._console(server_id)
        if self._life is Life.COLD:
            self._learn(image_id)
        self._settle(image_id, server_id)
        other = self._make(first)
        self._stage.call(READER, 'know', str(self._stage.image.raw))
        self._play(first, other)
        self._console(other)
        self._delete_server(other)

    # What happens to images and servers.

    def _register(self) -> str:
        stage_ = self._stage
        image_id = stage_.image.register(stage_.root / 'glance', self._life)
        self._images.append(image_id)
        stage_.call(STORAGE, 'look', image_id)

        def is_there() -> bool:
            standing, reason, has_base, has_cache = stage_.call(STORAGE, 'state', image_id)
            if standing in ('failed', 'skipped'):
                raise Trouble(f'the image is {standing}: {reason}')
            return has_base and standing == 'done' and (has_cache or self._life is Life.COLD)

        stage_.until(is_there, 'the image\'s cache image')
        return image_id

    def _make(self, image_id: str) -> str:
        server_id, deadline = f'server-{uuid.uuid4()}', time.monotonic() + _ASK_SECONDS
        self._servers.append(server_id)
        while not self._stage.call(HOST, 'make_disk', server_id, image_id):
            self._stock += 1
            if time.monotonic() > deadline:
                raise Trouble('servers go the stock way for good')
            for _tick in range(50):
                self._stage.tick()
        return server_id

    def _path(self, server_id: str) -> Path:
        return self._stage.root / 'host' / 'instances' / server_id

    def _play(self, image_id: str, server_id: str, meanwhile: Any = None) -> None:
        stage_ = self._stage
        stage_.call(HOST, 'keep', server_id, image_id)
        stage_.call(READER, 'start', str(self._path(server_id) / 'disk'))
        reader = stage_._worker(READER)
        assert reader is not None
        reader.send('play', images.boot(self._life), _THINK)
        if meanwhile is not None:
            meanwhile()
        stage_.until(reader.has_answer, 'the guest\'s end', PATIENCE)
        played = reader.result(0)
        self._plays.append(played)
        stage_.call(READER, 'stop')
        if played['crashed']:
            raise Trouble('the server\'s QEMU has ended')

    def _console(self, server_id: str) -> None:
        (self._path(server_id) / 'console').write_text(f'{images.MARKER}\n')

    def _learn(self, image_id: str) -> None:
        """Have the image get its cache image: a host that was replaced forgets what it watched."""
        stage_ = self._stage
        for _server in range(_SERVERS):
            try:
                stage_.until(lambda: stage_.call(STORAGE, 'state', image_id)[3],
                             'a cache image of what was read', _LEARN_SECONDS)
                return
            except Trouble:
                server_id = self._make(image_id)
                stage_.call(READER, 'know', str(stage_.image.raw))
                self._play(image_id, server_id)
                self._console(server_id)
        raise Trouble('no boot was learned from')

    def _settle(self, image_id: str, server_id: str) -> None:
        self._stage.call(HOST, 'server_goes', server_id)
        (self._path(server_id) / 'stopped').touch()
        self._stage.until(lambda: self._stage.call(HOST, 'is_settled', server_id), 'settling')
        # What it has written is known of the last one that was played.
        if self._life is not Life.COLD:
            self._play(image_id, server_id)

    def _delete_server(self, server_id: str) -> None:
        self._stage.call(HOST, 'server_goes', server_id)
        shutil.rmtree(self._path(server_id))
        self._servers.remove(server_id)

    def _end(self) -> list[str]:
        """Delete all, with this tree's processes; return what is left after a while."""
        stage_, left = self._stage, ['?']
        for server_id in self._servers[:]:
            self._delete_server(server_id)
        for image_id in self._images:
            bases = stage_.root / 'host' / 'instances' / '_base'
            # As Nova's own image cache manager does.
            for path in bases.glob(f'{naming.cache_file_name(image_id)}*'):
                if not path.name.partition('.')[2].startswith('bootcache.'):
                    path.unlink()
            (stage_.root / 'glance' / f'{image_id}.json').unlink()
            stage_.call(STORAGE, 'look', image_id)

        def is_clean() -> bool:
            nonlocal left
            left = [*stage_.call(STORAGE, 'left'), *stage_.call(HOST, 'left'), *stage_.strangers()]
            return not left

        try:
            stage_.until(is_clean, 'the end of all', _LEFT_SECONDS)
        except Trouble:
            if left == ['?']:
                raise
        return left


def run(commits: Sequence[str], kept: Path) -> Iterator[Outcome]:
    """Walk from each commit to this tree, back, and up again.

    :param commits: none for those of the last two releases.
    :param kept: directory for the logs of what went wrong.
    :raises NoSuchVersion: if there is no such commit.
    """
    for commit in commits or versions.defaults():
        for number, (order, life) in enumerate((
                (ORDERS[0], Life.ARRIVE), (ORDERS[1], Life.FETCH), (ORDERS[0], Life.COLD))):
            yield from _walk(commit, order, life, kept / f'upgrade-{commit[:7]}-{number}')


def _walk(commit: str, order: Sequence[str], life: Life, kept: Path) -> Iterator[Outcome]:
    root = Path(tempfile.mkdtemp(prefix='bcf', dir='/tmp'))
    try:
        old = versions.extract(commit, root / 'old')
        with netns.network(1, 0) as network, stage.file_systems(
                root, {'storage': 640, 'host': 640, 'memory': 64}):
            (root / 'content').mkdir()
            rabbit = Rabbit(network, root / 'rabbit')
            bus = {'transport_url': rabbit.url}
            # All images have room, and are to be known to the end.
            stage_ = UpgradeStage(root, network, Image(root / 'content'), old, {
                STORAGE: {**bus, 'profile_boots': life is not Life.COLD},
                HOST: {**bus, 'compute_disk_quota': '256MiB'}})
            ok = False
            try:
                rabbit.start()
                stage_.start()
                outcomes = []
                for outcome in Walk(stage_, old, commit[:7], life).run(order):
                    outcomes.append(outcome)
                    yield outcome
                    if outcome.trouble:
                        break
                ok = all(outcome.ok for outcome in outcomes)
            except Trouble as error:
                yield Outcome('the beginning', f'from {commit[:7]}', life.value, 0.0,
                              trouble=str(error))
            finally:
                stage_.close()
                rabbit.stop()
                if not ok and (root / 'log').exists():
                    shutil.rmtree(kept, ignore_errors=True)
                    shutil.copytree(root / 'log', kept)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def to_json(commits: Sequence[str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return it for the report."""
    return {'commits': list(commits), 'summary': report.summary(outcomes),
            'steps': [one.to_json() for one in outcomes]}
