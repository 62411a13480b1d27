"""Bases as clones in Ceph: made, checked, looked at, and removed when nothing needs them.

A clone has a row among the node's files before it is made, and is removed when that is retiring.
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.ceph import places
from bootcache.ceph.places import RbdClone
from bootcache.ceph.rbd import Rbd, RbdAbsent, RbdRefused
from bootcache.util.backoff import Backoff
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.policy import is_signed
from glance_bootcache.storage.nodefiles import FileKind, NodeFiles, tell_unnamed

LOG = logging.getLogger(__name__)

_SWEEP_SECONDS = 60
_DOWNLOADED = 'image %s: its base is not read in Ceph, and is got another way: %s'


class CephBases:
    """The clones of this storage service.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._conf: Any = conf[bootcache_conf.GROUP]
        self._rbd = Rbd(self._conf.rbd_store_ceph_conf, self._conf.rbd_store_user)
        self._sweeps = Backoff(_SWEEP_SECONDS)

    def obtain(self, image: ImageFacts, files: NodeFiles, check: Callable[[], None],
               arrived: Callable[[int], None]) -> str | None:
        """Clone an image's snapshot, and read all of the clone once, for Glance's hash.

        :param files: has the clone's row.
        :param check: called between pieces; raises to give it up.
        :param arrived: told of the bytes of each piece.
        :returns: what a manifest calls the clone; None if the base has to be got another way, which
            is logged with the reason.
        :raises Exception: what ``check`` raises.
        """
        if not self._conf.rbd_store_pool:
            return None
        algorithm, _colon, value = image.image_hash.partition(':')
        if not value:
            return None
        if is_signed(image):
            LOG.info(_DOWNLOADED, image.image_id, 'a signature is verified on a file')
            return None
        if image.disk_format != 'raw':
            LOG.info(_DOWNLOADED, image.image_id, f'its disk_format is {image.disk_format};'
                     ' only raw images are served from there')
            return None
        try:
            return self._clone(image, files, algorithm, value, check, arrived)
        except RbdAbsent:
            LOG.info(_DOWNLOADED, image.image_id,
                     f'pool {self._conf.rbd_store_pool} has no such image')
        except (exception.Cancelled, exception.DatabaseAway):
            raise
        except exception.BootcacheError as error:
            LOG.warning(_DOWNLOADED, image.image_id, f'{error}; look at the caps of client.'
                        f'{self._rbd.user}' if isinstance(error, RbdRefused) else error)
        return None

    def _clone(self, image: ImageFacts, files: NodeFiles, algorithm: str, value: str,
               check: Callable[[], None], arrived: Callable[[int], None]) -> str:
        absent: RbdAbsent | None = None
        pools = [self._conf.rbd_store_pool]
        if self._conf.rbd_snapshot_pool:
            pools.append(self._conf.rbd_snapshot_pool)
        for parent in places.snapshots(image.image_id, image.properties, *pools):
            clone = RbdClone(self._conf.rbd_clone_pool, self._conf.rbd_clone_namespace,
                          f'base-{image.image_id}-{secrets.token_hex(4)}')
            files.begin(image.image_id, FileKind.CLONE, clone.path)
            kept = False
            try:
                self._rbd.clone(parent, clone)
                fault = self._fault(clone, image.stored_bytes, algorithm, value, check, arrived)
                kept = not fault
            except RbdAbsent as error:
                absent = error
                continue
            finally:
                if not kept:
                    files.abandon(image.image_id, clone.path)
                    # What cannot be removed now is later.
                    with contextlib.suppress(exception.BootcacheError):
                        self._remove_retired(files)
            if kept:
                LOG.info('image %s: its base is %s, a clone of %s', image.image_id, clone.path,
                         parent)
                return clone.path
            absent = RbdAbsent(fault)
            LOG.warning('image %s: %s is not what Glance gives: %s', image.image_id, parent, fault)
        assert absent is not None
        raise absent

    def _fault(self, clone: RbdClone, stored_bytes: int, algorithm: str, value: str,
               check: Callable[[], None], arrived: Callable[[int], None]) -> str:
        """Return what is wrong with a clone's content; empty if it is Glance's."""
        size = self._rbd.size(clone)
        if size != stored_bytes:
            return f'it has {size} bytes, not {stored_bytes}'
        digest = hashlib.new(algorithm)
        with self._rbd.reading(clone, check) as pieces:
            for piece in pieces:
                digest.update(piece)
                arrived(len(piece))
        return '' if digest.hexdigest() == value else f'it does not have Glance\'s {algorithm}'

    def serves(self, image: ImageFacts, path: str) -> bool:
        """Tell whether an image's base is where its manifest has it, and can stay there.

        Ceph is asked for a clone. One that was signed since it was cloned is verified on a file.

        :raises Interrupted: if Ceph does not answer, or says no: nothing is wrong with the image.
        """
        if not places.is_clone(path):
            return os.path.exists(path)
        try:
            self._rbd.size(places.clone_of(path))
        except RbdAbsent:
            return False
        except exception.BootcacheError as error:
            raise exception.Interrupted(str(error)) from error
        return not is_signed(image)

    @contextlib.contextmanager
    def looked_at(self, path: str, directory: str,
                  check: Callable[[], None]) -> Iterator[str]:
        """Give a file that can be looked at in a base's stead: the base itself, if it is one.

        Of a clone it is one of the same size with the first bytes of it, and holes.

        :param directory: for such a file, which is gone at the end of the block.
        :param check: called between pieces; raises to give it up.
        :raises Interrupted: if the clone cannot be read.
        """
        if not places.is_clone(path):
            yield path
            return
        with self._rbd.head(places.clone_of(path), directory, check) as head:
            yield head

    def read_all(self, path: str, check: Callable[[], None]) -> None:
        """Read all of a clone, and keep nothing of it.

        :param check: called between pieces; raises to give it up.
        :raises Interrupted: if it cannot be read to its end.
        """
        with self._rbd.reading(places.clone_of(path), check) as pieces:
            for _piece in pieces:
                pass

    def remove_retired(self, files: NodeFiles) -> None:
        """Remove clones that nothing needs, some minutes after the last time.

        One that the exporter still has open stays until the next time.

        :raises BootcacheError: if Ceph, or the database, does not answer, or says no.
        """
        if self._conf.rbd_store_pool and self._sweeps.acquire():
            self._remove_retired(files)

    def _remove_retired(self, files: NodeFiles) -> None:
        files.remove_retired_of(FileKind.CLONE,
                                lambda _image_id, path: self._rbd.remove(places.clone_of(path)))

    def tell_unnamed(self, files: NodeFiles) -> None:
        """Log which clones in the namespace have no row.

        :raises BootcacheError: if Ceph, or the database, does not answer, or says no.
        """
        if not self._conf.rbd_store_pool:
            return
        pool, namespace = self._conf.rbd_clone_pool, self._conf.rbd_clone_namespace
        there = {clone.path for clone in self._rbd.clones(pool, namespace)}
        tell_unnamed('clones in Ceph', there - files.known(FileKind.CLONE),
                     'if no other storage service made them, "rbd rm" removes them')

