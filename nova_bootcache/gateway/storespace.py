"""The space that growing stores were to grow into: given back once they do not grow any more."""

from oslo_log import log as logging

from bootcache import exception
from bootcache.news import News
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.gateway import graph, sharedstore
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.graph import Present
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.gateway.sharedstore import SharedStore

LOG = logging.getLogger(__name__)


class StoreSpace:
    """Gives it back; for one thread.

    :param gateway: the host's.
    :param files: where growing stores lie.
    :param needs: who needs what is below disks.
    :param below: that, with the stores that this process looks after.
    """

    def __init__(self, gateway: Gateway, files: CacheFiles, needs: HostNeeds, below: Below):
        self._gateway = gateway
        self._files = files
        self._needs = needs
        self._below = below
        # Images that an earlier process may have left such stores of; None until that was looked
        # for. All later ones are this process's.
        self._left: set[str] | None = None
        self._news = News(LOG)

    def give_back(self) -> None:
        """Give back the space of those that do not grow any more, an earlier process's as well.

        While the storage node is away it stays theirs, as tables are written before.
        """
        entries = {entry.remote.image_id: entry for entry in self._files.entries()}
        if self._left is None:
            self._left = {image_id for image_id in entries if self._ahead(image_id)}
        stores = {store.name: store.grows for store in self._below.stores.stores()
                  if not store.gave_back}
        # One whose cache image is gone went with it.
        self._left &= set(entries)
        for image_id in sorted((self._left | set(stores)) & set(entries)):
            if not stores.get(image_id) and (
                    not self._ahead(image_id) or self._try(entries[image_id])):
                self._left.discard(image_id)

    def _ahead(self, image_id: str) -> list[str]:
        """Return the files of an image's stores that have space beyond their end."""
        paths = [self._files.store_path(image_id, medium) for medium in self._files.directories]
        return [path for path in paths if sharedstore.has_ahead(path)]

    def _try(self, entry: CacheEntry) -> bool:
        """Have an image's stores give back their space; return whether they did, once for all."""
        image_id = entry.remote.image_id
        try:
            # Nobody opens another one in its place meanwhile.
            with self._needs.deciding.of(image_id):
                if self._may_grow(image_id):
                    return False
                for path in self._ahead(image_id):
                    self._store_at(path, entry).give_back()
            return True
        except (exception.BootcacheError, OSError) as error:
            self._news.bad(image_id, 'image %s: its growing store keeps space that it does not'
                           ' need, for now: %s', image_id, error)
        return False

    def _may_grow(self, image_id: str) -> bool:
        """Tell whether an image's store grows, or is none that the gateway has."""
        store = self._below.stores.get(image_id)
        if store is not None and store.grows:
            return True
        kinds = self._gateway.present([image_id]).get(image_id, Present()).kinds
        return graph.FILTER in kinds or graph.STORE not in kinds

    def _store_at(self, path: str, entry: CacheEntry) -> SharedStore:
        store = self._below.stores.get(entry.remote.image_id)
        return store if store is not None and store.path == path else SharedStore(
            self._gateway, entry.remote.image_id, entry.virtual_bytes, path, 0)
