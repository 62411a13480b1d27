"""Images are registered, booted from and deleted again and again: does anything grow, or stay?

Three work beside each other. Each registers an image, boots two servers of it at a time and one of
an image that was there before, lets that one settle now and then, and deletes its oldest image once
it has more than four. Every so many rounds they pause, and what all hold is noted; the tiers are
measured all the time.
"""

import concurrent.futures
import contextlib
import dataclasses
import random
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.faults import images, soakstage, stage
from bench.faults.images import Image
from bench.faults.kinds import HOST, STORAGE
from bench.faults.plan import Life
from bench.faults.rabbit import Rabbit
from bench.faults.soakreport import Sample, Soaked
from bench.faults.soakstage import GLANCE, SoakStage
from bench.faults.stage import PATIENCE, Trouble
from bench.replay import netns
from bootcache import naming

_LANES = 3
_KEPT = 4
_CONTENTS = 4
# Each so many rounds an image is a large one, which servers read from as it arrives.
_LARGE = 4
_SETTLES = 4
_SAMPLES = 25
_THINK = 0.001
_ATTEMPTS = 5
_LOOK_SECONDS = 0.1
_TIERS_SECONDS = 0.5


@dataclasses.dataclass
class _Registered:
    """An image in Glance."""

    image_id: str
    content: Image
    life: Life


class Lane:
    """One of those who work beside each other, with images of its own.

    :ivar boots: servers that came up on a cache image.
    :ivar settled: of these, that settled.
    :ivar stock: servers that were to go the stock way.
    :ivar wrong: bytes that a guest read, and that were not the image's.
    :ivar errors: requests of guests that came to no end.
    :ivar waited: seconds for which a guest was paused at its longest wait.
    """

    def __init__(self, stage_: SoakStage, number: int):
        self._stage, self._guest = stage_, stage_.guests[number]
        self._random = random.Random(number)
        self._images: list[_Registered] = []
        self.boots = self.settled = self.stock = self.wrong = self.errors = 0
        self.waited = 0.0

    def round(self, number: int) -> None:
        """Do one round.

        :raises Trouble: if something does not come to its end.
        """
        image = self._register(number)
        servers = [f'server-{uuid.uuid4()}' for _server in range(2)]
        with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(self._make, servers, [image] * len(servers)))
        for server in servers:
            self._boot(server, image)
        older = self._random.choice(self._images)
        if older is not image:
            server = f'server-{uuid.uuid4()}'
            servers.append(server)
            self._make(server, older)
            self._boot(server, older)
            if number % _SETTLES == 0:
                self._settle(server, older)
        for server in servers:
            self._stage.at_once(HOST, 'delete_server', server)
        for one in (image, older):
            self._remove_base(one)
        if len(self._images) > _KEPT:
            self._delete(self._images[0])

    def end(self) -> None:
        """Delete all images."""
        while self._images:
            self._delete(self._images[0])

    def _register(self, number: int) -> _Registered:
        life = Life.FETCH if number % _LARGE else Life.ARRIVE
        content = self._stage.images[number % len(self._stage.images)]
        image = _Registered(content.register(self._stage.root / 'glance', life), content, life)
        self._stage.ask(GLANCE, 'tell', 'activate', image.image_id)

        def is_there() -> bool:
            standing, reason, has_base, _cache = self._stage.ask(STORAGE, 'state', image.image_id)
            if standing in ('failed', 'skipped'):
                raise Trouble(f'image {image.image_id} is {standing}: {reason}')
            return bool(has_base) and standing == 'done'

        _until(is_there, f'the cache image of {image.image_id}')
        self._images.append(image)
        return image

    def _make(self, server_id: str, image: _Registered) -> None:
        for _attempt in range(_ATTEMPTS):
            if self._stage.at_once(HOST, 'make_disk', server_id, image.image_id):
                return
            # As Nova would: the user gets a server, and bootcache is counted as no help.
            self.stock += 1
        raise Trouble(f'servers of {image.image_id} go the stock way for good')

    def _boot(self, server_id: str, image: _Registered) -> None:
        self._stage.ask(self._guest, 'know', str(image.content.raw))
        self._play(server_id, image)
        self._console(server_id).write_text(f'{images.MARKER}\n')
        self.boots += 1

    def _console(self, server_id: str) -> Path:
        return self._stage.root / 'host/instances' / server_id / 'console'

    def _play(self, server_id: str, image: _Registered) -> None:
        self._stage.at_once(HOST, 'keep', server_id, image.image_id)
        self._stage.ask(self._guest, 'start',
                        str(self._stage.root / 'host/instances' / server_id / 'disk'))
        played = self._stage.ask(self._guest, 'play', images.boot(image.life), _THINK)
        self._stage.ask(self._guest, 'stop')
        if played['crashed']:
            raise Trouble(f'the QEMU of {server_id} has ended')
        self.wrong += played['wrong']
        self.errors += played['errors']
        self.waited = max(self.waited, played['waited'])

    def _settle(self, server_id: str, image: _Registered) -> None:
        self._stage.at_once(HOST, 'server_goes', server_id)
        self._console(server_id).with_name('stopped').touch()

        def is_settled() -> bool:
            # Its disk is exchanged just now, maybe.
            with contextlib.suppress(Trouble):
                return bool(self._stage.at_once(HOST, 'is_settled', server_id))
            return False

        _until(is_settled, f'the settling of {server_id}')
        self._play(server_id, image)
        self.settled += 1

    def _remove_base(self, image: _Registered) -> None:
        """Remove the full base as Nova's image cache manager does: no server is on it."""
        bases = self._stage.root / 'host/instances/_base'
        for path in bases.glob(f'{naming.cache_file_name(image.image_id)}*'):
            if not path.name.partition('.')[2].startswith('bootcache.'):
                path.unlink(missing_ok=True)

    def _delete(self, image: _Registered) -> None:
        glance = self._stage.root / 'glance'
        # So that it stays deleted if just now a property of it is changed.
        (glance / f'{image.image_id}.deleted').touch()
        for name in (f'{image.image_id}.json', f'{image.image_id}.reads', image.image_id):
            (glance / name).unlink(missing_ok=True)
        self._images.remove(image)
        self._stage.ask(GLANCE, 'tell', 'delete', image.image_id)


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Trouble(f'{what} did not come about within {PATIENCE:.0f} s')
        time.sleep(_LOOK_SECONDS)


class Soak:
    """One soak.

    :param rounds: how many images are registered in all.
    """

    def __init__(self, stage_: SoakStage, rabbit: Rabbit, rounds: int):
        self._stage, self._rabbit, self._rounds = stage_, rabbit, rounds
        self._lanes = [Lane(stage_, number) for number in range(_LANES)]
        self._stopped = threading.Event()
        self.found = Soaked(soakstage.QUOTAS)

    def run(self) -> Soaked:
        """Do all rounds, delete all, and look what is left."""
        began = time.monotonic()
        found = self.found
        try:
            with self._watched_tiers():
                found.begin = self._sample(0)
                found.samples = list(self._work())
                for lane in self._lanes:
                    lane.end()
                found.left = self._left()
            found.end = self._sample(self._rounds)
        except Trouble as error:
            found.trouble = str(error)
            self._stage.ask_what_they_do()
        found.rounds = sum(sample.rounds for sample in found.samples[-1:])
        found.seconds = time.monotonic() - began
        for name in ('boots', 'settled', 'stock', 'wrong', 'errors'):
            setattr(found, name, sum(getattr(lane, name) for lane in self._lanes))
        found.waited = max(lane.waited for lane in self._lanes)
        return found

    def _work(self) -> Iterator[Sample]:
        every = max(_LANES, self._rounds // _SAMPLES)
        with concurrent.futures.ThreadPoolExecutor(_LANES) as pool:
            for first in range(0, self._rounds, every):
                done = min(first + every, self._rounds)
                try:
                    list(pool.map(self._work_through, range(_LANES), [range(first, done)] * _LANES))
                except BaseException:
                    # The others end their round.
                    self._stopped.set()
                    raise
                self._stage.until(self._stage.is_idle, 'a pause', PATIENCE)
                sample = self._sample(done)
                print(sample.line(), flush=True)
                yield sample

    def _work_through(self, lane: int, numbers: range) -> None:
        for number in numbers:
            if number % _LANES == lane and not self._stopped.is_set():
                self._lanes[lane].round(number)

    def _sample(self, rounds: int) -> Sample:
        return Sample(rounds, self._stage.held(), self._rabbit.queues())

    @contextlib.contextmanager
    def _watched_tiers(self) -> Iterator[None]:
        stopped = threading.Event()

        def watch() -> None:
            while not stopped.wait(_TIERS_SECONDS):
                self.found.note_tiers(self._stage.tiers())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _left(self) -> list[str]:
        left: list[str] = ['?']

        def is_clean() -> bool:
            nonlocal left
            left = [*self._stage.ask(STORAGE, 'left'), *self._stage.ask(HOST, 'left'),
                    *self._stage.strangers()]
            return not left

        with contextlib.suppress(Trouble):
            self._stage.until(is_clean, 'the end of all', PATIENCE)
        return left


def _refusals(logs: Path) -> dict[str, int]:
    """Return what tiers had no room for, as their processes' logs tell."""
    host, storage = ((logs / f'{name}.log').read_text() for name in ('host', 'storage'))
    return {'compute disk': host.count('compute disk has no room'),
            'compute memory': host.count('compute memory has no room'),
            'storage memory': storage.count('no room in memory'),
            'storage disk': storage.count('the storage disk tier has no room')}


def run(rounds: int, report: Path) -> Soaked:
    """Do a soak; logs of one that went wrong are kept beside the report.

    :param rounds: how many images are registered.
    """
    root = Path(tempfile.mkdtemp(prefix='bcf', dir='/tmp'))
    try:
        with netns.network(1, 0) as network, \
                stage.file_systems(root, soakstage.FILE_SYSTEMS):
            contents = []
            for number in range(_CONTENTS):
                (root / f'content{number}').mkdir()
                contents.append(Image(root / f'content{number}', number))
            rabbit = Rabbit(network, root / 'rabbit')
            soak_stage = SoakStage(root, network, contents, rabbit.url, _LANES)
            try:
                rabbit.start()
                soak_stage.start()
                found = Soak(soak_stage, rabbit, rounds).run()
            finally:
                soak_stage.close()
                rabbit.stop()
        shutil.rmtree(report / 'soak-logs', ignore_errors=True)
        found.refusals = _refusals(root / 'log')
        if not found.holds():
            report.mkdir(parents=True, exist_ok=True)
            shutil.copytree(root / 'log', report / 'soak-logs')
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)
