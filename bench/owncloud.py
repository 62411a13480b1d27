"""A real cloud of a benchmark's own: in a network namespace, as a cloud's ports are fixed.

Whoever measures calls ``lines`` with the name of a module; that module's program, in the
namespace, calls ``main``. What is between them are lines of JSON.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.cloud.bootcache import BootcacheCloud
from tools.cloud.processes import kill_all
from tools.cloud.services import guest_processes

TOP = Path(__file__).resolve().parents[1]
_HOME = re.compile(r'bcr-(\d+)-cloud')
# Of the last cloud that failed.
_LOGS = Path('/tmp/bcr-cloud-log')


def lines(module: str, *arguments: object) -> Iterator[dict[str, Any]]:
    """Run a module's program with a cloud of its own; its lines as they come.

    :param module: which calls ``main``.
    :raises RuntimeError: if it fails; what it said is on standard error.
    """
    remove_stale()
    home = Path(f'/tmp/bcr-{os.getpid()}-cloud')
    home.mkdir()
    process = subprocess.Popen(
        ['unshare', '--net', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh', sys.executable,
         '-W', 'ignore', '-m', module, *map(str, arguments)],
        cwd=TOP, env={**os.environ, 'BOOTCACHE_HOME': str(home)}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            yield json.loads(line)
        if process.wait():
            raise RuntimeError(f'{module}: its cloud failed: status {process.returncode}')
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        process.stdout.close()
        wipe(home)


def main(run: Callable[[BootcacheCloud, Sequence[str]], Iterable[dict[str, Any]]]) -> None:
    """Tell each line that comes of a cloud as JSON, wipe the cloud, and end.

    :param run: gets the cloud, which is not up yet, and the arguments.
    """
    # Also when whoever asked for it is killed.
    ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGTERM))
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    home = Path(os.environ['BOOTCACHE_HOME'])
    cloud = BootcacheCloud(home / 'cloud')
    try:
        for line in run(cloud, sys.argv[1:]):
            print(json.dumps(line), flush=True)
    except BaseException:
        # For whoever has to look why.
        shutil.rmtree(_LOGS, ignore_errors=True)
        if cloud.layout.log.is_dir():
            shutil.copytree(cloud.layout.log, _LOGS)
            print(f'the cloud\'s logs are in {_LOGS}', file=sys.stderr, flush=True)
        raise
    finally:
        # What wipes it is not to be interrupted.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wipe(home)
    # Messaging's threads would wait for a broker that is gone.
    os._exit(0)


def wipe(home: Path) -> None:
    """End a cloud at once, and remove its files: nobody needs any of it any more."""
    cloud = BootcacheCloud(home / 'cloud')
    kill_all([*guest_processes(cloud.home), *cloud.daemons.leftovers()], terminate=False)
    cloud.down(wipe=True)
    shutil.rmtree(home, ignore_errors=True)


def remove_stale(place: Path = Path('/tmp')) -> None:
    """End the clouds of runs that were killed."""
    for path in place.glob('bcr-*-cloud'):
        match = _HOME.fullmatch(path.name)
        if match is not None and not Path('/proc', match.group(1)).exists():
            wipe(path)
