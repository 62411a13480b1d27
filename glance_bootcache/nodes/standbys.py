"""Copies of bases that only their home's disk has: a storage node keeps them for when that dies.

With Ceph, or Glance's store on NFS, all nodes read the same base, and there are none.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable

from oslo_log import log as logging

from bootcache.exception import Cancelled, DatabaseAway
from bootcache.manifest import Availability, Manifest, Standing
from bootcache.util.backoff import Backoff
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.glance.images import Images
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.imagework import obtain
from glance_bootcache.nodes.homes import Homes, keeper
from glance_bootcache.nodes.membership import Membership, Node, NodeState
from glance_bootcache.storage.nodefiles import FileKind, Standby, standby_suffix
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

# Between looks; for which hosts need a base before it is copied: most servers are settled by then.
_LOOK_SECONDS, _NEEDED_SECONDS = 60.0, 600.0
# For which a copy stays that no host needs: the image's next server may come.
_KEPT_SECONDS = 86400.0
# Of a node's free room, a copy has one part at most.
_PARTS = 2
_AGAIN_SECONDS, _AGAIN_LONGEST = 300.0, 3600.0


def chosen(nodes: Iterable[Node], home: int, stored_bytes: int) -> int | None:
    """Return the number of the node that is to have a standby copy: of those that get images the
    one with most room; None if none has enough. Pure.

    :param home: number of the node that has the base.
    :param stored_bytes: size of the base.
    """
    able = [node.record for node in nodes if node.takes_images and node.record.number != home
            and node.record.free_bytes >= _PARTS * stored_bytes]
    return max(able, key=lambda record: (record.free_bytes, -record.number)).number \
        if able else None


def _stays(node: Node) -> bool:
    return node.state is not NodeState.OUT and node.record.wish is None


class Standbys:
    """Gets, and gives up, this node's standby copies.

    :param images: Glance's.
    :param needs: tell which bases hosts need.
    :param clock: monotonic seconds.
    :param now: seconds since the epoch.
    :ivar missing: how many images of this node's have a base that hosts need, that no other node
        can read, and of which no node has a standby copy.
    """

    def __init__(self, store: ImageStore, images: Images, homes: Homes, membership: Membership,
                 needs: ReportedNeeds, clock: Callable[[], float] = time.monotonic,
                 now: Callable[[], float] = time.time):
        self._store = store
        self._images = images
        self._homes = homes
        self._membership = membership
        self._needs = needs
        self._clock = clock
        self._now = now
        self._needed_since: dict[str, float] = {}
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
            if not self._membership.are_several:
                continue
            try:
                self.once()
                self._throttle.recovered('', 'standby copies are looked after again')
            except Exception as error:
                self._throttle.warning('', 'standby copies cannot be looked after: %s', error)

    def once(self) -> None:
        """Give up copies that are of no use, and get those that this node is to have.

        :raises DatabaseAway: if the database does not answer.
        """
        standbys, nodes = self._store.files.standbys(), self._membership.nodes()
        needed = self._needed()
        for image_id in sorted(standbys):
            for one in standbys[image_id]:
                if one.node_id == self._membership.own and not self._is_of_use(
                        image_id, one, standbys[image_id], nodes):
                    self._store.files.change(image_id, retiring=[one.name])
        self._store.files.remove_retired()
        # One that is away may be back in a moment.
        missing = [record for record in needed if keeper(
            standbys.get(record.image_id, ()), record, nodes, _stays) is None]
        self.missing = sum(self._store.known(record.image_id) is not None for record in missing)
        if self._membership.may_judge:
            for record in missing:
                if not self._stopping.is_set():
                    self._get_if_due(record, nodes)

    def _needed(self) -> list[Manifest]:
        """Return the images with a base that hosts need, and that its home alone can read."""
        found = [record for record in self._store.everywhere()
                 if record.made.base_path and record.made.base_hash
                 and not self._homes.is_shared(record) and self._needs.hosts(record.image_id)]
        self._needed_since = {
            record.image_id: self._needed_since.get(record.image_id, self._clock())
            for record in found}
        return found

    def _is_of_use(self, image_id: str, one: Standby, standbys: Collection[Standby],
                   nodes: Collection[Node]) -> bool:
        record, home = self._store.anywhere(image_id), self._store.home(image_id)
        if record is None:
            return True  # Its row is not known yet, or what there is of the image is retiring.
        if home == self._membership.own:
            return False  # What was claimed is a base by now.
        if not record.made.base_path:
            return record.standing is Standing.WANTED  # Its home gets it again.
        return self._membership.takes_images \
            and one.name.endswith(standby_suffix(record.made.base_hash)) \
            and keeper(standbys, record, nodes) in (None, self._membership.own) \
            and (image_id in self._needed_since or one.made_at > self._now() - _KEPT_SECONDS)

    def _get_if_due(self, record: Manifest, nodes: Collection[Node]) -> None:
        image_id, own = record.image_id, self._membership.own
        home = self._store.home(image_id)
        if home is None or home == own or own != chosen(nodes, home, record.made.stored_bytes) \
                or self._clock() - self._needed_since[image_id] < _NEEDED_SECONDS \
                or record.wished.availability not in (Availability.ACTIVE, Availability.HIDDEN) \
                or not self._again.acquire(image_id):
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
        image_id = record.image_id
        image = self._images.get(image_id)
        if image is None or image.image_hash != record.made.base_hash:
            return False
        path, _file = obtain(image, self._store, self._images, (), self._check,
                             kind=FileKind.STANDBY, suffix=standby_suffix(image.image_hash))
        self._store.files.change(image_id, ready=[os.path.basename(path)])
        LOG.info('image %s: this node has a standby copy of its base', image_id)
        return True

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Cancelled('the service ends')
