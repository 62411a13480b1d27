"""The life of an image and its servers, with one fault in it, and what is left in the end."""

import dataclasses
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.faults import exchanges, images
from bench.faults.images import Image
from bench.faults.kinds import HOST, READER, STORAGE, Act
from bench.faults.plan import READING, Life, Row
from bench.faults.report import Outcome
from bench.faults.stage import Stage, Trouble
from bench.replay import netns
from bootcache import naming
from tools.ceph.cluster import CephError

# Of the guest, between requests.
_THINK = 0.004
_STRIKE_SECONDS = 0.25
_LEFT_SECONDS = 120.0
_ASK_SECONDS = 120.0
_LEARN_SECONDS = 30.0
_SERVERS = 4
_ATTEMPTS = 3


class LifeOfImage:
    """One run.

    :param stage: its processes, started.
    :param row: what goes wrong.
    """

    def __init__(self, stage: Stage, row: Row):
        self._stage = stage
        self._row = row
        self._plays: list[dict[str, Any]] = []
        self._servers: list[str] = []
        self._images: list[str] = []
        self.stock = 0

    def run(self) -> Outcome:
        """Live it."""
        began, trouble, left = time.monotonic(), '', []
        try:
            self._live()
            left = self._end()
        except Trouble as error:
            trouble = str(error)
            self._stage.ask_what_they_do()
        row = self._row
        return Outcome(
            row.step, row.fault, row.life.value, round(time.monotonic() - began, 1),
            round(max((one['waited'] for one in self._plays), default=0.0), 1),
            sum(one['errors'] for one in self._plays), sum(one['wrong'] for one in self._plays),
            tuple(left), sum(one['pauses'] for one in self._plays), self.stock,
            tuple(self._stage.unreached), trouble)

    def _live(self) -> None:
        image_id = self._register()
        if self._is_deleted(image_id):
            return
        server_id = self._boot(image_id)
        if server_id is None:
            return
        if self._row.life is Life.COLD:
            self._learn(image_id, server_id)
        if self._row.life is Life.EXPAND:
            self._expand(image_id, server_id)
        if self._row.life is Life.MOVE:
            self._move(image_id, server_id)
        self._settle(image_id, server_id)
        if self._row.life is Life.EVICT:
            other = self._register()
            server_id = self._boot(other)
            if server_id is not None:
                self._settle(other, server_id)

    def _is_deleted(self, image_id: str) -> bool:
        return not (self._stage.root / 'glance' / f'{image_id}.json').exists()

    # Steps of a life.

    def _register(self) -> str:
        stage = self._stage
        image_id = stage.image.register(stage.root / 'glance', self._row.life)
        self._images.append(image_id)
        stage.ceph.register(image_id, stage.image.raw)
        # Glance's message comes again to a service that ended while it looked.
        stage.call(STORAGE, 'look', image_id)

        def is_there() -> bool:
            standing, reason, has_base, has_cache = stage.call(STORAGE, 'state', image_id)
            if self._is_deleted(image_id):
                return True
            if standing in ('failed', 'skipped'):
                # For good, as nothing is wrong with the image.
                raise Trouble(f'the image is {standing}: {reason}')
            return has_base and standing == 'done' and (
                has_cache or self._row.life is Life.COLD)

        stage.until(is_there, 'the image\'s cache image')
        return image_id

    def _boot(self, image_id: str) -> str | None:
        """Boot a server; None if it goes the stock way for good, as it may."""
        stage, server_id = self._stage, f'server-{uuid.uuid4()}'
        self._servers.append(server_id)
        directory = stage.root / 'host' / 'instances' / server_id
        if self._row.life is Life.EXCHANGE:
            # The storage service may have to look at its file first, as after its start.
            stage.until(lambda: self._is_deleted(image_id)
                        or stage.call(STORAGE, 'have_asked', image_id, *exchanges.NOBODY),
                        'what hosts exchange')
        deadline = time.monotonic() + _ASK_SECONDS + self._row.grace
        while not stage.call(HOST, 'make_disk', server_id, image_id):
            self.stock += 1
            if self._is_deleted(image_id):
                # Nova would say so.
                return None
            if time.monotonic() > deadline:
                if self._row.has(Act.CORRUPT):
                    return None
                raise Trouble('servers go the stock way for good')
            for _tick in range(50):
                stage.tick()
        stage.call(READER, 'know', str(stage.image.raw))
        self._play(image_id, server_id, lambda: stage.strike(READING))
        (directory / 'console').write_text(f'{images.MARKER}\n')
        return server_id

    def _play(self, image_id: str, server_id: str,
              meanwhile: Callable[[], None] | None = None) -> None:
        """Have the guest read; it is started again where its QEMU ended.

        :param meanwhile: done once, while it reads.
        """
        stage = self._stage
        disk = str(stage.root / 'host' / 'instances' / server_id / 'disk')
        for _attempt in range(3):
            stage.call(HOST, 'keep', server_id, image_id)
            stage.call(READER, 'start', disk)
            found = stage.call_and(READER, 'play', images.boot(self._row.life), _THINK,
                                   self._row.grace, after=_STRIKE_SECONDS, do=meanwhile)
            self._plays.append(found)
            stage.call(READER, 'stop')
            if not found['crashed']:
                return
            meanwhile = None
        raise Trouble('the server\'s QEMU ended three times')

    def _move(self, image_id: str, server_id: str) -> None:
        """Have the storage node get another address; the guest waits until its host knows it."""
        stage = self._stage
        stage.move_node()
        # It is up again.
        stage.call(STORAGE, 'look', image_id)
        self._play(image_id, server_id, lambda: stage.call(HOST, 'reach', image_id))

    def _expand(self, image_id: str, server_id: str) -> None:
        """Have the host expand the cache image that came compressed; the server reads it then."""
        stage = self._stage
        stage.until(lambda: self._is_deleted(image_id)
                    or stage.call(HOST, 'has_expanded', image_id), 'an expanded cache image')
        self._play(image_id, server_id)

    def _learn(self, image_id: str, server_id: str) -> None:
        """Have the image get its cache image by what servers read.

        A host that ends forgets what it watches: the next boot is recorded then.
        """
        stage = self._stage
        for _server in range(_SERVERS):
            try:
                stage.until(lambda: self._is_deleted(image_id)
                            or stage.call(STORAGE, 'state', image_id)[3],
                            'a cache image of what was read', _LEARN_SECONDS)
                return
            except Trouble:
                self._boot(image_id)
        raise Trouble('no boot was learned from')

    def _settle(self, image_id: str, server_id: str) -> None:
        stage = self._stage
        for one in self._servers:
            stage.call(HOST, 'server_goes', one)
            (stage.root / 'host' / 'instances' / one / 'stopped').touch()
        stage.until(lambda: stage.call(HOST, 'is_settled', server_id), 'settling')
        self._play(image_id, server_id)

    def _end(self) -> list[str]:
        """Delete servers and images; return what is left of them after a while."""
        stage, left = self._stage, ['?']
        instances = stage.root / 'host' / 'instances'
        for server_id in self._servers:
            stage.call(HOST, 'server_goes', server_id)
            shutil.rmtree(instances / server_id)
        for image_id in self._images:
            # As Nova's own image cache manager does.
            for path in (instances / '_base').glob(f'{naming.cache_file_name(image_id)}*'):
                if not path.name.partition('.')[2].startswith('bootcache.'):
                    path.unlink()
            (stage.root / 'glance' / f'{image_id}.json').unlink(missing_ok=True)
            stage.call(STORAGE, 'look', image_id)

        def is_clean() -> bool:
            nonlocal left
            left = [*stage.call(STORAGE, 'left'), *stage.call(HOST, 'left')]
            if not left:
                # To look for processes, and to ask Ceph, costs more than all else.
                left = stage.strangers() or stage.ceph.left()
            return not left

        try:
            stage.until(is_clean, 'the end of all', _LEFT_SECONDS)
        except Trouble as error:
            if left == ['?']:
                raise error
        return left

    def file(self, step: str) -> Path:
        """Return the file that a step is about."""
        root, image_id = self._stage.root, self._images[-1]
        name = naming.cache_file_name(image_id)
        store, host = root / 'storage/state/images' / image_id, root / 'host/instances'
        found = {'build: named': lambda: next(store.glob('cache-*.qcow2')),
                 'build: noted': lambda: next(store.glob('cache-*.qcow2')),
                 'fetch: copied': lambda: host / '_bootcache' / f'{name}.partial',
                 'arrive: come': lambda: host / '_bootcache' / f'{image_id}.partial',
                 'arrive: exchanged': lambda: host / '_bootcache' / f'{image_id}.exchanged.partial',
                 'expand: filled': lambda: host / '_bootcache' / f'{name}.expanded.partial',
                 'settle: piece': lambda: host / '_base' / f'{name}.bootcache'}
        return found[step]()


def options_of(life: Life) -> dict[str, Any]:
    """Return what a life needs of the product's configuration."""
    if life is Life.COLD:
        return {'profile_boots': False}
    if life is Life.EXPAND:
        # At once: servers in the harness are for nothing else by then.
        return {'compression': 'zstd', 'settle_delay': 0}
    if life in (Life.ARRIVE, Life.EXCHANGE):
        # A smaller one would be fetched.
        return {'compression': 'none'}
    # One cache image has room, beside nothing.
    return {'compute_disk_quota': '4MiB', 'store_quota': '1MiB', 'compression': 'none'} \
        if life is Life.EVICT else {}


def run(row: Row, root: Path, network: netns.Network, image: Image) -> Outcome:
    """Run a row on a stage of its own; again where it went another way than by a step.

    What upkeep does meanwhile, at the harness's pace, is a matter of time.
    """
    began = time.monotonic()
    for _attempt in range(_ATTEMPTS):
        outcome = _run(row, root, network, image)
        if not outcome.unreached or outcome.is_wrong:
            break
        row = dataclasses.replace(row, strikes=tuple(
            strike for strike in row.strikes if strike.step in outcome.unreached))
    return dataclasses.replace(outcome, seconds=round(time.monotonic() - began, 1))


def _run(row: Row, root: Path, network: netns.Network, image: Image) -> Outcome:
    lives: list[LifeOfImage] = []
    stage = Stage(root, network, image, options_of(row.life), row,
                  lambda step: lives[0].file(step))
    try:
        stage.start()
        lives.append(LifeOfImage(stage, row))
        return lives[0].run()
    except (CephError, Trouble) as error:
        stage.ask_what_they_do()
        return Outcome(row.step, row.fault, row.life.value, 0.0, trouble=str(error))
    finally:
        stage.close()
