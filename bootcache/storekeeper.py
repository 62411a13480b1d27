"""Looking at growing stores while they grow, so that their limits are kept."""

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from oslo_log import log as logging

from bootcache import exception
from bootcache.locks import leaf

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.05


class KeptStore(Protocol):
    """What a keeper has to know of a store."""

    name: str
    grows: bool

    def look(self, now: float) -> bool:
        """Look at it, keep its limit if it has one, and tell whether it still grows.

        :param now: monotonic seconds.
        :raises StorageDaemonError: if it is gone.
        """


Kept = TypeVar('Kept', bound=KeptStore)


class StoreKeeper(Generic[Kept]):
    """Looks at growing stores in a thread of its own, and so keeps their limits.

    :param failed: called with a store whose daemon does not answer.
    """

    def __init__(self, failed: Callable[[Kept, Exception], None] | None = None):
        self._failed = failed
        # By name; guarded by the lock.
        self._stores: dict[str, Kept] = {}
        self._lock = leaf('the lock of the list of stores')
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._wanted = threading.Event()

    def add(self, store: Kept) -> None:
        """Begin to look at a store; the thread that looks is started with the first one.

        :raises RuntimeError: if no thread can be started; the store is not looked at.
        """
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._watch, name='bootcache-stores', daemon=True)
                thread.start()
                self._thread = thread
            self._stores[store.name] = store
        self._wanted.set()

    def get(self, name: str) -> Kept | None:
        """Return the store of a name, if there is one."""
        with self._lock:
            return self._stores.get(name)

    def stores(self) -> list[Kept]:
        """Return all stores."""
        with self._lock:
            return list(self._stores.values())

    def remove(self, name: str) -> Kept | None:
        """Look at the store of a name no more, and return it."""
        with self._lock:
            return self._stores.pop(name, None)

    def stop(self) -> None:
        """Look at none any more."""
        self._stopped.set()
        self._wanted.set()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            growing = False
            # One that is added from now on is looked at again at once.
            self._wanted.clear()
            for store in self.stores():
                try:
                    growing |= store.look(time.monotonic())
                except exception.StorageDaemonBusy as error:
                    # It has the store all the same.
                    LOG.debug('the growing store of %s is looked at later: %s',
                              store.name, error)
                    growing = True
                except Exception as error:
                    LOG.warning('the growing store of %s is lost: %s', store.name, error)
                    with self._lock:
                        # Another one may have taken its place while this was found out.
                        if self._stores.get(store.name) is store:
                            del self._stores[store.name]
                    store.grows = False
                    self._tell(store, error)
            if growing:
                self._stopped.wait(LOOK_SECONDS)
            else:
                # A store that does not grow may still be asked for how long it has been idle.
                self._wanted.wait(1.0)

    def _tell(self, store: Kept, error: Exception) -> None:
        if self._failed is not None:
            try:
                self._failed(store, error)
            except Exception:
                # Others are looked at all the same.
                LOG.exception('the growing store of %s is lost, and is not cleared up',
                              store.name)
