"""Images that are skipped: no longer served, as far as no server needs them, and then forgotten."""

import cachetools
from oslo_log import log as logging

from bootcache import exception, naming, steps
from bootcache.manifest import Availability, Manifest, Standing
from glance_bootcache.availability import served
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

_MOST_SHOWN = 20
_MOST_KEPT = 10_000
# By so much Nova's clock may be ahead.
_CLOCKS_SECONDS = 60
# What keeps a base.
NAMED = 'hosts, of servers there'
SERVERS = 'servers ("openstack server list --all-projects --image {}" shows them)'
NOT_KNOWN = 'servers, maybe: Nova cannot be asked for them'
CONNECTED = 'a compute host that is connected'


class Retiring:
    """Stops serving images whose record says that they are skipped.

    :param needs: which bases compute hosts need.
    :param orders: to hosts, to let go of what is forgotten.
    """

    def __init__(self, store: ImageStore, exporter: Exporters, tiers: StorageTiers,
                 profile_boots: NovaProfileBoots, needs: ReportedNeeds, orders: Orders):
        self._store = store
        self._exporter = exporter
        self._tiers = tiers
        self._profile_boots = profile_boots
        self._needs = needs
        self._orders = orders
        # Why each image's base was kept when that was asked last: for people.
        self._kept: cachetools.LRUCache[str, str] = cachetools.LRUCache(_MOST_KEPT)

    def retire(self, image_id: str) -> None:
        """Stop serving a skipped image; its base stays while ``why_needed`` says why."""
        record = self._store.load(image_id)
        if record is None or record.standing is not Standing.SKIPPED:
            return
        why = self._stop_serving(image_id, record)
        self._tiers.forget(image_id)
        steps.reached('retire: withdrawn')
        is_deleted = record.wished.availability is Availability.DELETED
        if is_deleted and not why:
            try:
                # Also hosts that hold it later: with its row what it was is forgotten.
                self._orders.add_for_all(image_id)
            except exception.DatabaseAway as error:
                LOG.warning('image %s: cannot be forgotten yet: %s', image_id, error)
                why = str(error)
        self._kept[image_id] = why
        if why:
            return
        # Before the row goes: nobody would withdraw again what a start serves by an older file.
        self._exporter.save_served()

        def is_retired(current: Manifest) -> bool:
            return current.standing is Standing.SKIPPED \
                and (current.wished.availability is Availability.DELETED) == is_deleted

        if is_deleted:
            self._store.remove(image_id, is_retired)
        else:
            self._store.change(image_id, lambda current: current.making(base_path='')
                               if is_retired(current) else current)

    def withdraw(self, image_id: str) -> None:
        """Serve an image's cache image no more for now."""
        try:
            self._exporter.retire(image_id, with_base=False)
        except exception.BootcacheError as error:
            LOG.warning('image %s: cannot be withdrawn from hosts that fetch it: %s', image_id,
                        error)

    def _stop_serving(self, image_id: str, manifest: Manifest) -> str:
        """Serve the cache image no more, and the base if no server needs it.

        :returns: why the base is served still; empty if nothing of the image is any more.
        """
        try:
            # Before Nova is asked, which may take its time.
            self._exporter.retire(image_id, with_base=False)
            if not served(manifest.wished.availability).base_to_settle:
                self._exporter.cut_off(naming.export_name(naming.EXPORT_STORED, image_id))
            why = self.why_needed(image_id)
            gone = self._exporter.retire(image_id, with_base=not why)
            return why or ('' if gone else CONNECTED)
        except exception.BootcacheError as error:
            LOG.warning('image %s: cannot be retired yet: %s', image_id, error)
            return f'the exporter: {error}'

    def why_needed(self, image_id: str) -> str:
        """Return what may need an image's base; empty if nothing does.

        Servers that are off, and read nothing, may need it. Nova does not list all servers to
        everybody: of one that was deleted and can be restored the host alone tells. And a host
        tells of a server some time after its disk was made.
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
        record, why = self._store.load(image_id), self._kept.get(image_id, '')
        is_skipped = record is not None and record.standing is Standing.SKIPPED
        return kept + [why] * (is_skipped and why not in ('', NAMED))
