"""Ceph's own commands, rbd and rados, each with an end: what is away does not hold up the rest.

Ceph's Python bindings are built for a distribution's own interpreter, and a call of theirs that
waits for a cluster that is away cannot be given up.
"""

import contextlib
import errno
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from bootcache import exception, watched
from bootcache.ceph.places import RbdClone, RbdOrigin, RbdSnapshot
from bootcache.util.backoff import CircuitBreaker

T = TypeVar('T')

PACKAGE = 'ceph-common'
# Until the cluster has answered at all, and until an operation has.
_CONNECT_SECONDS, _ANSWER_SECONDS = 10, 30
# Of a command in all, for which Ceph's own limits do not hold.
_COMMAND_SECONDS = 60
# After a failure Ceph is left alone for so long, as each that asks waits.
_PAUSE_SECONDS = 30
_PIECE = 1 << 20
# Begins the names of files with a clone's first bytes, and of nothing else in their directory. What
# any format is known by is in so many.
HEAD, _HEAD_BYTES = 'look-', 4 << 20
# At a clone's parent, until it stays as it is.
_LOOKS = 3
_SAID_BYTES = 2000
# No object has such a name: whoever may delete it is told that there is none.
_NO_OBJECTS = ('rbd_header.bootcache-may-not', 'rbd_data.bootcache-may-not')
# By their words, as the programs do not agree on exit codes.
_NO_POOL = 'error opening pool'
_AWAY = ('connect to the cluster', 'failed to fetch mon config', 'timed out')
_NO_KEYRING = 'unable to find a keyring on '
_SPOILED_KEYRING = re.compile(r'auth: failed to load (.+): \([0-9]+\) ')
# What a client's log says whose key is another one than the monitors have.
_OTHER_KEY = 'handle_auth_bad_method'


class RbdAbsent(exception.BootcacheError):
    """What is asked for is not in Ceph."""


class RbdInUse(exception.BootcacheError):
    """Somebody has it open."""


class RbdRefused(exception.BootcacheError):
    """The Ceph user may not do that."""


class RbdNoKey(exception.BootcacheError):
    """There is no key by which Ceph takes anybody for the user; it says so with the cure."""


def is_of_pool(error: RbdAbsent) -> bool:
    """Tell whether it is a pool that is absent."""
    return _NO_POOL in str(error)


class Rbd:
    """Commands for one cluster, as one user; none is run just after Ceph has not answered.

    :ivar conf: path of its ceph.conf.
    :ivar user: without ``client.``.
    """

    def __init__(self, conf: str, user: str):
        self.conf = conf
        self.user = user
        self._fsid = ''
        self._health = CircuitBreaker(1, _PAUSE_SECONDS)

    def clone(self, parent: RbdSnapshot, clone: RbdClone, features: str = 'layering',
              *options: str) -> None:
        """Clone a snapshot. It takes no space, and outlives its parent's deletion in Glance.

        Nobody protects the snapshot for that: it is a clone of version 2, of Ceph 13 and later.

        :param options: more of rbd's.
        :raises RbdAbsent: if there is no such snapshot.
        :raises RbdRefused: if the user may not.
        :raises RbdNoKey: if Ceph does not take this for the user.
        :raises Interrupted: if Ceph does not answer.
        :raises BootcacheError: if it says no for another reason.
        """
        self._run('rbd', 'clone', '--rbd-default-clone-format', '2', '--image-feature', features,
                  *options, '--pool', parent.pool, '--image', parent.image, '--snap', parent.name,
                  '--dest-pool', clone.pool, '--dest-namespace', clone.namespace,
                  '--dest', clone.name)

    def rename(self, clone: RbdClone, to: RbdClone) -> None:
        """Rename a clone within its namespace; the errors are those of ``clone``."""
        self._run('rbd', 'rename', *place(clone), '--dest-pool', to.pool,
                  '--dest-namespace', to.namespace, '--dest', to.name)

    def size(self, clone: RbdClone) -> int:
        """Return a clone's size in bytes; the errors are those of ``clone``."""
        return self._told(lambda told: int(told['size']), 'info', *place(clone))

    def origin(self, clone: RbdClone) -> RbdOrigin | None:
        """Return where a clone comes from; None if it is none. The errors are those of ``clone``.
        """
        parent, snapshot_id = self.parent(clone)
        return RbdOrigin.read({**parent, 'fsid': self.fsid(), 'snapshot_id': snapshot_id}) \
            if parent else None

    def parent(self, clone: RbdClone) -> tuple[dict[str, Any], str]:
        """Return what Ceph tells of a clone's parent, and RBD's own id of that snapshot.

        Ceph tells its name only. Whose name is the same before and after its id was looked for had
        it meanwhile: one that is deleted, as where another takes its place, gets another name.

        :returns: no entries if it is no clone; both are told also if Glance has deleted the image.
            The errors are those of ``clone``.
        """
        parent = self._parent(clone)
        if not parent:
            return {}, ''
        for _attempt in range(_LOOKS):
            ids = self._told(lambda told: {one['name']: str(one['id']) for one in told},
                             'snap', 'ls', '--all', '--pool', str(parent.get('pool')),
                             '--image-id', str(parent.get('id')))
            before, parent = parent, self._parent(clone)
            if before == parent:
                return parent, ids.get(parent.get('snapshot'), '')
        raise exception.BootcacheError(f'the parent of {clone.path} changes again and again')

    def _parent(self, clone: RbdClone) -> dict[str, Any]:
        return self._told(lambda told: dict(told.get('parent') or {}), 'info', *place(clone))

    def fsid(self) -> str:
        """Return the cluster's id; the errors are those of ``clone``."""
        if not self._fsid:
            self._fsid = self._run('ceph', 'fsid').strip()
        return self._fsid

    def clones(self, pool: str, namespace: str) -> list[RbdClone]:
        """Return what is in a namespace; the errors are those of ``clone``."""
        return self._told(lambda names: [RbdClone(pool, namespace, str(name)) for name in names],
                          'ls', '--pool', pool, '--namespace', namespace)

    def remove(self, clone: RbdClone) -> bool:
        """Remove a clone; False if somebody has it open. The errors are those of ``clone``."""
        try:
            self._run('rbd', 'rm', '--no-progress', *place(clone))
        except RbdAbsent:
            return True
        except RbdInUse:
            return False
        return True

    def may_delete(self, pool: str, namespace: str = '') -> bool:
        """Tell whether the user may delete images of a pool. Nothing is deleted.

        :param namespace: in which they are; there need not be such a one.
        :raises RbdAbsent: if there is no such pool.
        :raises Interrupted: if Ceph does not answer.
        :raises BootcacheError: if it says no for another reason.
        """
        for name in _NO_OBJECTS:
            try:
                self._run('rados', '-p', pool, '-N', namespace, 'rm', name)
            except RbdRefused:
                continue
            except RbdAbsent as error:
                if is_of_pool(error):
                    raise
            return True
        return False

    @contextlib.contextmanager
    def reading(self, clone: RbdClone, check: Callable[[], None]) -> Iterator[Iterator[bytes]]:
        """Read a clone's bytes, from the first on; it need not be to the end.

        :param check: called between pieces; raises to give it up.
        :raises Interrupted: by the pieces, if it cannot be read to its end.
        """
        with tempfile.TemporaryFile() as said:
            try:
                process = subprocess.Popen(
                    self._command('rbd', 'export', '--no-progress', *place(clone), '-'),
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
            except OSError as error:
                raise exception.Interrupted(f'rbd cannot be run: {error}') from error
            stream = process.stdout
            assert stream is not None

            def pieces() -> Iterator[bytes]:
                while piece := stream.read(_PIECE):
                    check()
                    yield piece
                if process.wait(_COMMAND_SECONDS):
                    said.seek(0)
                    detail = said.read(_SAID_BYTES).decode(errors='replace').strip()
                    raise exception.Interrupted(
                        f'{clone.path} cannot be read (exit {process.returncode}): {detail}')

            try:
                yield pieces()
            finally:
                process.kill()
                stream.close()
                process.wait()

    @contextlib.contextmanager
    def head(self, clone: RbdClone, directory: str, check: Callable[[], None]) -> Iterator[str]:
        """Give the path of a file of a clone's size, with the first bytes of it, and holes.

        :param directory: for such a file, which is gone at the end of the block.
        :param check: called between pieces; raises to give it up.
        :raises Interrupted: if the clone cannot be read; others as of ``clone``.
        """
        size = self.size(clone)
        with tempfile.NamedTemporaryFile(prefix=HEAD, dir=directory) as file:
            with self.reading(clone, check) as pieces:
                for piece in pieces:
                    file.write(piece)
                    if file.tell() >= _HEAD_BYTES:
                        break
            file.truncate(size)
            file.flush()
            yield file.name

    def _command(self, program: str, *arguments: str) -> list[str]:
        return ['env', 'LC_ALL=C', program, '--conf', self.conf, '--id', self.user,
                '--client_mount_timeout', str(_CONNECT_SECONDS),
                '--rados_mon_op_timeout', str(_ANSWER_SECONDS),
                '--rados_osd_op_timeout', str(_ANSWER_SECONDS), *arguments]

    def _told(self, read: Callable[[Any], T], *arguments: str) -> T:
        """Return what is read of a command of rbd's own JSON."""
        out = self._run('rbd', *arguments, '--format', 'json')
        try:
            return read(json.loads(out))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise exception.BootcacheError(
                f'rbd {arguments[0]} is not understood ({error!r}): {out!r:.100}') from error

    def _run(self, program: str, *arguments: str) -> str:
        if not self._health.may_ask():
            raise exception.Interrupted('Ceph did not answer just now')
        with self._health.hearing(lambda error: isinstance(error, exception.Interrupted)):
            return self._execute(program, *arguments)

    def _execute(self, program: str, *arguments: str) -> str:
        what = f'{program} {arguments[0]}' if program == 'rbd' else program
        try:
            code, out, said = watched.output(what, self._command(program, *arguments),
                                             _COMMAND_SECONDS)
        except exception.Interrupted as error:
            raise exception.Interrupted(
                f'{error}; is {PACKAGE} installed, and is Ceph up?') from error
        if code:
            raise _fault(what, code, said, self.user)
        return out


def place(clone: RbdClone) -> list[str]:
    """Return the words that name an image."""
    return ['--pool', clone.pool, '--namespace', clone.namespace, '--image', clone.name]


def _fault(what: str, code: int, stderr: str, user: str) -> exception.BootcacheError:
    """Tell by what a command says what was wrong."""
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    # Those of its log begin with a time; the others are for people.
    detail = '; '.join(line for line in said if not line[0].isdigit())[-_SAID_BYTES:]
    text = f'{what} failed (exit {code}): {detail}'
    if why := _keyless(said, user):
        return RbdNoKey(f'{what} failed: {why}')
    if code < 0 or any(words in detail for words in _AWAY):
        return exception.Interrupted(f'{text}; is Ceph up?')
    if code == errno.EBUSY:
        return RbdInUse(text)
    if 'Operation not permitted' in detail:
        return RbdRefused(text)
    if 'No such file or directory' in detail:
        return RbdAbsent(text)
    return exception.BootcacheError(text)


def _keyless(said: Sequence[str], user: str) -> str:
    """Tell by what a command says why Ceph takes it for nobody; empty if it is something else."""
    if spoiled := next(filter(None, map(_SPOILED_KEYRING.search, said)), None):
        return f'{spoiled[1]} cannot be read as a keyring; make it again by "ceph auth get' \
               f' client.{user} -o {spoiled[1]}"'
    if none := next((line for line in said if _NO_KEYRING in line), ''):
        text = none[none.index(_NO_KEYRING):]
        # Of several, Ceph tells what was wrong with the last one.
        for path in text.removeprefix(_NO_KEYRING).split(': ')[0].split(','):
            if os.path.exists(path) and not os.access(path, os.R_OK):
                return f'{path} cannot be read by this service\'s user; give the file to that user'
        return f'{text}; "ceph auth get client.{user} -o" the first of these makes it'
    if any(_OTHER_KEY in line for line in said):
        return f'Ceph refuses the key of client.{user}; "ceph auth get client.{user}" tells the' \
               ' one that belongs into its keyring'
    return ''
