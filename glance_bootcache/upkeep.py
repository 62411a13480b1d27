"""What the storage service does by itself, now and then: serving, quotas, and a sweep of Glance."""

import functools
import threading
import time
from collections.abc import Callable, Collection, Sequence

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import certificates, naming, tls
from bootcache import conf as bootcache_conf
from bootcache.cachelayout import Compression
from bootcache.manifest import Manifest
from bootcache.util.backoff import Backoff
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache import away
from glance_bootcache.glance import images as glance_images
from glance_bootcache.glance.images import Images
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images import policy
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.nodes.leftovers import Leftovers
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage import serving
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

_LONGEST_PAUSE = 3600
_SWEEP_SECONDS = 3600
# In which an event of a change comes.
_UNHEARD_SECONDS = 60
# After which what nobody uses is no more served; who asks has it again within milliseconds.
_EXPORT_IDLE = 900

# All images' manifests, read when the first step of a round asks. A step that acts on one after
# Glance, Nova or the exporter was asked reads that one anew.
_Manifests = Callable[[], Sequence[Manifest]]


class ServiceUpkeep:
    """Starts what serves, and looks after it every ``[bootcache]poll_interval`` seconds.

    :param conf: configuration of the storage service.
    :param needs: which bases compute hosts need.
    :param leftovers: what this node need not have.
    :param clock: monotonic seconds.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, exporter: Exporters,
                 tiers: StorageTiers, profile_boots: NovaProfileBoots, controller: Controller,
                 running: Running, disk_room: DiskRoom, needs: ReportedNeeds,
                 leftovers: Leftovers, clock: Callable[[], float] = time.monotonic):
        self._conf = conf[bootcache_conf.GROUP]
        self._store = store
        self._exporter = exporter
        self._tiers = tiers
        self._profile_boots = profile_boots
        self._controller = controller
        self._running = running
        self._disk_room = disk_room
        self._images = images
        self._needs = needs
        self._leftovers = leftovers
        self._ceph = CephBases(conf)
        self._expiry = certificates.configured(self._conf, tls.Endpoint.SERVER)
        self.recovered = False
        # When cache images are built anew that are stored in another way than is wanted.
        self._recompressed = Backoff(self._conf.poll_interval, _LONGEST_PAUSE, clock)
        self._throttle = LogThrottle(LOG)
        self._sweeps = Backoff(_SWEEP_SECONDS, clock=clock)
        self._host_sweeps = Backoff(_SWEEP_SECONDS, clock=clock)
        # Images that had a cache image in the last round.
        self._cached: frozenset[str] = frozenset()
        # What the last sweep found: images that are active, and who may see shared ones.
        self._active: set[str] | None = None
        self._members: dict[str, frozenset[str]] = {}
        # Tell, once, of what no row names.
        self._untold: list[Callable[[], None]] = [
            profile_boots.tell_unnamed, lambda: self._ceph.tell_unnamed(store.files)]
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin; bases are served already."""
        # Nothing that servers read waits for Glance or Nova.
        for name, once in ('serving', self._serve), ('housekeeping', self._keep_house):
            threading.Thread(target=self._run, args=(once,), name=f'bootcache-{name}',
                             daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()
        self._exporter.save_served()

    def _run(self, once: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            once()
            self._stopping.wait(self._conf.poll_interval)

    def once(self) -> None:
        """Do all of it once; what fails is logged, and keeps nothing else from being done."""
        self._serve()
        self._keep_house()

    def _serve(self) -> None:
        manifests = functools.cache(self._store.manifests)
        self._do(('the exporter does not serve', lambda: self.keep_serving(manifests)),
                 ('bases cannot be served or given up', lambda: self.keep_needed(manifests())))

    def _keep_house(self) -> None:
        manifests = functools.cache(self._store.manifests)
        self._do(('images\' rows cannot be read again', self.refresh),
                 ('images cannot be looked at', self.recover),
                 ('hosts that are gone cannot be forgotten', self.forget_hosts),
                 ('servers of profile boots cannot be deleted', self._profile_boots.remove_retired),
                 ('images that are gone cannot be forgotten',
                  lambda: self._tiers.forget_gone(manifests())),
                 ('the quota cannot be kept', lambda: self._disk_room.keep_quota(manifests())),
                 ('cache images cannot be built anew', lambda: self.recompress(manifests())),
                 ('images without a cache image cannot be looked at',
                  lambda: self.look_at_evicted(manifests())),
                 ('Glance cannot be asked what it has', self.sweep),
                 ('certificates that end cannot be told of', self._expiry.look),
                 ('what has moved or is gone cannot be given up', self._leftovers.remove),
                 ('files that nothing needs cannot be removed', self._store.remove_retired),
                 ('bases in Ceph that nothing needs cannot be removed',
                  lambda: self._ceph.remove_retired(self._store.files)),
                 ('what no row names cannot be looked for', self.tell_unnamed))

    def _do(self, *steps: tuple[str, Callable[[], None]]) -> None:
        for what, step in steps:
            if self._stopping.is_set():
                return
            try:
                step()
                self._throttle.recovered(what, 'that %s is over', what)
            except Exception as error:
                self._throttle.warning(what, '%s: %s; it is tried again in %d s', what,
                                       away.lasting(away.told(error)), self._conf.poll_interval)

    def refresh(self) -> None:
        """Look at images whose rows are others than in memory.

        :raises DatabaseAway: if the database does not answer, or does not have a row any more.
        """
        self._store.refresh(self._controller.queue.add)

    def sweep(self) -> None:
        """Compare Glance's images with those that are known, once in an hour.

        What the sweep finds and no event told are lost notifications: images that went, changed, or
        became active since the last sweep. Images of which there are files here and no row are of
        a database that was lost; they are taken up as if their owners had just registered them.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        if not self.recovered or not self._sweeps.acquire():
            return
        # Each node sweeps, and acts on what it works on, and on what nobody does.
        known = {record.image_id: record for record in self._store.manifests()}
        elsewhere = set(self._store.homes()) - known.keys()
        here = set(self._store.files.images())
        active, changed, lost = set(), set(), set()
        for image in self._images.all():
            if image.status == 'active':
                active.add(image.image_id)
            if image.image_id in elsewhere:
                continue
            # An event of what has just changed may be on its way.
            if time.time() - glance_images.changed_at(image) > _UNHEARD_SECONDS and (
                    self._controller.has_changed(image) if image.image_id in known
                    else self._active is not None and image.status == 'active'
                    and image.image_id not in self._active):
                changed.add(image.image_id)
            if image.image_id in here and image.image_id not in known:
                lost.add(image.image_id)
            if known.pop(image.image_id, None) is not None and image.visibility == 'shared':
                self._compare_members(image.image_id)
        self._active = active
        if changed:
            LOG.warning('Glance sent no notification of %d images on the topic %s, of %s for'
                        ' instance: name it in [oslo_messaging_notifications]topics of'
                        ' glance-api.conf, with driver = messagingv2', len(changed),
                        self._conf.notification_topic, min(changed))
        for image_id in (*changed, *lost, *known):
            self._controller.image_changed(image_id)

    def forget_hosts(self) -> None:
        """Forget hosts that were silent for a day and need nothing; and, once in an hour, those
        that Nova does not have any more.

        :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked.
        """
        self._needs.forget_silent()
        if self._host_sweeps.acquire():
            self._needs.forget_gone(self._profile_boots.compute_hosts())

    def _compare_members(self, image_id: str) -> None:
        """Have hosts let go of a shared image that fewer projects may see than before."""
        members = self._images.members(image_id)
        if self._members.get(image_id, frozenset()) - members:
            self._controller.let_go(image_id)
        self._members[image_id] = members

    def recover(self) -> None:
        """Look at all images, once: they may have changed since an earlier process."""
        if not self.recovered:
            self._controller.look_at_all()
            self.recovered = True

    def tell_unnamed(self) -> None:
        """Log, once, what there is in Nova and Ceph as this service makes it, and has no row.

        :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked; or Ceph's.
        """
        for tell in tuple(self._untold):
            tell()
            self._untold.remove(tell)

    def keep_serving(self, manifests: _Manifests) -> None:
        """Start the exporter if it has ended, and serve what it served.

        :param manifests: all, read when the exporter was looked at, and serves what it served.
        :raises StorageDaemonError: if it does not come up.
        """
        def serve_again(exports: Collection[str], certificate: str) -> None:
            # Of an exporter that was ended; also what the database does not have any more.
            self._exporter.serve_as_before([each for each in exports if self._store.known(
                naming.image_of(each)) is None], certificate)
            serving.serve_again(self._store.known, exports, functools.partial(
                self._tiers.serve, certificates=(certificate,)))

        if self._exporter.start(serve_again):
            self._exporter.serve_as_before()
            serving.serve_all(self._store.manifests(), self._tiers.serve)
        self._exporter.keep_open(manifests())
        self._exporter.save_served()

    def keep_needed(self, manifests: Sequence[Manifest]) -> None:
        """Serve the bases that hosts need, and no more those that nobody has needed for a while.

        One of an exporter that hangs keeps no other one from it.

        :param manifests: of all images.
        :raises StorageDaemonError: if an exporter does not answer.
        """
        untold = self._exporter.untold()
        needed_by: dict[str, Collection[str]] = {}
        for manifest in manifests:
            image_id = manifest.image_id
            if not serving.has_base(manifest):
                continue
            whose: set[str] = set()
            if self._needs.needed(image_id):
                whose = self._exporter.of_hosts(self._needs.hosts(image_id))
                # The exporter and Ceph were asked since.
                current = self._store.known(image_id)
                if current is not None and serving.has_base(current):
                    serving.serve(current, functools.partial(self._tiers.serve,
                                                             certificates=whose - untold))
            if self._running.of(image_id) is None:
                needed_by[image_id] = whose
        try:
            self._exporter.withdraw_idle(needed_by, _EXPORT_IDLE)
        finally:
            self._exporter.end_unused(_EXPORT_IDLE)

    def look_at_evicted(self, manifests: Sequence[Manifest]) -> None:
        """Look at images whose cache image was evicted or lost: Glance shows them as ready.

        :param manifests: of all images.
        """
        for manifest in manifests:
            if manifest.made.cache_image is None and manifest.image_id in self._cached:
                self._controller.image_changed(manifest.image_id)
        self._cached = frozenset(manifest.image_id for manifest in manifests
                                 if manifest.made.cache_image is not None)

    def recompress(self, manifests: Sequence[Manifest]) -> None:
        """Build one cache image anew that is stored in another way than [bootcache]compression
        says, if nothing else is in hand, and it has room beside all that is there.

        :param manifests: of all images.
        """
        if not self.recovered or self._running.images():
            return
        compression = Compression(self._conf.compression)

        def is_due(manifest: Manifest | None) -> bool:
            return manifest is not None and serving.has_base(manifest) \
                and policy.is_to_be_recompressed(manifest, compression)

        stored_otherwise = [manifest.image_id for manifest in manifests if is_due(manifest)]
        self._recompressed.keep_only(stored_otherwise)
        for image_id in stored_otherwise:
            if is_due(self._store.load(image_id)) and self._recompressed.acquire(image_id):
                self._controller.recompress(image_id)
                return
