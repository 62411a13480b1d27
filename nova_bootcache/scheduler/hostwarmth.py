"""What nova-scheduler knows of hosts' warmth: what they publish, and what it chose itself.

Nova makes new host states for each request, so what is remembered is kept here by the host's name.
All of this is one scheduler worker's own knowledge.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from nova.scheduler import host_manager
from oslo_log import log as logging

from bootcache.rpc import messages
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Level, WarmthEntry

LOG = logging.getLogger(__name__)

# Hosts publish once a minute; one that was chosen and still does not have the image did not get it.
CHOSEN_SECONDS = 150.0


def requested_image(request_spec: Any) -> str | None:
    """Return the id of the image that a server is to boot from, None if there is none."""
    image = request_spec.image
    if image is None or 'id' not in image or not image.id:
        return None
    return str(image.id)


def is_profile_boot(request_spec: Any) -> bool:
    """Tell whether a server says that it is a profile boot; it need not be true."""
    return request_spec.get_scheduler_hint(messages.PROFILE_HINT) is not None


def is_rebuild(request_spec: Any) -> bool:
    """Tell whether a server is to be made anew where it is, from another image."""
    return bool(request_spec.get_scheduler_hint('_nova_check_type') == 'rebuild')


class HostWarmth:
    """How warm hosts are, by what they publish and by what was chosen in the last moments.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        # By host and node: the published text, and what was read from it; threads may at worst
        # read the same text twice.
        self._entries: dict[tuple[str, str], tuple[str, WarmthEntry]] = {}
        # By image's key: until when which hosts count as chosen. Guarded by the lock.
        self._chosen: dict[str, dict[tuple[str, str], float]] = {}
        self._lock = threading.Lock()

    def entry(self, host_state: Any) -> WarmthEntry:
        """Return what a host publishes; nothing if it is damaged or of another version."""
        # A compute node without a record yet has no stats.
        stats = getattr(host_state, 'stats', None)
        text = stats.get(warmth.STATS_KEY) if stats else None
        if text is None:
            return warmth.NOTHING
        name = host_state.host, host_state.nodename
        known = self._entries.get(name)
        if known is not None and known[0] == text:
            return known[1]
        return self._read(host_state, name, text)

    def _read(self, host_state: Any, name: tuple[str, str], text: str) -> WarmthEntry:
        try:
            entry = warmth.decode(text)
        except (ValueError, RecursionError) as error:
            LOG.warning('host %s: what it publishes of its cache images is not understood and'
                        ' counts as nothing: %s', host_state.host, error)
            entry = warmth.NOTHING
        self._entries[name] = text, entry
        return entry

    def chosen(self, image_key: str) -> frozenset[tuple[str, str]]:
        """Return the hosts and nodes that were chosen for an image in the last moments."""
        with self._lock:
            hosts = self._chosen.get(image_key)
            if not hosts:
                return frozenset()
            now = self._clock()
            for name in [name for name, until in hosts.items() if until < now]:
                del hosts[name]
            return frozenset(hosts)

    def choose(self, host_state: Any, image_key: str) -> None:
        """Note that a server of an image is to boot on a host: the image will arrive there."""
        with self._lock:
            now = self._clock()
            if image_key not in self._chosen:
                for key in [key for key, hosts in self._chosen.items()
                            if all(until < now for until in hosts.values())]:
                    del self._chosen[key]
            self._chosen.setdefault(image_key, {})[host_state.host, host_state.nodename] \
                = now + CHOSEN_SECONDS

    def levels(self, host_states: list[Any], image_key: str) -> list[Level]:
        """Return how warm hosts are for an image, in their order."""
        entry = self.entry
        found = [entry(host_state).level(image_key) for host_state in host_states]
        chosen = self.chosen(image_key)
        if chosen:
            for number, host_state in enumerate(host_states):
                if (host_state.host, host_state.nodename) in chosen:
                    found[number] = max(found[number], Level.ARRIVING)
        return found


# Of this process; the weigher and the filter share it.
HOSTS = HostWarmth()


def follow_choices(hosts: HostWarmth = HOSTS) -> None:
    """Have Nova's host states tell of each choice; once for a process.

    Nova has no interface for it: :meth:`HostState.consume_from_request` is what its scheduler
    calls on the host that it chose (tests/unit/nova_bootcache/test_nova_internals.py).
    """
    stock = getattr(host_manager.HostState, 'consume_from_request', None)
    if stock is None:
        LOG.warning('bootcache: this Nova does not tell of the scheduler\'s choices; servers of one'
                    ' image that start within a minute may be spread over cold hosts')
        return
    if getattr(stock, 'is_followed', False):
        return

    @functools.wraps(stock)
    def consume_from_request(self: Any, spec_obj: Any) -> Any:
        result = stock(self, spec_obj)
        image_id = requested_image(spec_obj)
        # A profile boot leaves no cache image where it ran.
        if image_id is not None and warmth.STATS_KEY in (self.stats or {}) \
                and not is_profile_boot(spec_obj):
            hosts.choose(self, warmth.image_key(image_id))
        return result

    consume_from_request.is_followed = True  # type: ignore[attr-defined]
    host_manager.HostState.consume_from_request = consume_from_request
