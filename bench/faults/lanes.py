"""Lanes: runs beside each other, each lane with a network and file systems of its own."""

import multiprocessing
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from bench.faults import lives, stage
from bench.faults.images import Image
from bench.faults.plan import Row
from bench.faults.report import Outcome
from bench.replay import netns

# All that is large is imported before, and shared with the lanes.
_CONTEXT = multiprocessing.get_context('fork')
_SECONDS = 60
# Runs one on a lane's network and directory, with an image.
Play = Callable[[Any, Path, netns.Network, Image], Iterator[Outcome]]


def _life(row: Row, root: Path, network: netns.Network, image: Image) -> Iterator[Outcome]:
    yield lives.run(row, root, network, image)


def run(rows: Sequence[tuple[int, Any]], beside: int, report: Path, seconds: float | None = None,
        play: Play = _life, sizes: Mapping[str, int] = stage.FILE_SYSTEMS) -> Iterator[Outcome]:
    """Run rows, and yield what comes of each as it ends.

    :param rows: with their numbers, by which their logs are known.
    :param beside: how many lanes there are.
    :param report: directory in which the logs of runs are kept that went wrong.
    :param seconds: after which no more are begun; None to run all.
    :param play: runs one: a ``Row`` as a life.
    :param sizes: of a lane's file systems.
    """
    with tempfile.TemporaryDirectory(prefix='bcf', dir='/tmp') as content:
        until = None if seconds is None else time.monotonic() + seconds
        yield from _run(rows, beside, until, report, Image(Path(content)), play, sizes)


def _run(rows: Sequence[tuple[int, Any]], beside: int, until: float | None, report: Path,
         image: Image, play: Play, sizes: Mapping[str, int]) -> Iterator[Outcome]:
    turn = _CONTEXT.Value('i', 0)
    processes, pipes = [], []
    for _lane_number in range(min(beside, len(rows))):
        pipe, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_lane, args=(
            _turns(rows, turn, until), image, theirs, report, play, sizes))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(pipe)
    try:
        while pipes:
            for pipe in cast(list[Connection], wait(pipes)):
                try:
                    yield pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
    finally:
        for process in processes if pipes else ():
            process.terminate()
        for process in processes:
            # It removes what it has made.
            process.join(_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def _turns(rows: Sequence[tuple[int, Any]], turn: Any,
           until: float | None) -> Iterator[tuple[int, Any]]:
    """Yield rows that no other lane has taken."""
    while until is None or time.monotonic() < until:
        with turn.get_lock():
            place, turn.value = turn.value, turn.value + 1
        if place >= len(rows):
            return
        yield rows[place]


def _lane(rows: Iterator[tuple[int, Any]], image: Image, pipe: Connection, report: Path,
          play: Play, sizes: Mapping[str, int]) -> None:
    def end(_number: int, _frame: object) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    netns.die_with_parent()
    root = Path(tempfile.mkdtemp(prefix='bcf', dir='/tmp'))
    try:
        with netns.network(1, 0) as network, stage.file_systems(root, sizes):
            for number, row in rows:
                (root / 'log').mkdir(exist_ok=True)
                outcomes = []
                for outcome in play(row, root, network, image):
                    outcomes.append(outcome)
                    pipe.send(outcome)
                _keep_logs(root / 'log', report, number, outcomes)
    finally:
        # What was made goes, whoever is impatient.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        shutil.rmtree(root, ignore_errors=True)
        pipe.close()


def _keep_logs(logs: Path, report: Path, number: int, outcomes: Sequence[Outcome]) -> None:
    """Move a run's logs to the report, if it went wrong; else remove them."""
    outcome = next((one for one in outcomes if not one.ok), None)
    if outcome is None:
        shutil.rmtree(logs)
        return
    name = f'{number}-{outcome.step}-{outcome.fault}'.replace(': ', '-').replace(' ', '-')
    shutil.rmtree(report / name, ignore_errors=True)
    report.mkdir(parents=True, exist_ok=True)
    shutil.move(logs, report / name)
