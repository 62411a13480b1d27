"""What makes, names and removes images that become Glance's: more of Ceph's own commands."""

import contextlib
import errno

from bootcache import exception
from bootcache.ceph.places import RbdClone, RbdOrigin, RbdSnapshot
from bootcache.ceph.rbd import Rbd, RbdAbsent, place

# As Glance's RBD store calls it, for each image.
SNAPSHOT = 'snap'
# Bytes of an object. The first write to one copies all of it from the parent: with the 8 MiB of
# Glance's images 30 MB of changes in a hundred places store a GB.
_OBJECT = '64K'
# With a map of its objects: without one all that there could be are asked for when it is removed,
# 16,384 for each GiB, which took more than a minute; and QEMU asks for each before the parent.
_FEATURES = 'layering,exclusive-lock,object-map'


class SnapshotCommands(Rbd):
    """Commands for images that become Glance's.

    The errors of all are those of ``Rbd.clone``.
    """

    def _command(self, program: str, *arguments: str) -> list[str]:
        # A daemon that was killed leaves its lock of an image. It writes no more: it need not be
        # put on Ceph's blocklist first, for which the user has no right.
        unfenced = ('--rbd_blocklist_on_break_lock', 'false') if program == 'rbd' else ()
        return super()._command(program, *unfenced, *arguments)

    def clone_small(self, parent: RbdSnapshot, clone: RbdClone) -> None:
        """Clone a snapshot, into small objects."""
        self._run('rbd', 'clone', '--rbd-default-clone-format', '2', '--image-feature', _FEATURES,
                  # Without the stripe's unit it is refused: that would be larger than an object.
                  '--object-size', _OBJECT, '--stripe-unit', _OBJECT, '--stripe-count', '1',
                  '--pool', parent.pool, '--image', parent.image, '--snap', parent.name,
                  '--dest-pool', clone.pool, '--dest-namespace', clone.namespace,
                  '--dest', clone.name)

    def grow(self, clone: RbdClone, size: int) -> None:
        """Make an image larger; zeros follow what there was.

        :param size: in bytes.
        """
        self._run('rbd', 'resize', '--no-progress', '--size', f'{size}B', *place(clone))

    def rename(self, clone: RbdClone, to: RbdClone) -> None:
        """Give an image another name, within its pool."""
        self._run('rbd', 'mv', *place(clone), '--dest-pool', to.pool,
                  '--dest-namespace', to.namespace, '--dest', to.name)

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
        told = self._told('snap', 'ls', *place(image))
        if not isinstance(told, list):
            raise exception.BootcacheError(f'rbd snap ls tells nothing of {image.path}')
        return {str(entry['name']): entry.get('protected') in (True, 'true') for entry in told
                if isinstance(entry, dict) and 'name' in entry}

    def depth(self, origin: RbdOrigin, most: int) -> int:
        """Return how many images are below an image, each the next one's parent.

        :param most: more are not counted.
        """
        count, named = 0, ['--pool', origin.pool, '--image-id', origin.id]
        while count < most:
            told = self._told('info', *named)
            parent = told.get('parent') if isinstance(told, dict) else None
            if not isinstance(parent, dict):
                break
            count += 1
            named = ['--pool', str(parent.get('pool')),
                     '--namespace', str(parent.get('pool_namespace', '')),
                     '--image-id', str(parent.get('id'))]
        return count

    def purge(self, pool: str) -> None:
        """Remove from a pool's trash what has no children any more."""
        listed = self._told('trash', 'ls', '--pool', pool)
        if not isinstance(listed, list) or not listed:
            return
        with contextlib.suppress(RbdAbsent):
            try:
                self._run('rbd', 'trash', 'purge', '--no-progress', '--pool', pool)
            except exception.BootcacheError as error:
                # Those that have some stay.
                if f'exit {errno.ENOTEMPTY}' not in str(error):
                    raise
