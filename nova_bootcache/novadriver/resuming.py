"""Servers that Nova is to start as the host came up, and whose disks cannot be opened yet.

Nova would put them to ERROR. They wait here instead, powering on as Nova shows it, and are started
in the way in which Nova would have done it. What is remembered is Nova's own record of the server:
a nova-compute that is started again finds there who waits (novaservers.py).
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from bootcache.breaker import GrowingPauses
from bootcache.locks import leaf
from nova_bootcache.chains import chainstores
from nova_bootcache.novadriver.novaservers import PoweringOn

LOG = logging.getLogger(__name__)

PERIOD_SECONDS = 5
_LONGEST_PAUSE = 60


class Resuming:
    """Starts them, one after the other as Nova would, once what they wait for is there.

    :param place_of: gives the storage node of an image's base, None if it is not known: others of
        one that is away are not tried in the same round.
    :param patience: seconds after which a server goes to ERROR as under stock Nova.
    """

    def __init__(self, place_of: Callable[[str], Any], patience: float):
        self._place_of = place_of
        self._patience = patience
        # By server id, with the time at which it began to wait. Guarded by the lock, which is held
        # for dictionary steps.
        self._waiting: dict[str, tuple[PoweringOn, float]] = {}
        self._lock = leaf('the lock of servers that wait')
        # By image.
        self._pauses = GrowingPauses(PERIOD_SECONDS, _LONGEST_PAUSE, lambda: time.monotonic())
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def stop(self) -> None:
        """Start no more of them; Nova's next start finds them again."""
        self._stopped.set()

    def waits_for(self, error: BaseException | None) -> bool:
        """Tell whether servers wait for that to pass.

        :param error: Nova's, or what it was raised from.
        """
        return self._patience > 0 and error is not None \
            and (chainstores.passes(error) or chainstores.passes(error.__cause__))

    def start(self, server: PoweringOn, start: Callable[[], None],
              is_off: Callable[[], bool]) -> None:
        """Start a server as Nova does, or have it wait if its disk cannot be opened yet.

        :param start: Nova's.
        :param is_off: tells whether it is off, and of those that may have to wait.
        :raises Exception: Nova's, of one that does not wait; if Nova's record cannot be changed.
        """
        # Each that finds out for itself would hold up Nova's start.
        if self.has_some() and is_off():
            self.add(server, 'others wait already')
            return
        try:
            start()
        except Exception as error:
            if not self.waits_for(error):
                raise
            self.add(server, error)

    def has_some(self) -> bool:
        """Tell whether servers wait: further ones need not find out for what."""
        with self._lock:
            return bool(self._waiting)

    def add(self, server: PoweringOn, reason: object) -> None:
        """Have a server wait.

        :param reason: what it waits for.
        :raises Exception: if Nova's record of it cannot be changed.
        """
        server.hold()
        LOG.warning('bootcache: server %s, which ran when the host went down, waits to be started'
                    ' again, for %.0f s at most: %s', server.server_id, self._patience, reason)
        with self._lock:
            self._waiting[server.server_id] = server, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name='bootcache-resuming',
                                                daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_SECONDS):
            try:
                self.look()
            except Exception:
                LOG.exception('bootcache: the servers that wait are looked at again')
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return

    def look(self) -> None:
        """Try each server that waits, and is to be tried now."""
        with self._lock:
            found = list(self._waiting.values())
        away = set()
        for server, since in found:
            place = self._place_of(server.image_id)
            if self._stopped.is_set():
                return
            if not self._pauses.is_time(server.image_id) \
                    or (place is not None and place in away):
                continue
            if self._try(server, since):
                self._pauses.forget(server.image_id)
                continue
            self._pauses.postpone(server.image_id)
            away.add(place)

    def _try(self, server: PoweringOn, since: float) -> bool:
        """Start a server if that is possible; False if it goes on waiting."""
        try:
            # Without Nova's lock of it: it may be deleted meanwhile.
            server.open_chain()
            if server.resume():
                LOG.info('bootcache: server %s, which ran when the host went down, is started after'
                         ' %.0f s', server.server_id, time.monotonic() - since)
            else:
                LOG.info('bootcache: server %s is not to be started any more', server.server_id)
        except Exception as error:
            if self.waits_for(error) and time.monotonic() - since < self._patience:
                LOG.debug('bootcache: server %s waits: %s', server.server_id, error)
                return False
            LOG.exception('bootcache: server %s, which ran when the host went down, cannot be'
                          ' started', server.server_id)
            server.give_up()
        with self._lock:
            self._waiting.pop(server.server_id, None)
        return True
