"""Images that are skipped: no longer given out at once, and forgotten when no server needs them."""

import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception, naming, steps
from bootcache.manifest import Availability, Manifest, Standing
from glance_bootcache.availability import served
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# Of a round. Where Nova hangs it takes a minute to find that out, and others wait for this thread.
ROUND_SECONDS = 30
_MOST_SHOWN = 20
# By so much Nova's clock may be ahead.
_CLOCKS_SECONDS = 60
# What keeps a base.
NAMED = 'hosts, of servers there'
SERVERS = 'servers ("openstack server list --all-projects --image {}" shows them)'
NOT_KNOWN = 'servers, maybe: Nova cannot be asked for them'
CONNECTED = 'a compute host that is connected'


class Retiring:
    """Stops serving images whose manifest says that they are skipped.

    :param store: its lock guards what is waiting, too.
    :param needs: which bases compute hosts need.
    :param hosts: let go of what is forgotten.
    :param clock: monotonic seconds.
    """

    def __init__(self, store: ImageStore, exporter: Exporters, tiers: StorageTiers,
                 profile_boots: NovaProfileBoots, needs: ReportedNeeds, hosts: Hosts,
                 clock: Callable[[], float] = time.monotonic):
        self._store = store
        self._exporter = exporter
        self._tiers = tiers
        self._profile_boots = profile_boots
        self._needs = needs
        self._hosts = hosts
        self._clock = clock
        # Images whose base is still read, or could not be given up, and why; the one that was
        # looked at last at the end. Guarded by the store's lock.
        self._waiting: dict[str, str] = {}

    def waiting(self) -> list[str]:
        """Return the images that are looked at with the next ``retry``, in this order."""
        with self._store.lock:
            return list(self._waiting)

    def later(self, image_id: str) -> None:
        """Look at a skipped image with the next ``retry``."""
        with self._store.lock:
            self._waiting.setdefault(image_id, '')

    def retry(self) -> None:
        """Go on with the images whose base was in use, until the time of a round is over."""
        until = self._clock() + ROUND_SECONDS
        for image_id in self.waiting():
            if self._clock() >= until:
                return
            self.retire(image_id)

    def retire(self, image_id: str) -> None:
        """Stop serving a skipped image; its base stays while ``is_needed``."""
        with self._store.lock:
            manifest = self._store.load(image_id)
            self._waiting.pop(image_id, None)
            if manifest is not None and manifest.standing is not Standing.SKIPPED:
                return
        why = self._stop_serving(image_id, manifest)
        self._tiers.forget(image_id)
        steps.reached('retire: withdrawn')
        why = why or self._let_go_if_deleted(image_id)
        with self._store.lock:
            manifest = self._store.load(image_id)
            if manifest is None or manifest.standing is not Standing.SKIPPED:
                return
            is_deleted = manifest.wished.availability is Availability.DELETED
            if why or (is_deleted and not self._hosts.is_let_go(image_id)):
                # Or it was deleted just now.
                self._waiting[image_id] = why
                return
        try:
            if is_deleted:
                self._store.remove(image_id, lambda known: known.standing is Standing.SKIPPED
                                   and known.wished.availability is Availability.DELETED)
            else:
                self._store.change(image_id, lambda known: known.making(base_path='')
                                   if known.standing is Standing.SKIPPED else known)
        except exception.DatabaseAway:
            self.later(image_id)
            raise

    def _let_go_if_deleted(self, image_id: str) -> str:
        """Have all hosts let go of an image before it is forgotten: that is a row of the database.

        :returns: why that cannot be yet; empty if it is done, or is not to be.
        """
        manifest = self._store.load(image_id)
        if manifest is None or manifest.wished.availability is not Availability.DELETED:
            return ''
        try:
            self._hosts.let_go(image_id)
        except exception.DatabaseAway as error:
            LOG.warning('image %s: cannot be forgotten yet: %s', image_id, error)
            return str(error)
        return ''

    def withdraw(self, image_id: str) -> None:
        """Serve an image's cache image no more for now."""
        try:
            self._exporter.retire(image_id, with_base=False)
        except exception.BootcacheError as error:
            LOG.warning('image %s: cannot be withdrawn from hosts that fetch it: %s', image_id,
                        error)

    def _stop_serving(self, image_id: str, manifest: Manifest | None) -> str:
        """Serve the cache image no more, and the base if no server needs it.

        :returns: why the base is served still; empty if nothing of the image is any more.
        """
        try:
            # Before Nova is asked, which may take its time.
            self._exporter.retire(image_id, with_base=False)
            if manifest is not None and not served(manifest.wished.availability).base_to_settle:
                self._exporter.cut_off(naming.export_name(naming.EXPORT_STORED, image_id))
            why = self.why_needed(image_id)
            gone = self._exporter.retire(image_id, with_base=not why)
            return why or ('' if gone else CONNECTED)
        except exception.BootcacheError as error:
            LOG.warning('image %s: cannot be retired yet: %s', image_id, error)
            return f'the exporter: {error}'

    def is_needed(self, image_id: str) -> bool:
        """Tell whether servers may need an image's base, also such as are off and read nothing."""
        return bool(self.why_needed(image_id))

    def why_needed(self, image_id: str) -> str:
        """Return what may need an image's base; empty if nothing does.

        Nova does not list all servers to everybody: of one that was deleted and can be restored
        the host alone tells. And a host tells of a server some time after its disk was made.
        Servers that were created after another content was taken up went the stock way.
        """
        manifest = self._store.load(image_id)
        before = None
        if manifest is not None and manifest.taken_up_at and manifest.image_hash \
                and manifest.image_hash != manifest.made.base_hash:
            before = manifest.taken_up_at + _CLOCKS_SECONDS
        if self._needs.hosts(image_id):
            return NAMED
        try:
            return SERVERS.format(image_id) \
                if self._profile_boots.has_servers(image_id, before) else ''
        except Exception as error:
            LOG.warning('image %s: Nova cannot be asked for its servers: %s', image_id, error)
            return NOT_KNOWN

    def kept_for(self, image_id: str) -> list[str]:
        """Return what keeps an image's base, for people: hosts, and what else was found last.

        The hosts that say so are told whatever the image's state.
        """
        hosts = self._needs.hosts(image_id)
        kept = [f'host {name}' for name in hosts[:_MOST_SHOWN]]
        if len(hosts) > _MOST_SHOWN:
            kept.append(f'{len(hosts) - _MOST_SHOWN} more')
        with self._store.lock:
            why = self._waiting.get(image_id, '')
        return kept + [why] * (why not in ('', NAMED))
