"""Lanes: runs beside each other, each lane with a network and file systems of its own."""

import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from bench.faults import lives, stage
from bench.faults.images import Image
from bench.faults.plan import Row
from bench.faults.report import Outcome
from bench.replay import netns

# All that is large is imported before, and shared with the lanes.
_CONTEXT = multiprocessing.get_context('fork')
_SECONDS = 60


def run(rows: Sequence[Row], beside: int, report: Path) -> Iterator[Outcome]:
    """Run rows, and yield what comes of each as it ends.

    :param beside: how many lanes there are.
    :param report: directory in which the logs of runs are kept that went wrong.
    """
    processes, pipes = [], []
    for lane in range(min(beside, len(rows))):
        pipe, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_lane, args=(
            list(enumerate(rows))[lane::beside], theirs, report))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(pipe)
    try:
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
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


def _lane(rows: Sequence[tuple[int, Row]], pipe: Connection, report: Path) -> None:
    def end(_number: int, _frame: object) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    netns.die_with_parent()
    root = Path(tempfile.mkdtemp(prefix='bcf', dir='/tmp'))
    try:
        with netns.network(1, 0) as network, stage.file_systems(root):
            content = root / 'content'
            content.mkdir()
            image = Image(content)
            for number, row in rows:
                (root / 'log').mkdir(exist_ok=True)
                outcome = lives.run(row, root, network, image)
                _keep_logs(root / 'log', report, number, outcome)
                pipe.send(outcome)
    finally:
        # What was made goes, whoever is impatient.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        shutil.rmtree(root, ignore_errors=True)
        pipe.close()


def _keep_logs(logs: Path, report: Path, number: int, outcome: Outcome) -> None:
    """Move a run's logs to the report, if it went wrong; else remove them."""
    if outcome.ok:
        shutil.rmtree(logs)
        return
    name = f'{number}-{outcome.step}-{outcome.fault}'.replace(': ', '-').replace(' ', '-')
    shutil.rmtree(report / name, ignore_errors=True)
    report.mkdir(parents=True, exist_ok=True)
    shutil.move(logs, report / name)
