"""What the storage service does by itself, now and then: recovery, retries, serving, quotas."""

import functools
import threading
import time
from collections.abc import Callable, Collection, Iterable

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, expiry, tls
from bootcache.cachelayout import Compression
from bootcache.manifest import Standing
from bootcache.news import News
from bootcache.pauses import GrowingPauses
from glance_bootcache import away, decisions
from glance_bootcache.glance import listener
from glance_bootcache.glance.images import Images
from glance_bootcache.glance.listener import ImageEvents
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.images.manager import Manager
from glance_bootcache.images.oldercontent import OlderContent
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage import serving
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# In a row, after which Glance counts as being away.
_MOST_FAILURES = 3
_LONGEST_PAUSE = 3600


class ServiceUpkeep:
    """Starts what serves, and looks after it every ``[bootcache]poll_interval`` seconds.

    :param conf: configuration of the storage service.
    :param events: Glance's notifications.
    :param needs: which bases compute hosts need.
    :param clock: monotonic seconds.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, exporter: Exporters,
                 tiers: StorageTiers, profile_boots: NovaProfileBoots, manager: Manager,
                 events: ImageEvents, needs: ReportedNeeds,
                 clock: Callable[[], float] = time.monotonic):
        self._conf = conf[bootcache_conf.GROUP]
        self._store = store
        self._exporter = exporter
        self._tiers = tiers
        self._profile_boots = profile_boots
        self._manager = manager
        self._images = images
        self._events = events
        self._needs = needs
        self._ceph = CephBases(conf)
        self._expiry = expiry.configured(self._conf, tls.Endpoint.SERVER)
        self.older = OlderContent(store, manager)
        self.recovered = False
        # When images that were put off are tried again.
        self._put_off = GrowingPauses(self._conf.poll_interval, _LONGEST_PAUSE, clock)
        # When cache images are built anew that are stored in another way than is wanted.
        self._recompressed = GrowingPauses(self._conf.poll_interval, _LONGEST_PAUSE, clock)
        self._told_unheard = False
        self._news = News(LOG)
        self._stopping = threading.Event()

    def start(self) -> None:
        """End what an earlier process left, and go on with its work; bases are served already."""
        for manifest in self._store.manifests():
            if manifest.standing is Standing.SKIPPED and serving.has_base(manifest):
                self._manager.retiring.later(manifest.image_id)
        threading.Thread(target=self._run, name='bootcache-housekeeping', daemon=True).start()

    def revoke(self) -> None:
        """Take back what was built of images that other rules than those of now accepted.

        They are looked at again with all others, see ``recover``.

        :raises OSError: if a manifest cannot be written.
        """
        for manifest in self._store.manifests():
            if decisions.is_by_other_rules(manifest) and manifest.standing is not Standing.SKIPPED:
                LOG.warning('image %s: %s', manifest.image_id, decisions.OTHER_RULES)
                self._store.change(manifest.image_id,
                                   lambda known: decisions.revoked(known, time.time()))

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.once()
            self._stopping.wait(self._conf.poll_interval)

    def once(self) -> None:
        """Do all of it once; what fails is logged, and keeps nothing else from being done."""
        for what, step in (('what an earlier process left cannot be ended yet', self.recover),
                           ('the exporter does not serve', self.keep_serving),
                           ('bases cannot be served or given up', self.keep_needed),
                           ('what hosts need cannot be written', self._needs.save),
                           ('images cannot be retired yet', self._manager.retiring.retry),
                           ('changes that were not written cannot be followed',
                            self._manager.write_again),
                           ('servers of profile boots cannot be deleted', self.delete_left),
                           ('images that wait cannot be looked at', self.go_on),
                           ('images of another content cannot be looked at', self.older.retry),
                           ('cache images cannot be built anew', self.recompress),
                           ('last uses cannot be written', self._tiers.save_usage),
                           ('the quota cannot be kept', self._manager.disk_room.keep_quota),
                           ('Glance cannot be asked what it has', self._manager.gone.ask),
                           ('states cannot be shown', self._manager.shown.again),
                           ('notifications cannot be told of', self.listen),
                           ('certificates that end cannot be told of', self._expiry.look),
                           ('bases in Ceph that nothing needs cannot be removed',
                            self.sweep_clones)):
            if self._stopping.is_set():
                return
            try:
                step()
                self._news.mended(what, 'that %s is over', what)
            except Exception as error:
                self._news.bad(what, '%s: %s; it is tried again in %d s', what,
                               away.lasting(away.told(error)), self._conf.poll_interval)

    def listen(self) -> None:
        """Tell, once, that Glance's notifications do not come."""
        if not self._told_unheard and listener.is_unheard(
                self._images.shown_at, self._events.heard_at, time.monotonic()):
            self._told_unheard = True
            LOG.warning('Glance has changed an image for this service, and sent no notification of'
                        ' it on the topic %s: images that are uploaded are not noticed; name it in'
                        ' [oslo_messaging_notifications]topics of glance-api.conf, with driver ='
                        ' messagingv2', self._conf.notification_topic)

    def recover(self) -> None:
        """End what an earlier process left, before anything is begun; once.

        All images are looked at: they may have changed while nobody listened.

        :raises OSError: if what is revoked cannot be written.
        :raises Exception: keystoneauth's, glanceclient's or novaclient's, if one cannot be asked.
        """
        if self.recovered:
            return
        self.revoke()
        self._profile_boots.remove_leftovers(self._manager.jobs.tokens)
        for manifest in self._store.manifests():
            with self._store.lock:
                current = self._store.load(manifest.image_id)
                if current is not None and self._manager.jobs.of(manifest.image_id) is None:
                    self._store.sweep(current)
        # Those about which Glance does not answer are unseen, and looked at by ``go_on``.
        self._consider(manifest.image_id for manifest in self._store.manifests())
        self.recovered = True

    def sweep_clones(self) -> None:
        """Remove bases from Ceph that a crash left, or that were given up.

        :raises BootcacheError: if Ceph does not answer, or says no.
        """
        self._ceph.sweep(self._is_needed)

    def _is_needed(self, image_id: str, path: str) -> bool:
        with self._store.lock:
            manifest = self._store.load(image_id)
            return self._store.is_damaged(image_id) \
                or self._manager.jobs.of(image_id) is not None \
                or (manifest is not None and manifest.made.base_path == path)

    def delete_left(self) -> None:
        """Delete servers of profile boots that could not be when these were over.

        :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked.
        """
        self._profile_boots.delete_left(self._manager.jobs.tokens)

    def keep_serving(self) -> None:
        """Start the exporter if it has ended, and serve what it served.

        :raises StorageDaemonError: if it does not come up.
        """
        if self._exporter.start(lambda exports, certificate: serving.serve_again(
                self._store.manifests(), exports,
                functools.partial(self._tiers.serve, certificates=(certificate,)))):
            serving.serve_all(self._store.manifests(), self._tiers.serve)
        self._exporter.keep_open(self._store.manifests())

    def keep_needed(self) -> None:
        """Serve the bases that hosts need, and no more those that nobody has needed for a while.

        One of an exporter that hangs keeps no other one from it.

        :raises StorageDaemonError: if an exporter does not answer.
        """
        failed = None
        for manifest in self._store.manifests():
            image_id = manifest.image_id
            if not serving.has_base(manifest):
                continue
            needed_by: Collection[str] = ()
            if self._needs.needed(image_id):
                needed_by = self._exporter.of_hosts(self._needs.hosts(image_id))
                serving.serve(manifest, functools.partial(self._tiers.serve,
                                                          certificates=needed_by))
            if self._manager.jobs.of(image_id) is None:
                try:
                    self._exporter.withdraw_idle(image_id, self._conf.export_idle, needed_by)
                except exception.StorageDaemonError as error:
                    failed = error
        self._exporter.end_unused(self._conf.export_idle)
        if failed is not None:
            raise failed

    def go_on(self) -> None:
        """Take up images that wait: announced but not active yet, or left by an earlier process.

        First of all those that changed while Glance did not answer: they may be withdrawn.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        self._consider(self._manager.unseen())
        if not self.recovered:
            # With Nova away, what is begun would fail for good.
            return
        waiting = [manifest for manifest in self._store.manifests()
                   if manifest.standing is Standing.WANTED
                   and self._manager.jobs.of(manifest.image_id) is None
                   and not self._manager.awaits(manifest)]
        self._consider(manifest.image_id for manifest in waiting
                       if not decisions.is_put_off(manifest))
        self._try_again([manifest.image_id for manifest in waiting
                         if decisions.is_put_off(manifest)])

    def recompress(self) -> None:
        """Build one cache image anew that is stored in another way than [bootcache]compression
        says, if nothing else is in hand, and it has room beside all that is there."""
        if not self.recovered or self._manager.jobs.images():
            return
        compression = Compression(self._conf.compression)
        stored_otherwise = [manifest.image_id for manifest in self._store.manifests()
                            if decisions.is_to_be_recompressed(manifest, compression)
                            and serving.has_base(manifest)]
        self._recompressed.keep_only(stored_otherwise)
        for image_id in stored_otherwise:
            if self._recompressed.is_time(image_id):
                self._recompressed.postpone(image_id)
                self._manager.rebuild(image_id, in_passing=True)
                return

    def _try_again(self, put_off: list[str]) -> None:
        """Take up images that the storage node could not make, with growing pauses.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        # What is tried just now may come back: its pause is kept.
        self._put_off.keep_only({*put_off, *self._manager.jobs.images()})
        for image_id in put_off:
            self._put_off.wait(image_id)
            if self._put_off.is_time(image_id):
                self._put_off.postpone(image_id)
                self._manager.consider(image_id, again=True)

    def _consider(self, image_ids: Iterable[str]) -> None:
        """Look at images: one about which Glance does not answer does not hold up the others.

        :raises Exception: keystoneauth's or glanceclient's, if it seems to answer for none.
        """
        failures = 0
        for image_id in image_ids:
            try:
                self._manager.consider(image_id)
                failures = 0
            except Exception as error:
                failures += 1
                if failures == _MOST_FAILURES:
                    raise
                LOG.warning('image %s: Glance cannot be asked: %s', image_id, away.told(error))
