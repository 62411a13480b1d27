"""Which storage node works on an image: its home. A node that is away loses its images to
whoever is asked for them.

No node is elected, and none waits for another: a row is taken over by one conditional change.
"""

import collections
import os
import threading
from collections.abc import Callable, Collection, Iterable

from oslo_log import log as logging

from bootcache import exception, savefile
from bootcache.ceph import places
from bootcache.manifest import Manifest, Standing
from bootcache.rpc.messages import NO_IMAGE, NodeWish
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.images import policy
from glance_bootcache.images.controller import Controller
from glance_bootcache.nodes.membership import AWAY_SECONDS, Membership, Node, NodeState
from glance_bootcache.nodes.node import BEAT_SECONDS
from glance_bootcache.snapshots.records import Records
from glance_bootcache.storage.nodefiles import Standby
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

# Without being asked this node takes over images while so many of its own wait for their base:
# servers that boot from another one would wait for all of these.
_MOST_WAITING = 4


def may_keep(node: Node, record: Manifest) -> bool:
    """Tell whether a node may take an image over, and so have a standby copy of its base. Pure."""
    return node.takes_images and policy.can_be_taken_over(record, node.record.look_rules)


def keeper(standbys: Collection[Standby], record: Manifest, home: int | None,
           nodes: Iterable[Node]) -> int | None:
    """Return the number of the node that works and has a whole standby copy of an image's base.

    Of two it is the first; None if none has. Pure.

    :param standbys: of the image.
    :param home: number of the node that has the base itself.
    """
    able = {node.record.number for node in nodes if may_keep(node, record)} - {home}
    return min((one.node_id for one in standbys if one.node_id in able and one.is_whole
                and one.is_of(record.made.base_hash)), default=None)


class NodeAway(exception.BootcacheError):
    """The node that works on an image does not answer, and this one may not take it over."""


class Homes:
    """Knows each image's home, and makes this node that.

    :param membership: which nodes work.
    :param store_dirs: directories of Glance's file store that this node reads.
    """

    def __init__(self, store: ImageStore, membership: Membership, store_dirs: Collection[str]):
        self._store = store
        self._membership = membership
        self._store_dirs = [path for path in store_dirs if path]
        # Figure for Prometheus: one lost between two threads does no harm.
        self.taken_over = 0

    def route(self, image_id: str) -> str | None:
        """Return the name of the node that answers about an image; None for this one.

        What a node that is away works on this one takes over.

        :raises NodeAway: if nobody can answer now.
        :raises DatabaseAway: if nothing is known of the image, and the database does not answer; or
            if it cannot be taken over.
        """
        if not self._membership.are_several or image_id == NO_IMAGE:
            return None
        home = self._store.find(image_id)
        if home is None or home == self._membership.own:
            return None
        node = self._membership.node(home)
        if node is None:
            raise NodeAway(f'image {image_id}: a storage node works on it that has just come, and'
                           ' that this one has not seen yet; ask again in a moment')
        if node.state is NodeState.UP and node.record.wish is not NodeWish.FORGOTTEN:
            return node.record.name
        other = self._membership.node(self._keeper(image_id, home))
        if other is not None and other.record.number != self._membership.own:
            return other.record.name
        if self.take_over(image_id, home):
            return None
        home = self._store.home(image_id)
        if home is None or home == self._membership.own:
            return None
        raise NodeAway(f'image {image_id}: the storage node {node.record.name} works on it, which'
                       ' is away; it is taken over in a moment, or when that one is back')

    def take_over(self, image_id: str, home: int) -> bool:
        """Make this node work on another one's image; return whether it does then.

        :raises DatabaseAway: if that cannot be written.
        """
        record, node = self._store.anywhere(image_id), self._membership.node(home)
        if record is None or node is None \
                or not self._membership.may_judge or not self._membership.takes_images \
                or not policy.can_be_taken_over(record):
            return False
        base_path, base_file = self._base_here(record)

        def taken_over(known: Manifest) -> Manifest:
            # Where it was changed meanwhile, what was found here may be of another content.
            return policy.taken_over(known, base_path, base_file) if known.made == record.made \
                else policy.taken_over(known, '', None)

        try:
            taken = self._store.claim(image_id, home, taken_over)
        except exception.Interrupted as error:
            LOG.info('%s', error)
            return False
        if taken is None:
            return False
        self.taken_over += 1
        LOG.warning('image %s: taken over from the storage node %s: %s', image_id,
                    node.record.name, f'its base is read from {base_path}'
                    if base_path else 'its base is got again when it is needed'
                    if not taken.goal else 'its base is got again')
        return True

    def _base_here(self, record: Manifest) -> tuple[str, tuple[int, int, int] | None]:
        """Return by which path this node has the base that another one has looked at, empty if it
        has not, and that file's identity.

        It is the clone in Ceph, Glance's file, or this node's standby copy. What the other one has
        in its own directory is that one's to remove.
        """
        made = record.made
        if places.is_clone(made.base_path):
            return made.base_path, made.verified_file
        if path := self._shared_file(record):
            return path, made.verified_file
        if not made.base_hash:
            return '', None
        for one in self._store.files.standbys(record.image_id).get(record.image_id, ()):
            if one.node_id == self._membership.own and one.is_whole and one.is_of(made.base_hash) \
                    and self.has_whole(record, one):
                path = self._store.path(record.image_id, one.name)
                return path, savefile.signature(path)
        return '', None

    def has_whole(self, record: Manifest, one: Standby) -> bool:
        """Tell whether a standby copy of this node's is there, with all of its bytes."""
        found = savefile.signature(self._store.path(record.image_id, one.name))
        return found is not None and found[2] == record.made.stored_bytes

    def is_shared(self, record: Manifest) -> bool:
        """Tell whether another node than the home reads the same base: a clone in Ceph, or Glance's
        file of that inode, change and size, as on NFS."""
        return places.is_clone(record.made.base_path) or bool(self._shared_file(record))

    def other_has_base(self, image_id: str, of_its_own: bool = False) -> bool:
        """Tell whether another node works on an image, does work, and has the image's base.

        :param of_its_own: not Glance's file, read in place, which goes when Glance deletes the
            image.
        """
        record, home = self._store.anywhere(image_id), self._store.home(image_id)
        if record is None or home in (None, self._membership.own) or not record.made.base_path \
                or record.made.is_base_lost or (record.made.base_file is None
                                                and not places.is_clone(record.made.base_path)) \
                or (of_its_own and os.path.basename(record.made.base_path) == image_id):
            return False
        node = self._membership.node(home)
        return node is not None and node.state is NodeState.UP and self._membership.may_judge

    def _shared_file(self, record: Manifest) -> str:
        if not record.made.base_path or record.made.base_file is None:
            return ''
        for path in (os.path.join(directory, record.image_id) for directory in self._store_dirs):
            if savefile.signature(path) == record.made.verified_file and os.access(path, os.R_OK):
                return path
        return ''

    def _keeper(self, image_id: str, home: int) -> int:
        """Return the number of the node that works and has a standby copy of an image's base; 0 if
        none has."""
        record = self._store.anywhere(image_id)
        if record is None or not self._membership.may_judge \
                or places.is_clone(record.made.base_path):
            return 0
        return keeper(self._store.files.standbys(image_id).get(image_id, ()), record, home,
                      self._membership.nodes()) or 0

    def moved(self) -> frozenset[str]:
        """Return the images that have got another home within ten minutes."""
        return self._store.moved()

    def home_for(self, parent_id: str | None) -> int:
        """Return the number of the node that is to work on an image of which nothing is known yet.

        It is not the one that hears of the image: nodes get notifications in turn, and of each
        image Glance sends as many, so that the last of them comes to the same node each time.

        :param parent_id: the image that it is a snapshot of a server of, whose cache image it
            shares with; None if there is none.
        """
        nodes = {node.record.number: node for node in self._membership.nodes()
                 if node.takes_images}
        home = None if parent_id is None else self._store.home(parent_id)
        if home in nodes:
            return home
        if not nodes or not self._membership.may_judge:
            return self._membership.own
        images = collections.Counter(self._store.homes().values())
        return min(nodes, key=lambda number: (
            images[number], -nodes[number].record.free_bytes, number))

    def due(self) -> list[tuple[str, int]]:
        """Return images that this node is to take over now though nobody has asked, with their
        homes: some of those of nodes that are drained, forgotten, or out."""
        if not self._membership.takes_images or not self._membership.may_judge:
            return []
        leaving = {node.record.number for node in self._membership.leaving()}
        if not leaving:
            return []
        homes = self._store.homes()
        takers = [node.record.number for node in self._membership.nodes() if node.takes_images]
        # Each taker has its own share, so that they do not run after the same ones; of what has a
        # standby copy, the node that has it.
        share = takers.index(self._membership.own) if self._membership.own in takers else 0
        images = {image_id: record for image_id in sorted(homes) if homes[image_id] in leaving
                  and (record := self._store.anywhere(image_id)) is not None
                  and policy.can_be_taken_over(record)}
        standbys, nodes = self._store.files.standbys(), self._membership.nodes()
        kept = {image_id: keeper(standbys[image_id], record, homes[image_id], nodes)
                for image_id, record in images.items() if image_id in standbys}
        mine = [image_id for image_id in images if kept.get(image_id) == self._membership.own]
        mine += [image_id for image_id in images if kept.get(image_id) is None][
            share::max(1, len(takers))]
        # An image of which nothing comes keeps none from being taken over for longer than that.
        moved = self._store.moved()
        waiting = sum(record.standing is Standing.WANTED and not record.made.base_path
                      for record in self._store.manifests() if record.image_id in moved)
        return [(image_id, homes[image_id])
                for image_id in mine[:max(0, _MOST_WAITING - waiting)]]


class HomeUpkeep:
    """Follows what other nodes write, and takes over what is due.

    :param forget: removes the rows of a node that is gone for good, unless something names it;
        tells whether it did.
    """

    def __init__(self, store: ImageStore, homes: Homes, membership: Membership,
                 controller: Controller, orders: Orders, records: Records,
                 forget: Callable[[int], bool]):
        self._store = store
        self._homes = homes
        self._membership = membership
        self._controller = controller
        self._orders = orders
        self._records = records
        self._forget = forget
        self._throttle = LogThrottle(LOG)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name='bootcache-homes', daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            self.once()

    def once(self) -> None:
        """Follow and take over; what fails is logged, and keeps nothing else from being done."""
        self._tell_who_is_away()
        self._do(('images of storage nodes that leave cannot be taken over', self._take_over),
                 # It has what was taken over looked at.
                 ('what other storage nodes write cannot be read', self._follow),
                 ('snapshots of storage nodes that leave cannot be taken over', self._adopt))

    def _do(self, *steps: tuple[str, Callable[[], object]]) -> None:
        for what, step in steps:
            try:
                step()
                self._throttle.recovered(what, 'that %s is over', what)
            except Exception as error:
                self._throttle.warning(what, '%s: %s', what, error)

    def _tell_who_is_away(self) -> None:
        if not self._membership.may_judge:
            return
        for node in self._membership.nodes():
            name, key = node.record.name, f'node {node.record.number}'
            if node.silent_seconds < AWAY_SECONDS:
                self._throttle.recovered(key, 'the storage node %s works again', name)
            elif node.state is not NodeState.UP and node.record.wish is None:
                self._throttle.warning(
                    key, 'the storage node %s is %s: "bootcache node list" tells of all nodes',
                    name, node.state)

    def _follow(self) -> None:
        self._orders.refresh()
        self._store.refresh(self._controller.queue.add)

    def _take_over(self) -> None:
        for image_id, home in self._homes.due():
            self._homes.take_over(image_id, home)
        homes = set(self._store.homes().values())
        for node in self._membership.leaving():
            if node.record.wish is NodeWish.FORGOTTEN and node.state is not NodeState.UP \
                    and node.record.number not in homes and self._forget(node.record.number):
                LOG.info('the storage node %s is forgotten', node.record.name)

    def _adopt(self) -> None:
        if not self._membership.may_judge or not self._membership.takes_images:
            return
        for node in self._membership.leaving():
            if node.state is not NodeState.UP:
                self._records.adopt(node.record.number)
