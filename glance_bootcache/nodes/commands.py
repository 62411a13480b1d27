"""What operators ask of storage nodes: ``bootcache node``."""

import collections
from typing import Any

from oslo_log import log as logging

from bootcache.exception import RequestRefused
from bootcache.rpc.messages import NodeWish
from glance_bootcache.db.engine import Database
from glance_bootcache.nodes import node
from glance_bootcache.nodes.membership import Membership, NodeState
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)


class NodeCommands:
    """Answers them; bootcache.rpc.messages has the meaning of the answers."""

    def __init__(self, database: Database, membership: Membership, store: ImageStore):
        self._database = database
        self._membership = membership
        self._store = store

    def list_nodes(self) -> list[dict[str, Any]]:
        """Return the storage nodes: see ListNodes."""
        images = collections.Counter(self._store.homes().values())
        return [{'name': one.record.name, 'state': one.state.value,
                 'wish': one.record.wish and one.record.wish.value,
                 'restored': one.record.is_restored, 'silent': round(one.silent_seconds, 1),
                 'images': images[one.record.number], 'free_bytes': one.record.free_bytes,
                 'rpc': one.record.rpc, 'answers': one.record.number == self._membership.own}
                for one in self._membership.nodes()]

    def set_wish(self, name: str, wanted: NodeWish | None) -> bool:
        """Write what an operator wants of a node: see SetNodeWish.

        :raises RequestRefused: if it is to be forgotten, and works; or is to be drained, and no
            other one takes its images.
        :raises DatabaseAway: if it cannot be written.
        """
        nodes = self._membership.nodes()
        found = next((one for one in nodes if one.record.name == name), None)
        if wanted is NodeWish.FORGOTTEN and found is not None and found.state is NodeState.UP:
            raise RequestRefused(
                f'the storage node {name} works, or it is not known yet that it does not; stop its'
                ' glance-bootcache, and ask again after 20 s')
        if wanted is not None and not any(one.takes_images and one.record.name != name
                                          for one in nodes):
            raise RequestRefused(
                f'no other storage node works that could take the images of {name}; "bootcache node'
                ' list" shows them')
        is_known = node.wish(self._database, name, wanted)
        if is_known:
            LOG.info('the storage node %s is %s, as an operator says', name,
                     'to work as all others' if wanted is None else f'to be {wanted.value}')
        return is_known
