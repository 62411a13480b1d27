"""What makes, names and removes images that become Glance's: more of Ceph's own commands."""

import contextlib
import errno
import subprocess
from typing import IO

from bootcache import exception
from bootcache.ceph.places import SNAPSHOT, RbdClone, RbdOrigin, RbdSnapshot
from bootcache.ceph.rbd import Rbd, RbdAbsent, place

# Bytes of an object. The first write to one copies all of it from the parent: with the 8 MiB of
# Glance's images 30 MB of changes in a hundred places store a GB.
SMALL = '64K'
# Of a copy that is written once, as a whole.
LARGE = '4M'
# With a map of its objects: without one all that there could be are asked for when it is removed,
# 16,384 for each GiB, which took more than a minute; and QEMU asks for each before the parent.
_FEATURES = 'layering,exclusive-lock,object-map'
# Objects that are copied at a time: servers read from the same disks.
_FLATTEN_OBJECTS = 4


class SnapshotCommands(Rbd):
    """Commands for images that become Glance's.

    The errors of all are those of ``Rbd.clone``.
    """

    def _command(self, program: str, *arguments: str) -> list[str]:
        # A daemon that was killed leaves its lock of an image. It writes no more: it need not be
        # put on Ceph's blocklist first, for which the user has no right.
        unfenced = ('--rbd_blocklist_on_break_lock', 'false') if program == 'rbd' else ()
        return super()._command(program, *unfenced, *arguments)

    def clone_into(self, parent: RbdSnapshot, clone: RbdClone, object_size: str) -> None:
        """Clone a snapshot, into objects of a size: ``SMALL`` or ``LARGE``."""
        # Without the stripe's unit it is refused: that would be larger than an object.
        self.clone(parent, clone, _FEATURES, '--object-size', object_size,
                   '--stripe-unit', object_size, '--stripe-count', '1')

    def flattening(self, clone: RbdClone, said: IO[bytes]) -> 'subprocess.Popen[bytes]':
        """Begin to copy into a clone what it has of its parent, until it has none.

        One that was ended before goes on where it was: objects that are there are not read again.

        :param said: gets what the command says.
        :raises Interrupted: if it cannot be run.
        """
        command = self._command('rbd', 'flatten', '--no-progress', *place(clone),
                                '--rbd_concurrent_management_ops', str(_FLATTEN_OBJECTS))
        try:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=said)
        except OSError as error:
            raise exception.Interrupted(f'rbd cannot be run: {error}') from error

    def trash(self, image: RbdClone) -> None:
        """Put an image into its pool's trash, from which ``purge`` removes it.

        :raises RbdInUse: if somebody has it open.
        """
        self._run('rbd', 'trash', 'mv', *place(image))

    def grow(self, clone: RbdClone, size: int) -> None:
        """Make an image larger; zeros follow what there was.

        :param size: in bytes.
        """
        self._run('rbd', 'resize', '--no-progress', '--size', f'{size}B', *place(clone))

    def freeze(self, image: RbdClone) -> None:
        """Give an image the snapshot that Glance reads, protected as Glance's own; it may have it.
        """
        if not self._snapshots(image):
            self._run('rbd', 'snap', 'create', '--no-progress', *place(image), '--snap', SNAPSHOT)
        if self._snapshots(image) != {SNAPSHOT: True}:
            self._run('rbd', 'snap', 'protect', *place(image), '--snap', SNAPSHOT)

    def thaw(self, image: RbdClone) -> None:
        """Take that snapshot from an image again; it need not have it."""
        snapshots = self._snapshots(image)
        if snapshots.get(SNAPSHOT):
            self._run('rbd', 'snap', 'unprotect', *place(image), '--snap', SNAPSHOT)
        if SNAPSHOT in snapshots:
            self._run('rbd', 'snap', 'rm', '--no-progress', *place(image), '--snap', SNAPSHOT)

    def _snapshots(self, image: RbdClone) -> dict[str, bool]:
        return self._told(lambda told: {str(entry['name']): entry.get('protected') in (True, 'true')
                                        for entry in told}, 'snap', 'ls', *place(image))

    def depth(self, origin: RbdOrigin, most: int) -> int:
        """Return how many images are below an image, each the next one's parent.

        :param most: more are not counted.
        """
        count, named = 0, ['--pool', origin.pool, '--image-id', origin.id]
        while count < most and (parent := self._told(
                lambda told: dict(told.get('parent') or {}), 'info', *named)):
            count += 1
            named = ['--pool', str(parent.get('pool')),
                     '--namespace', str(parent.get('pool_namespace', '')),
                     '--image-id', str(parent.get('id'))]
        return count

    def purge(self, pool: str) -> None:
        """Remove from a pool's trash what has no children any more."""
        if not self._told(list, 'trash', 'ls', '--pool', pool):
            return
        with contextlib.suppress(RbdAbsent):
            try:
                self._run('rbd', 'trash', 'purge', '--no-progress', '--pool', pool)
            except exception.BootcacheError as error:
                # Those that have some stay.
                if f'exit {errno.ENOTEMPTY}' not in str(error):
                    raise
