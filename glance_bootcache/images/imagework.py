"""The steps of an image: its base is got, its boot recorded, its cache image built."""

import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import (
    cacheimage,
    cachelayout,
    exception,
    naming,
    properties,
    savefile,
    steps,
    workingset,
)
from bootcache import conf as bootcache_conf
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression
from bootcache.ceph import places
from bootcache.manifest import CacheInfo, Goal, ImageState, Manifest, Standing, WorkingSetInfo
from bootcache.properties import Policy
from bootcache.reasons import Reason
from bootcache.workingset import WorkingSet
from glance_bootcache import away, snapshotrules
from glance_bootcache.ceph import basenode
from glance_bootcache.filestore import placing
from glance_bootcache.glance.images import Images
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import policy
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.images.inheriting import Inheriting
from glance_bootcache.images.policy import Settings, Step
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.saving import save, when_it_answers
from glance_bootcache.images.signatures import ImageSignatures
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ImageStep, ServiceMetrics
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage import inspection, nodefiles
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.inspection import Inspected
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers
from glance_bootcache.storage.transfers import Transfers

LOG = logging.getLogger(__name__)

# After so many bytes of a download it is looked whether there is room for the rest.
_LOOK_BYTES = 64 << 20


def obtain(image: ImageFacts, store: ImageStore, images: Images, store_dirs: Iterable[str],
           check: Callable[[], None], arrived: Callable[[int], None] = lambda count: None,
           kind: FileKind = FileKind.BASE, suffix: str = '.img'
           ) -> tuple[str, tuple[int, int, int]]:
    """Get an image's stored bytes as a file, checked against Glance's hash.

    From a file store the file is hard-linked into the image's directory, so that servers can go on
    reading it after Glance has deleted the image; where it cannot be linked it is used in place. A
    file of other content is taken for one that Glance is still writing: an image that has several
    stores is active when the first one has it.

    :param store_dirs: directories of Glance's file store that this service can read.
    :param check: called between pieces; what it raises ends it.
    :param arrived: told of the bytes of each piece that is downloaded.
    :param kind: of the file's row.
    :param suffix: the end of its name.
    :returns: the file's path, and its identity, as of bootcache/savefile.py, when it was hashed.
    :raises ImageRefused: if the content does not match, or Glance has no hash for it.
    :raises StorageNodeFull: if the state directory has no room for a download.
    :raises DatabaseAway: if the file's row cannot be written.
    :raises OSError: if the state directory cannot be written.
    """
    algorithm, _colon, value = image.image_hash.partition(':')
    if not value:
        raise exception.ImageRefused('Glance has no hash for the image (os_hash_value)')
    name = store.begin_file(image.image_id, kind, suffix)
    target, found = store.path(image.image_id, name), ''
    try:
        for source in (os.path.join(directory, image.image_id) for directory in store_dirs):
            if not os.path.isfile(source) or not os.access(source, os.R_OK):
                continue
            path, is_right = _link(source, target), False
            try:
                file = savefile.identity(os.stat(path))
                is_right = os.stat(path).st_size == image.stored_bytes \
                    and savefile.file_digest(path, algorithm, check) == value
            finally:
                if not is_right and path == target:
                    os.unlink(target)
            if is_right:
                found = path
                return found, file
            LOG.info('image %s: %s does not have Glance\'s size and %s, as it is not all there yet,'
                     ' or damaged', image.image_id, source, algorithm)
        LOG.info('image %s is downloaded', image.image_id)
        _download(image, images, target, algorithm, value, check, arrived)
        file, found = savefile.identity(os.stat(target)), target
        return found, file
    finally:
        if found != target:
            store.files.abandon(image.image_id, name)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError as error:
        cure, directory = '', os.path.dirname(target)
        if os.stat(source).st_dev == os.stat(directory).st_dev:
            cure = '. Both are on one file system' + {
                errno.EXDEV: f': {directory} is on a mount of its own (that of a unit with'
                ' StateDirectory= or ReadWritePaths=, a bind mount or a volume), or in another'
                ' project of a quota; take that out',
                errno.EPERM: ': run this service as the owner of that file'}.get(
                    error.errno or 0, '')
        LOG.log(logging.WARNING if cure else logging.INFO,
                '%s cannot be linked into the state directory (%s); it is used in place, and'
                ' servers lose it when Glance deletes the image and the exporter restarts%s',
                source, error, cure)
        return source
    return target


def _download(image: ImageFacts, images: Images, target: str, algorithm: str, value: str,
              check: Callable[[], None], arrived: Callable[[int], None]) -> None:
    partial, digest = f'{target}.partial', hashlib.new(algorithm)
    done = looked = 0
    try:
        placing.check_free(os.path.dirname(target), image.stored_bytes)
        with open(partial, 'wb') as stream:
            for piece in images.download(image.image_id):
                check()
                done += len(piece)
                if done > image.stored_bytes:
                    raise _refused(image, images, f'the download has more than the'
                                   f' {image.stored_bytes} bytes that Glance tells, and so not its'
                                   f' {algorithm}')
                digest.update(piece)
                if piece.lstrip(b'\0'):
                    stream.write(piece)
                else:
                    # A hole: hosts that copy the base are spared it.
                    stream.seek(len(piece), os.SEEK_CUR)
                arrived(len(piece))
                if done - looked >= _LOOK_BYTES:
                    # Others write there as well.
                    placing.check_free(os.path.dirname(target), image.stored_bytes - done)
                    looked = done
            stream.truncate()
        if done < image.stored_bytes:
            raise exception.ServiceAway(f'the download ended after {done} of {image.stored_bytes}'
                                        ' bytes')
        if digest.hexdigest() != value:
            raise _refused(image, images, f'the download does not have Glance\'s {algorithm}')
        steps.reached('register: copied')
        savefile.commit(partial, target)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def _refused(image: ImageFacts, images: Images, reason: str) -> exception.BootcacheError:
    """Return why a download is not taken: for good, unless the image is another one by now."""
    try:
        current = images.get(image.image_id)
    except Exception as error:
        return exception.ServiceAway(f'{reason}, and Glance cannot be asked whether the image has'
                                     f' another content by now: {away.told(error)}')
    if current is not None and current.image_hash == image.image_hash:
        return exception.ImageRefused(reason)
    return exception.Cancelled('it is another one than when it was decided about')


def settings_of(conf: cfg.ConfigOpts) -> Settings:
    """Return the options by which it is decided about images."""
    group = conf[bootcache_conf.GROUP]
    return Settings(properties.parse_size(group.default_quota),
                    properties.parse_size(group.max_quota), group.boot_marker,
                    group.build_snapshots, group.verify_signatures, group.profile_boots)


class ImageWork:
    """Does the steps, in the controller's threads.

    :param conf: configuration of the storage service.
    :param retiring: tells whether servers may need an image's base.
    :param metrics: observe the steps' seconds.
    :ivar inheriting: gives snapshots what they have from their servers' images.
    :ivar transfers: the bases that are being got.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, exporter: Exporters,
                 tiers: StorageTiers, profile_boots: NovaProfileBoots, disk_room: DiskRoom,
                 retiring: Retiring, metrics: ServiceMetrics):
        self._options = conf
        self._conf: Any = conf[bootcache_conf.GROUP]
        self._store = store
        self._images = images
        self._exporter = exporter
        self._tiers = tiers
        self._profile_boots = profile_boots
        self._disk_room = disk_room
        self._retiring = retiring
        self._metrics = metrics
        self._ceph = CephBases(conf)
        self._signatures = ImageSignatures(conf)
        self.inheriting = Inheriting(store, images)
        self.transfers = Transfers()

    def do(self, job: ImageJob, image: ImageFacts | None) -> None:
        """Do a job's step.

        :param image: as Glance described it; None for RETIRE, and to store a cache image otherwise.

        :raises Cancelled: if the image has become another one meanwhile.
        :raises Exception: what :func:`policy.failed` turns into the image's state.
        """
        if job.step == Step.RETIRE:
            self._retiring.retire(job.image_id)
        elif job.step == Step.BUILD:
            self.build(image, job)
        elif image is not None:
            record = self.get_base(image, job)
            if job.step == Step.RECORD:
                self.record(image, record, job)
            elif record.goal is Goal.SERVE and not self.inheriting.inherit(image, job):
                save(self._store, job, lambda record: record.standing_at(Standing.DONE))

    def has_base(self, image: ImageFacts) -> bool:
        """Tell whether the base of an image's content is here, so that nothing has to be got.

        Of a clone in Ceph its manifest alone is asked; a file has to be the one that was verified.
        """
        manifest = self._store.load(image.image_id)
        return manifest is not None and bool(manifest.made.base_path) \
            and (places.is_clone(manifest.made.base_path)
                 or (os.path.exists(manifest.made.base_path)
                     and not basenode.is_changed(manifest))) \
            and image.image_hash == manifest.made.base_hash

    def is_at_hand(self, image: ImageFacts) -> bool:
        """Tell whether a base is here that is not to be looked at again."""
        manifest = self._store.load(image.image_id)
        return manifest is not None and self.has_base(image) \
            and not policy.is_by_other_rules(manifest) \
            and not policy.is_unverified(manifest)

    def source(self, image: ImageFacts) -> str:
        """Return where an image's base comes from: a directory of Glance's, or empty for Glance."""
        return next((directory for directory in self._conf.glance_store_dirs
                     if os.path.isfile(os.path.join(directory, image.image_id))), '')

    def get_base(self, image: ImageFacts, job: ImageJob) -> Manifest:
        """Get an image's base, look into it, and serve it.

        :returns: the manifest, with the base.
        :raises BootcacheError: if it cannot be had, or not be served.
        """
        manifest = self._note_signature(image, job)
        if self.has_base(image) and self._ceph.serves(image, manifest.made.base_path):
            manifest = self._looked_at_again(manifest, image, job)
            self._tiers.serve(manifest)
            return manifest
        # So that nothing is downloaded in vain.
        self._give_older_up(manifest, image)
        verifier = self._signatures.verifier(image)
        with self._metrics.step(ImageStep.GET_BASE), \
                self.transfers.of(image.image_id, image.stored_bytes) as arrived:
            clone = self._ceph.obtain(image, self._store.files, job.check_cancelled, arrived)
            path, file = (clone, None) if clone else obtain(
                image, self._store, self._images, self._conf.glance_store_dirs,
                job.check_cancelled, arrived)
        try:
            steps.reached('register: named')
            signature = self._signatures.verify(image, verifier, path, job.check_cancelled)
            inspected = self._inspected(path, image, job)
            self._give_older_up(manifest, image)
            in_ceph = places.is_clone(manifest.made.base_path)

            def has_base(record: Manifest) -> Manifest:
                if record.made.base_hash != image.image_hash:
                    # What was made of the content before is of no use.
                    record = record.making(
                        working_set=None, cache_image=None, difference=None,
                        base_export=naming.content_export_name(image.image_id, image.image_hash))
                return record.making(
                    image_format=inspected.image_format, stored_bytes=image.stored_bytes,
                    virtual_bytes=inspected.virtual_bytes, base_path=path,
                    base_hash=image.image_hash, base_file=file, look_rules=inspection.RULES,
                    signature=signature)

            manifest = save(self._store, job, has_base)
        except BaseException:
            self._drop(image.image_id, path)
            raise
        steps.reached('register: noted')
        if in_ceph:
            # Its export reads from the clone; it goes on where a host is connected to it now.
            self._exporter.retire(image.image_id, with_base=True)
        self._tiers.serve(manifest)
        return manifest

    def _inspected(self, path: str, image: ImageFacts, job: ImageJob) -> Inspected:
        with self._metrics.step(ImageStep.INSPECT):
            with self._ceph.looked_at(path, self._store.directory(image.image_id),
                                      job.check_cancelled) as file:
                inspected = inspection.inspect(
                    file, image.disk_format, properties.parse_size(self._conf.max_virtual_size))
            inspection.read_through(path, inspected, image.stored_bytes, job.check_cancelled)
        return inspected

    def _looked_at_again(self, manifest: Manifest, image: ImageFacts, job: ImageJob) -> Manifest:
        """Look at a base that is here if it was accepted by other rules, or is unverified."""
        if self.is_at_hand(image):
            return manifest
        signature = self._signatures.verify(image, self._signatures.verifier(image),
                                            manifest.made.base_path, job.check_cancelled)
        inspected = self._inspected(manifest.made.base_path, image, job)
        LOG.info('image %s: its base is accepted by the rules of now', image.image_id)
        return save(self._store, job, lambda record: record.making(
            image_format=inspected.image_format, virtual_bytes=inspected.virtual_bytes,
            look_rules=inspection.RULES, signature=signature))

    def _note_signature(self, image: ImageFacts, job: ImageJob) -> Manifest:
        """Note by which signature the base is to be verified, so that one try is all there is."""
        manifest = self._store.load(image.image_id) or Manifest(image.image_id)
        noted = policy.signed_anew(manifest, image, self._conf.verify_signatures, time.time())
        return manifest if noted is manifest else save(
            self._store, job, lambda record: record.making(
                working_set=None, cache_image=None, difference=None,
                signed_as=noted.made.signed_as, signature=''))

    def _drop(self, image_id: str, path: str) -> None:
        """Remove what was made in vain; not what the image's row names, nor Glance's own."""
        if places.is_clone(path):
            self._store.files.abandon(image_id, path)
        elif os.path.dirname(path) == self._store.directory(image_id):
            self._store.files.abandon(image_id, os.path.basename(path))

    def _is_there(self, manifest: Manifest) -> bool:
        """Tell whether a storage node has the base, that an image was taken over from as well."""
        return bool(manifest.made.base_path) or self._store.files.has_base(manifest.image_id)

    def _give_older_up(self, manifest: Manifest, image: ImageFacts) -> None:
        """Serve a base of another content than Glance has no more.

        Also one that was given up: its exports may be served still.

        :raises BuildFailed: if it is needed, or a host is connected to it.
        """
        if manifest.made.base_hash == image.image_hash:
            return
        if (self._is_there(manifest) and self._retiring.why_needed(image.image_id)) \
                or not self._exporter.retire(image.image_id, with_base=True):
            raise exception.BuildFailed('', Reason.OLDER_CONTENT_IN_USE)

    def record(self, image: ImageFacts, record: Manifest, job: ImageJob) -> None:
        """Run a profile boot; a cache image of what it reads is built next.

        :param record: the image's, with its base.
        :raises BootcacheError: with what went wrong and the cure.
        """
        wished = record.wished
        asked = Policy(wished.quota, wished.boot_marker, wished.settle)
        job.phase = ImageState.RECORDING
        with self._metrics.step(ImageStep.RECORD):
            result = self._profile_boots.run(image, record.made.virtual_bytes, asked, job)
        job.check_cancelled()
        sha256 = when_it_answers(job, lambda: self._store.save_working_set(
            image.image_id, result.working_set))
        steps.reached('record: kept')
        info = WorkingSetInfo(sha256, result.working_set.bytes, len(result.working_set.extents),
                              result.working_set.granularity, self._profile_boots.recorded_by,
                              result.ended_by, round(result.boot_seconds, 1), asked.boot_marker)
        save(self._store, job, lambda known: dataclasses.replace(
            known, goal=Goal.BUILD).making(working_set=info).wishing(requested=False))

    def build(self, image: ImageFacts | None, job: ImageJob) -> None:
        """Build a cache image from the working set that there is; without one a boot is recorded.

        :param image: None if the cache image is right and only stored in another way than is
            wanted: then it stays, if there is no room beside it, or the building fails.
        """
        record = self._store.load(job.image_id)
        working_set = record and self._store.load_working_set(record)
        if record is None or not working_set or not record.made.base_path \
                or record.has_older_base:
            if image is not None:
                save(self._store, job, lambda known: dataclasses.replace(
                    known, goal=Goal.RECORD).making(working_set=None))
            return
        if image is not None:
            parent = self.inheriting.parent(image)
            job.parent = '' if parent is None else parent.image_id
            job.is_child = record.made.cache_image is None and record.made.working_set is not None \
                and record.made.working_set.recorded_by == snapshotrules.PARENT
            job.phase = ImageState.BUILDING
            self._build(record, working_set, job)
            return
        try:
            self._build(record, working_set, job, in_passing=True)
        except exception.Cancelled:
            raise
        except Exception as error:
            job.phase = None
            LOG.log(logging.INFO if isinstance(error, exception.StorageNodeFull) else logging.ERROR,
                    'image %s: its cache image stays as it is, and is built anew later: %s',
                    job.image_id, error)
            with contextlib.suppress(exception.BootcacheError):
                # The exporter may have been told of the other one.
                self._tiers.serve(self._store.load(job.image_id) or record)

    def _build(self, manifest: Manifest, working_set: WorkingSet, job: ImageJob,
               in_passing: bool = False) -> None:
        # The quota is as it is now.
        manifest = self._store.load(manifest.image_id) or manifest
        made, quota = manifest.made, manifest.wished.quota
        clusters = workingset.align(working_set.extents, self._conf.cluster_size,
                                    made.virtual_bytes)
        room = min(quota, workingset.total_bytes(clusters) + cachelayout.metadata_bytes(
            clusters, self._conf.cluster_size, made.virtual_bytes))
        with self._metrics.step(ImageStep.BUILD), \
                self._disk_room.kept(manifest.image_id, room, in_passing):
            job.check_cancelled()
            job.phase = ImageState.BUILDING
            self._build_within(room, manifest, working_set, job)

    def _build_within(self, room: int, manifest: Manifest, working_set: WorkingSet,
                      job: ImageJob) -> None:
        image_id = manifest.image_id
        name = self._store.begin_file(image_id, FileKind.CACHE_IMAGE, cachelayout.file_suffix(
            Compression(self._conf.compression)))
        path = self._store.path(image_id, name)
        base = basenode.base_of(manifest, self._options, virtual_bytes=manifest.made.virtual_bytes)
        try:
            info = self._built(room, manifest, working_set, base, path)
            self._tiers.note_built(path)
            # Hosts get the older one, and what differs of it, until the newer one is whole. A
            # child has none: its first servers wait for this one, and not for a difference.
            made = dataclasses.replace(
                manifest.made, cache_image=info, difference=None if job.is_child else
                self.inheriting.make_difference(manifest, info, base, job),
                built_from='' if manifest.made.working_set is None
                else manifest.made.working_set.sha256)
            job.check_cancelled()
            steps.reached('build: named')
            built = dataclasses.replace(manifest, made=made)
            self._tiers.serve(built)
            # One of the same bytes has the same export, which reads the file that goes: it may be
            # one that is damaged, or a copy in memory.
            self._exporter.switch_cache(built, path)
            steps.reached('build: served')
            save(self._store, job, lambda record: record.making(
                cache_image=info, difference=made.difference, built_from=made.built_from
                ).standing_at(Standing.DONE))
        except BaseException:
            # Each try makes another one.
            for each in (name, nodefiles.difference_name(name)):
                self._store.files.abandon(image_id, each)
            raise
        steps.reached('build: noted')
        # What it replaces may be in memory; and it is not the least recently used one.
        self._tiers.forget(image_id)
        self._tiers.note_use(image_id, time.time())
        LOG.info('image %s: cache image of %d bytes built in %.2f s', image_id, info.bytes,
                 info.build_seconds)
        if job.is_child:
            self.inheriting.add_difference(manifest, info, base, job)

    def _built(self, room: int, manifest: Manifest, working_set: WorkingSet, base: Base,
               path: str) -> CacheInfo:
        """Build and verify a cache image; an error names what is at fault."""
        backing_uri = naming.nbd_unix_uri(
            self._conf.gateway_socket,
            naming.export_name(naming.EXPORT_BASE, manifest.image_id))
        quota, began = manifest.wished.quota, time.monotonic()
        try:
            built = cacheimage.build(
                base, working_set.extents, path, quota=quota, cluster_bytes=self._conf.cluster_size,
                backing_uri=backing_uri, compression=Compression(self._conf.compression))
        except Exception as error:
            # QEMU's tools fail in many ways on a full medium.
            directory = os.path.dirname(path)
            free = shutil.disk_usage(directory).free
            if free >= room and not savefile.means_full(error):
                raise
            raise exception.StorageNodeFull(
                f'{directory} has no room for a cache image of {room} bytes, {free} are free'
                f' ("df -i" shows inodes, "quota" quotas); make room in [bootcache]state_dir:'
                f' {error}') from error
        return CacheInfo(os.path.basename(path), built.bytes, built.data_bytes, len(built.extents),
                         built.sha256, built.virtual_bytes, built.cluster_bytes, quota, backing_uri,
                         round(time.monotonic() - began, 3), cacheimage.VERIFY_RULES)
