"""Earlier versions of bootcache: their trees, and processes of a stage that run them."""

import contextlib
import io
import itertools
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
from bootcache import rpcapi

TOP = Path(__file__).resolve().parents[2]
_PACKAGES = ('bootcache', 'glance_bootcache', 'nova_bootcache')
_API, _MANIFEST = 'bootcache/rpcapi.py', 'bootcache/manifest.py'
_VERSION = re.compile(r"^VERSION = '([\d.]+)'", re.MULTILINE)
_FORMAT = re.compile(r'^VERSION = (\d+)$', re.MULTILINE)


class NoSuchVersion(Exception):
    """The commit cannot be had."""


def _git(*arguments: str) -> bytes:
    done = subprocess.run(['git', '-C', str(TOP), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise NoSuchVersion(f'git {" ".join(arguments)}: {done.stderr.decode().strip()}')
    return done.stdout


def version_at(commit: str, text_at: Callable[[str], str]) -> str:
    """Return the RPC API's version at a commit; empty if it has none yet.

    :param text_at: gives the text of rpcapi.py at a commit.
    """
    match = _VERSION.search(text_at(commit))
    return match.group(1) if match else ''


def befores(commits: list[str], text_at: Callable[[str], str], parent: Callable[[str], str],
            count: int) -> list[str]:
    """Return the last commits before the last changes of the RPC API's version.

    :param commits: those that changed rpcapi.py, the last one first.
    :param text_at: gives its text at a commit.
    :param parent: gives the commit before one.
    :param count: how many at most.
    """
    found: list[str] = []
    for later, earlier in itertools.pairwise(commits):
        if len(found) < count and version_at(later, text_at) != version_at(earlier, text_at):
            found.append(parent(later))
    return found


def manifests_of(text: str) -> int:
    """Return the version of manifests that a manifest.py writes, and the highest that it reads."""
    match = _FORMAT.search(text)
    return int(match.group(1)) if match else 0


def can_go_back(tree: Path) -> bool:
    """Tell whether a tree's version reads what this tree's storage service writes."""
    there, here = (manifests_of((top / _MANIFEST).read_text()) for top in (tree, TOP))
    return there >= here


def defaults() -> list[str]:
    """Return the last commit before the last minor version of the RPC API, and before that.

    :raises NoSuchVersion: if this is no repository with its history.
    """
    commits = _git('log', '--format=%H', '--', _API).decode().split()
    return befores(commits, lambda commit: _git('show', f'{commit}:{_API}').decode(),
                   lambda commit: _git('rev-parse', f'{commit}^').decode().strip(), 2)


def extract(commit: str, directory: Path) -> Path:
    """Put a commit's packages into a directory, beside this tree's harness, and return it.

    :raises NoSuchVersion: if there is no such commit.
    """
    directory.mkdir(parents=True)
    archive = _git('archive', commit, *_PACKAGES)
    subprocess.run(['tar', '-x', '-C', str(directory)], input=archive, check=True)
    (directory / 'bench').symlink_to(TOP / 'bench')
    steps = directory / 'bootcache/steps.py'
    if not steps.exists():
        # The harness asks for it, and the code of then for nothing of it.
        steps.write_bytes((TOP / 'bootcache/steps.py').read_bytes())
    return directory


# In the process.

class VersionedHost(HostSide):
    """nova-compute's part of some version."""

    def version(self) -> str:
        """Return the version of the RPC API that it has."""
        return rpcapi.VERSION

    def end(self) -> None:
        """Stop as nova-compute does when it is restarted; the gateway goes on."""
        self._settler.stop()
        self._upkeep.stop()
        self._host.stop()


class VersionedStorage(StorageSide):
    """The storage service of some version."""

    def version(self) -> str:
        """Return the version of the RPC API that it has."""
        return rpcapi.VERSION

    def state(self, image_id: str) -> tuple[str, str, bool, bool]:
        """As StorageSide.state; manifests of version 1 have it in one part."""
        manifest: Any = self._store.load(image_id)
        if manifest is None or hasattr(manifest, 'made'):
            return super().state(image_id)
        state = manifest.state.value
        return ('done' if state in ('ready', 'served') else state, manifest.reason,
                bool(manifest.base_path), manifest.cache_image is not None)

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
