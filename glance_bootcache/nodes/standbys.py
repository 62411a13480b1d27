"""Copies of bases that only their home's disk has: a storage node keeps them for when that dies.

With Ceph, or Glance's store on NFS, all nodes read the same base, and there are none.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from oslo_log import log as logging

from bootcache.exception import Cancelled, DatabaseAway
from bootcache.manifest import Availability, Manifest, Standing
from bootcache.util.backoff import Backoff
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.glance.images import Images
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.imagework import obtain
from glance_bootcache.nodes.homes import Homes, keeper, may_keep
from glance_bootcache.nodes.membership import Membership, Node, NodeState
from glance_bootcache.storage.nodefiles import FileKind, Standby, standby_suffix
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

# Between looks; for which hosts need a base before it is copied: most servers are settled by then.
_LOOK_SECONDS, _NEEDED_SECONDS = 60.0, 600.0
# For which a copy stays that no host needs: the image's next server may come.
_KEPT_SECONDS = 86400.0
# Of a node's disk: copies are given up where such a part of it is not free.
_LEAST_FREE = 8
_AGAIN_SECONDS, _AGAIN_LONGEST = 300.0, 3600.0

_ByImage = Mapping[str, Collection[Standby]]


def chosen(nodes: Iterable[Node], home: int, record: Manifest) -> int | None:
    """Return the number of the node that is to have a standby copy: of those that may take the
    image over the one with most room; None if none has enough. Pure.

    :param home: number of the node that has the base.
    """
    able = [node.record for node in nodes if may_keep(node, record) and node.record.number != home
            and node.record.free_bytes >= record.made.stored_bytes]
    return max(able, key=lambda one: (one.free_bytes, -one.number)).number if able else None


def is_missing(standbys: Collection[Standby], record: Manifest, home: int | None,
               nodes: Iterable[Node]) -> bool:
    """Tell whether no other node has a standby copy of a base, or makes one. Pure.

    A node that is away may be back in a moment.
    """
    there = {node.record.number for node in nodes
             if node.state is not NodeState.OUT and node.record.wish is None} - {home}
    return not any(one.node_id in there and one.is_of(record.made.base_hash) for one in standbys)


class Standbys:
    """Gets, and gives up, this node's standby copies.

    :param images: Glance's.
    :param needs: tell which bases hosts need.
    :param clock: monotonic seconds.
    :param now: seconds since the epoch.
    :param disk: returns bytes of this node's disk in all, and free ones.
    :ivar missing: how many images of this node's have a base that hosts need, that no other node
        can read, and of which no node has a standby copy.
    """

    def __init__(self, store: ImageStore, images: Images, homes: Homes, membership: Membership,
                 needs: ReportedNeeds, clock: Callable[[], float] = time.monotonic,
                 now: Callable[[], float] = time.time,
                 disk: Callable[[], tuple[int, int]] | None = None):
        self._store = store
        self._images = images
        self._homes = homes
        self._membership = membership
        self._needs = needs
        self._clock = clock
        self._now = now
        self._disk = disk or self._own_disk
        self._needed_since: dict[str, float] = {}
        # Images of which another node has a copy as well, as of the last look.
        self._doubled: set[str] = set()
        self._again = Backoff(_AGAIN_SECONDS, _AGAIN_LONGEST, clock)
        self._throttle = LogThrottle(LOG)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name='bootcache-standbys', daemon=True)
        self.missing = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Get no more; what is being got is removed."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                self.once()
                self._throttle.recovered('', 'standby copies are looked after again')
            except Exception as error:
                self._throttle.warning('', 'standby copies cannot be looked after: %s', error)

    def _own_disk(self) -> tuple[int, int]:
        found = shutil.disk_usage(self._store.images_directory)
        return found.used + found.free, found.free

    def once(self) -> None:
        """Give up copies that are of no use, and get those that this node is to have.

        :raises DatabaseAway: if the database does not answer.
        :raises OSError: if this node's disk cannot be looked at.
        """
        needed = self._needed()
        standbys = self._store.files.standbys()
        self._give_up(standbys)
        nodes = self._membership.nodes()
        missing = [record for record in needed if is_missing(
            standbys.get(record.image_id, ()), record, self._store.home(record.image_id), nodes)]
        self.missing = sum(self._store.known(record.image_id) is not None for record in missing)
        for record in missing:
            if not self._stopping.is_set():
                self._get_if_due(record)

    def _needed(self) -> list[Manifest]:
        """Return the images with a base that hosts need, and that its home alone can read."""
        found = [record for record in self._store.everywhere()
                 if record.made.base_path and record.made.base_hash
                 and self._needs.hosts(record.image_id) and not self._homes.is_shared(record)]
        self._needed_since = {
            record.image_id: self._needed_since.get(record.image_id, self._clock())
            for record in found}
        return found

    def _give_up(self, standbys: _ByImage) -> None:
        """Give up this node's copies that are of no use, and the oldest one if there is no room."""
        judged = {image_id: self._store.anywhere(image_id) for image_id in standbys}
        mine = {(image_id, one) for image_id in standbys for one in standbys[image_id]
                if one.node_id == self._membership.own and one.is_whole}
        nodes = self._membership.nodes()
        doubled = {image_id for image_id, _one in mine if self._is_doubled(
            image_id, standbys[image_id], nodes)}
        # A node that died while this one was blind counts as working for a while.
        spare, self._doubled = doubled & self._doubled, doubled
        useless = {(image_id, one) for image_id, one in mine
                   if image_id in spare or not self._is_of_use(image_id, one)}
        total, free = self._disk()
        spared = {found for found in mine - useless if self._homes.other_has_base(found[0])}
        if free < total // _LEAST_FREE and spared:
            useless.add(min(spared, key=lambda found: found[1].made_at))
        for image_id, one in useless:
            self._store.give_up(image_id, [one.name], judged[image_id])

    def _is_doubled(self, image_id: str, standbys: Collection[Standby], nodes: Collection[Node]
                    ) -> bool:
        record, home = self._store.anywhere(image_id), self._store.home(image_id)
        return record is not None and self._membership.may_judge and keeper(
            standbys, record, home, nodes) not in (None, self._membership.own)

    def _is_of_use(self, image_id: str, one: Standby) -> bool:
        record, home = self._store.anywhere(image_id), self._store.home(image_id)
        if record is None:
            return True  # Its row is not known yet, or what there is of the image is retiring.
        if home == self._membership.own or not one.is_of(record.made.base_hash) \
                or not self._homes.has_whole(record, one):
            return False
        if not record.made.base_path:
            # Its home gets it again, or cannot.
            return record.standing is Standing.WANTED or bool(self._needs.hosts(image_id))
        if not self._membership.takes_images:
            # The last one that is left stays until the home works and has the base, or an operator
            # has this node take images again.
            return not self._homes.other_has_base(image_id)
        return image_id in self._needed_since or one.made_at > self._now() - _KEPT_SECONDS

    def _get_if_due(self, record: Manifest) -> None:
        image_id, own = record.image_id, self._membership.own
        home, nodes = self._store.home(image_id), self._membership.nodes()
        if home is None or not self._membership.may_judge \
                or own != chosen(nodes, home, record) \
                or self._clock() - self._needed_since[image_id] < _NEEDED_SECONDS \
                or record.wished.availability not in (Availability.ACTIVE, Availability.HIDDEN) \
                or not self._again.acquire(image_id):
            return
        # Others may have been got meanwhile, here and elsewhere.
        if not is_missing(self._store.files.standbys(image_id).get(image_id, ()), record, home,
                          nodes):
            return
        try:
            if self._get(record):
                self._again.forget(image_id)
        except Cancelled:
            return
        except DatabaseAway:
            raise
        except Exception as error:
            LOG.info('image %s: this node cannot have a standby copy of its base now: %s', image_id,
                     error)

    def _get(self, record: Manifest) -> bool:
        image_id, files = record.image_id, self._store.files
        image = self._images.get(image_id)
        if image is None or image.image_hash != record.made.base_hash:
            return False
        path, _file = obtain(image, self._store, self._images, (), self._check,
                             kind=FileKind.STANDBY, suffix=standby_suffix(image.image_hash))
        try:
            files.change(image_id, ready=[os.path.basename(path)])
        except BaseException:
            files.abandon(image_id, os.path.basename(path))
            raise
        LOG.info('image %s: this node has a standby copy of its base', image_id)
        return True

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Cancelled('the service ends')
