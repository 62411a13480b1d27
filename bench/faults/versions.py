"""Earlier versions of bootcache: their trees, and processes of a stage that run them."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.faults.gate import Gate, Worker
from bench.faults.hostside import HostSide
from bench.faults.kinds import HOST, STORAGE
from bench.faults.storageside import StorageSide
from bench.replay import children
from bootcache.rpc import messages

TOP = Path(__file__).resolve().parents[2]
_PACKAGES = ('bootcache', 'glance_bootcache', 'nova_bootcache')
_RELEASE = re.compile(r'v?\d+(\.\d+)+')


class NoSuchVersion(Exception):
    """The commit cannot be had."""


def _git(*arguments: str) -> bytes:
    done = subprocess.run(['git', '-C', str(TOP), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise NoSuchVersion(f'git {" ".join(arguments)}: {done.stderr.decode().strip()}')
    return done.stdout


def defaults() -> list[str]:
    """Return the commits of the last two releases, the last one first.

    :raises NoSuchVersion: if this is no repository, or nothing was released yet.
    """
    tags = _git('tag', '--list', '--merged', 'HEAD', '--sort=-version:refname').decode().split()
    releases = [tag for tag in tags if _RELEASE.fullmatch(tag)][:2]
    if not releases:
        raise NoSuchVersion('there is no tag of a release')
    return releases


def extract(commit: str, directory: Path) -> Path:
    """Put a commit's packages into a directory, beside this tree's harness, and return it.

    :raises NoSuchVersion: if there is no such commit.
    """
    directory.mkdir(parents=True)
    archive = _git('archive', commit, *_PACKAGES)
    subprocess.run(['tar', '-x', '-C', str(directory)], input=archive, check=True)
    (directory / 'bench').symlink_to(TOP / 'bench')
    return directory


# In the process.

class VersionedHost(HostSide):
    """nova-compute's part of some version."""

    def version(self) -> str:
        """Return the version of the RPC API that it has."""
        return messages.VERSION

    def end(self) -> None:
        """Stop as nova-compute does when it is restarted; the gateway goes on."""
        self._settler.stop()
        self._upkeep.stop()
        self._host.stop()


class VersionedStorage(StorageSide):
    """The storage service of some version."""

    def version(self) -> str:
        """Return the version of the RPC API that it has."""
        return messages.VERSION

    def end(self) -> None:
        """Stop as the unit does when it is restarted; the exporter goes on."""
        self._service.stop()


_SIDES: Mapping[str, Callable[..., Any]] = {HOST: VersionedHost, STORAGE: VersionedStorage}


def main() -> None:
    """Serve the calls of a stage: see :class:`VersionedWorker`."""
    fd, namespace, side, directory, options = sys.argv[1:]
    children._serve(namespace, lambda: _SIDES[side](directory, json.loads(options)),
                    Connection(int(fd)), io.BytesIO())


# In the harness.

class _Process:
    """A process, as multiprocessing has them."""

    def __init__(self, popen: subprocess.Popen[bytes]):
        self._popen = popen
        self.pid = popen.pid

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return self._popen.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class VersionedWorker(Worker):
    """A process of a stage that runs a version of its own.

    :param namespace: of the network.
    :param tree: directory of the version, as of :func:`extract`.
    :param side: HOST or STORAGE.
    :param directory: of the stage.
    :param options: more of the product's.
    """

    def __init__(self, namespace: str, tree: Path, side: str, directory: str,
                 options: dict[str, Any]):
        self.name, self.gate, self.has_ended = namespace, Gate(), False
        self._pipe, theirs = Pipe()
        popen = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'bench.faults.versions', str(theirs.fileno()),
             namespace, side, directory, json.dumps(options)],
            cwd=tree, env={**os.environ, 'PYTHONPATH': str(tree)}, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL)
        theirs.close()
        self._process = _Process(popen)  # type: ignore[assignment]


if __name__ == '__main__':
    main()
