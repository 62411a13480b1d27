"""The Ceph of a stage: a real one, on the storage node, with Glance's images and the host's key."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

from bench.faults.kinds import HOST, STORAGE
from bench.replay import netns
from tools.ceph.cluster import Ceph, CephError

_USERS = {STORAGE: ('bootcache', 'storage'), HOST: ('host-1', 'host-1')}
_READ_ONLY = 'profile rbd-read-only pool=images'
AWAY, FROZEN, OSD_KILLED, KEY_TAKEN = 'away', 'frozen', 'osd killed', 'key taken'


class CephSide:
    """A Ceph of one OSD, if there is any.

    :param root: of the stage.
    :param network: it is where the storage node is, with which its link goes down.
    :param is_wanted: there is none otherwise.
    """

    def __init__(self, root: Path, network: netns.Network, is_wanted: bool):
        self._is_wanted = is_wanted
        self._namespace = network.storage
        place = network.storage, netns.STORAGE_ADDRESS
        self._ceph = _Ceph(root / 'ceph', place)

    def options(self, name: str) -> dict[str, Any]:
        """Return the options of a machine's service."""
        if not self._is_wanted:
            return {}
        conf = str(self._ceph.conf)
        if name == STORAGE:
            return {'rbd_store_pool': 'images', 'rbd_store_ceph_conf': conf}
        user, namespace = _USERS[HOST]
        return {'base_access': 'rbd', 'base_rbd_ceph_conf': conf, 'base_rbd_user': user,
                'base_rbd_namespace': namespace}

    def start(self) -> None:
        """Bring it up, with the keys of the page about Ceph.

        :raises CephError: if it does not come up.
        """
        if not self._is_wanted:
            return
        self._ceph.up()
        for pool in ('images', 'bootcache'):
            self._ceph.make_pool(pool)
        for user, namespace in _USERS.values():
            self._ceph.run('rbd', 'namespace', 'create', f'bootcache/{namespace}')
            self._ceph.make_user(user, _caps(namespace))

    def register(self, image_id: str, raw: Path) -> None:
        """Put an image where Glance's RBD store would have put it."""
        if self._is_wanted:
            self._ceph.run('rbd', 'import', '--no-progress', str(raw), f'images/{image_id}')
            self._ceph.run('rbd', 'snap', 'create', '--no-progress', f'images/{image_id}@snap')

    def spoil(self, how: str) -> None:
        """Do what passes when it is mended.

        :param how: AWAY, FROZEN, OSD_KILLED or KEY_TAKEN.
        """
        user, _namespace = _USERS[HOST]
        if how == KEY_TAKEN:
            self._ceph.run('ceph', 'auth', 'caps', f'client.{user}', 'mon', 'profile rbd', 'osd',
                           'profile rbd pool=nowhere')
            return
        for name, pid in self._ceph.pids().items():
            if how != OSD_KILLED or name.startswith('osd'):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP if how == FROZEN else signal.SIGKILL)

    def mend(self) -> None:
        """Have it be as it was, unless it has been ended."""
        if not self._is_wanted:
            return
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._ceph.up()
        user, namespace = _USERS[HOST]
        self._ceph.make_user(user, _caps(namespace))

    def pids(self) -> set[int]:
        """Return its processes."""
        return set(self._ceph.pids().values()) if self._is_wanted else set()

    def left(self) -> list[str]:
        """Return the clones that there are."""
        if not self._is_wanted:
            return []
        found = []
        for _user, namespace in _USERS.values():
            try:
                names = json.loads(self._ceph.run('rbd', 'ls', '--format', 'json',
                                                  f'bootcache/{namespace}'))
            except CephError as error:
                return [str(error)]
            found += [f'clone {namespace}/{name}' for name in names]
        return found

    def end(self) -> None:
        """End it; its files go."""
        if self._is_wanted:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self._ceph.directory, ignore_errors=True)
        self._is_wanted = False


class _Ceph(Ceph):
    def __init__(self, directory: Path, place: tuple[str, str]):
        super().__init__(directory, places={'mon.a': place, 'osd.0': place})
        self._namespace = place[0]

    def run(self, *command: str, stdin: str = '', timeout: float = 60) -> str:
        """Run a program of Ceph's where it is, whatever becomes of links."""
        inside = () if command[0] == 'ip' else ('ip', 'netns', 'exec', self._namespace)
        return super().run(*inside, *command, stdin=stdin, timeout=timeout)


def _caps(namespace: str) -> str:
    return f'{_READ_ONLY}, profile rbd pool=bootcache namespace={namespace}'
