"""What is to be done about an image. Pure: its record and facts in, a decision out."""

import dataclasses
import enum

from bootcache import exception, properties, savefile, signatures
from bootcache.cachelayout import Compression
from bootcache.manifest import Availability, Goal, ImageState, Made, Manifest, Standing, Wished
from bootcache.properties import Policy
from bootcache.reasons import NO_CAUSE, Cause, Reason
from glance_bootcache import snapshotrules
from glance_bootcache.availability import served
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.storage import inspection

# From whom everybody sees to whom the owner alone does.
VISIBILITIES = ('public', 'community', 'shared', 'private')


def next_generation(generation: int, now: float) -> int:
    """Return the generation after another.

    It is at least the time, so that after its row was lost it is above what hosts hold.

    :param now: seconds since the epoch.
    """
    return max(generation + 1, int(now))


def seen(manifest: Manifest, visibility: str, now: float = 0.0) -> Manifest:
    """Return a manifest with an image's visibility as it is now.

    Where fewer people may see the image than when it was seen last, its generation goes up: hosts
    let go of what they hold. A word that Glance 33 does not know is neither more nor less.

    :param visibility: Glance's; empty changes nothing.
    :param now: seconds since the epoch.
    """
    if not visibility or visibility == manifest.wished.visibility:
        return manifest
    before = manifest.wished
    known = {before.visibility, visibility} <= set(VISIBILITIES)
    fewer = known and VISIBILITIES.index(visibility) > VISIBILITIES.index(before.visibility)
    generation = next_generation(before.generation, now) if fewer else before.generation
    return manifest.wishing(visibility=visibility, generation=generation)


def is_put_off(manifest: Manifest) -> bool:
    """Tell whether an image waits for another try, as the storage node could not make its part."""
    return manifest.standing is Standing.WANTED and manifest.cause.reason is Reason.RETRY


def has_new_content(image: ImageFacts, manifest: Manifest) -> bool:
    """Tell whether an image's content never got a base here, as far as its manifest knows."""
    return image.image_hash != manifest.image_hash or image.image_hash != manifest.made.base_hash


def waits_for_older(manifest: Manifest) -> bool:
    """Tell whether an image waits for the end of those that need its older content.

    Its last try may have failed for another reason, as Glance was away. And one whose older base
    was given up, while a host is connected to it, has none.
    """
    return (manifest.has_older_base or manifest.cause.reason is Reason.OLDER_CONTENT_IN_USE) \
        and manifest.standing in (Standing.FAILED, Standing.DONE)


def is_by_other_rules(manifest: Manifest) -> bool:
    """Tell whether an image's base was accepted by other rules than those of now."""
    return bool(manifest.made.base_path) and manifest.made.look_rules != inspection.RULES


def is_unverified(manifest: Manifest) -> bool:
    """Tell whether an image has a signature by which its base was not verified, as far as that is
    done here."""
    return bool(manifest.made.signed_as) and not manifest.made.signature


def _signed_as(image: ImageFacts, verifies: bool) -> str:
    return signatures.digest(image.properties) if verifies else ''


def signed_anew(manifest: Manifest, image: ImageFacts, verifies: bool, now: float) -> Manifest:
    """Return a manifest without what was built, if the image has another signature than it had.

    As ``revoked``: the base stays, and is verified by that one.

    :param verifies: whether signatures are verified here.
    :param now: seconds since the epoch.
    """
    signed_as = _signed_as(image, verifies)
    if signed_as == manifest.made.signed_as:
        return manifest
    return dataclasses.replace(manifest, image_hash='').wishing(
        generation=next_generation(manifest.wished.generation, now)).making(
        working_set=None, cache_image=None, difference=None, signed_as=signed_as, signature='')


def taken_up(manifest: Manifest, image: ImageFacts, now: float) -> Manifest:
    """Return a manifest of an image of whose content, as it is, something is wanted.

    :param now: seconds since the epoch.
    """
    known_since = 0.0 if manifest.image_hash != image.image_hash else manifest.taken_up_at
    return dataclasses.replace(
        manifest, standing=Standing.WANTED, image_hash=image.image_hash,
        taken_up_at=known_since or now).wishing(
        # Most snapshots are booted once.
        warm_due=manifest.wished.warm_due or (has_new_content(image, manifest)
                                              and not properties.is_snapshot(image.properties)))


def skipped(manifest: Manifest, cause: Cause) -> Manifest:
    """Return a manifest of an image that is not served.

    The base stays for servers that run from it, until the last one has gone. Without the hash the
    image is looked at again when its properties change.
    """
    return dataclasses.replace(manifest, image_hash='').standing_at(
        Standing.SKIPPED, cause).making(working_set=None, cache_image=None, difference=None)


def gives_out(manifest: Manifest) -> bool:
    """Tell whether hosts that ask for an image's cache image are given it."""
    return manifest.standing is not Standing.SKIPPED and not manifest.has_older_base \
        and served(manifest.wished.availability).cache_image \
        and not is_by_other_rules(manifest) and not is_unverified(manifest)


def revoked(manifest: Manifest, now: float) -> Manifest:
    """Return a manifest without what was built by other rules; hosts let go of it as well.

    Without the hash the image is taken up again, and its base looked at, when Glance is asked.

    :param now: seconds since the epoch.
    """
    return skipped(manifest, Cause(Reason.INSPECTION_RULES)).wishing(
        generation=next_generation(manifest.wished.generation, now))


def can_be_taken_over(record: Manifest, look_rules: int = inspection.RULES) -> bool:
    """Tell whether this node may work on an image of another one: not if later rules than its own
    have accepted the base, as those of a newer release."""
    return not record.made.base_path or record.made.look_rules <= look_rules


def taken_over(record: Manifest, base_path: str,
               base_file: tuple[int, int, int] | None) -> Manifest:
    """Return the record of an image on which another node has worked so far.

    The cache image is on that one's disk; it is built again from the working set. What is skipped
    or has failed stays so.

    :param base_path: by which this node reads the same base; empty if it has to be got.
    :param base_file: its identity, if it is a file.
    """
    made = record.made
    taken = record.making(cache_image=None, difference=None, built_from='', base_path=base_path,
                          base_file=base_file)
    if record.standing is not Standing.DONE:
        return taken
    if made.working_set is not None:
        return taken.standing_at(Standing.WANTED, goal=Goal.BUILD)
    return taken if base_path or not made.base_path \
        else taken.standing_at(Standing.WANTED, goal=Goal.SERVE)


def is_to_be_recompressed(manifest: Manifest, compression: Compression) -> bool:
    """Tell whether an image's cache image is right, but stored in another way than is wanted."""
    made = manifest.made
    return manifest.state is ImageState.READY and bool(made.base_path) \
        and made.working_set is not None and made.cache_image is not None \
        and made.cache_image.compression is not compression


def availability(image: ImageFacts) -> Availability:
    """Return whether Glance gives an image out, and its owner wants it served."""
    if image.status == 'deactivated':
        return Availability.DEACTIVATED
    if str(image.properties.get(properties.MODE, '')).strip().lower() == 'off':
        return Availability.OFF
    return Availability.HIDDEN if image.properties.get('os_hidden') else Availability.ACTIVE


class Step(enum.StrEnum):
    """What is done for an image in a thread of its own; each step can be repeated."""

    GET_BASE = 'get-base'    # got, looked into and served
    RECORD = 'record'        # a profile boot
    BUILD = 'build'          # the cache image
    RETIRE = 'retire'        # served no more, as far as no server needs it


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options by which it is decided about images.

    :ivar default_quota: bytes of a cache image whose image says nothing.
    :ivar max_quota: bytes at most.
    :ivar default_marker: by which a boot is known to be over.
    :ivar build_snapshots: snapshots of servers have cache images.
    :ivar verifies: signatures are verified here.
    :ivar profile_boots: images are booted to be recorded; if not, servers' boots are.
    """

    default_quota: int
    max_quota: int
    default_marker: str
    build_snapshots: bool = True
    verifies: bool = False
    profile_boots: bool = True

    def policy(self, image: ImageFacts) -> Policy:
        """Return what an image's properties ask for.

        :raises InvalidProperty: naming the property.
        """
        return properties.parse(image.properties, default_quota=self.default_quota,
                                max_quota=self.max_quota, default_marker=self.default_marker)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of an image beside its record.

    :ivar image: what Glance says of it.
    :ivar has_base: the base of that content is here, and accepted.
    :ivar has_hosts: a compute host with the driver is known; without, no boot can be recorded.
    :ivar boots: a server boots from the image just now, and can be recorded.
    :ivar may_change: its owner has not changed too many images within the hour.
    :ivar now: seconds since the epoch.
    """

    image: ImageFacts
    has_base: bool = False
    has_hosts: bool = True
    boots: bool = False
    may_change: bool = True
    now: float = 0.0


@dataclasses.dataclass(frozen=True)
class Decision:
    """What becomes of an image.

    :ivar record: as it is to be; None for an image that is not kept.
    :ivar step: what is to be done now; None for nothing.
    :ivar waits: for what no event tells: it is decided again after a while.
    :ivar is_change: the step follows from a change that counts for the image's owner.
    """

    record: Manifest | None
    step: Step | None = None
    waits: bool = False
    is_change: bool = False


def is_signed(image: ImageFacts) -> bool:
    """Tell whether an image has any of Glance's properties of a signature."""
    return signatures.is_signed(image.properties)


def skip_cause(image: ImageFacts, build_snapshots: bool, verifies: bool = False) -> Cause:
    """Return why an image cannot have a cache image, if it cannot.

    :param verifies: whether signatures are verified here.
    """
    if image.disk_format not in inspection.FORMATS:
        return Cause(Reason.DISK_FORMAT, image.disk_format)
    if image.container_format != 'bare':
        return Cause(Reason.CONTAINER_FORMAT, image.container_format)
    if image.stored_bytes == 0:
        return Cause(Reason.EMPTY)
    for name, what in (('kernel_id', 'a separate kernel'), ('ramdisk_id', 'a separate ramdisk'),
                       ('block_device_mapping', 'a block device mapping'),
                       ('cinder_encryption_key_id', 'an encrypted volume'),
                       ('os_encrypt_format', 'encryption')):
        if image.properties.get(name) not in (None, '', '[]'):
            return Cause(Reason.UNSUPPORTED_PROPERTY, f'{what} ({name})')
    if is_signed(image) and not verifies:
        return Cause(Reason.SIGNATURES_OFF)
    if is_signed(image) and (missing := signatures.missing(image.properties)):
        return Cause(Reason.SIGNATURE_INVALID, f'the image has no {", ".join(missing)}')
    if properties.is_snapshot(image.properties) and not build_snapshots:
        return Cause(Reason.SNAPSHOTS_OFF)
    return NO_CAUSE


def _begun(record: Manifest | None, image: ImageFacts, asked: Policy, settings: Settings,
           boots: bool) -> Goal | None:
    """Return what is to be begun of an active image that can have a cache image.

    :returns: None to go on with what was begun, if anything was.
    """
    profile_boots = settings.profile_boots and not properties.is_snapshot(image.properties)
    first = Goal.RECORD if profile_boots and not boots else Goal.SERVE
    if record is None:
        return first
    has_changed = record.image_hash != image.image_hash
    if record.wished.requested:
        return Goal.RECORD if has_changed or not record.goal else None
    if has_changed:
        return Goal.SERVE if record.goal is Goal.SERVE else first
    if record.goal is Goal.RECORD and not profile_boots:
        return Goal.SERVE
    if record.goal:
        return None
    if record.standing is Standing.WANTED \
            or (record.standing is Standing.DONE and not record.made.base_path):
        return first
    if record.standing in (Standing.FAILED, Standing.SKIPPED) \
            or record.made.cache_image is None or record.has_older_base:
        # Not by itself: each change of a property would start the same failure again.
        return None
    if record.cause and (record.wished.quota, record.wished.boot_marker) \
            == (asked.quota, asked.boot_marker):
        # The older cache image serves, as none could be made of these.
        return None
    if record.made.working_set is None \
            or record.made.working_set.boot_marker != asked.boot_marker:
        return Goal.RECORD if profile_boots else None
    return Goal.BUILD if record.made.cache_image.quota != asked.quota \
        or record.made.is_behind else None


def decide(record: Manifest | None, facts: Facts, settings: Settings) -> Decision:
    """Decide about an image that Glance has.

    :param record: what is known of it, None if nothing.
    """
    image, known = facts.image, record
    if record is not None:
        record = observed(record, facts, settings)
    fresh = record or Manifest(image.image_id, wished=Wished(
        visibility=image.visibility, name=image.name, owner=image.owner,
        availability=availability(image)), made=Made(
            signed_as=_signed_as(image, settings.verifies)))

    def skip(cause: Cause, settle: bool) -> Decision:
        dropped = skipped(fresh, cause).wishing(settle=settle and not is_signed(image),
                                                requested=False)
        return Decision(dropped, retirement(dropped))

    try:
        asked = settings.policy(image)
    except exception.InvalidProperty as error:
        return skip(error.cause, fresh.wished.settle)
    if availability(image) is Availability.OFF:
        return skip(Cause(Reason.MODE_OFF, f'{properties.MODE}=off'), asked.settle)
    if image.status == 'queued' and not fresh.made.base_path:
        # It is heard of when it has data. One that had begun to get them has failed to.
        return Decision(None if record is None else fresh.wishing(requested=False).standing_at(
            Standing.FAILED, Cause(Reason.NO_DATA)))
    if image.status in ('queued', 'saving', 'uploading', 'importing'):
        if fresh.standing is Standing.FAILED:
            fresh = fresh.standing_at(Standing.WANTED)
        return Decision(fresh, retirement(fresh), waits=True)
    if image.status != 'active':
        return skip(Cause(Reason.GLANCE_STATUS, image.status), asked.settle)
    if cause := skip_cause(image, settings.build_snapshots, settings.verifies):
        return skip(cause, asked.settle)
    if fresh.wished.held and not fresh.wished.requested:
        return Decision(fresh, retirement(fresh))
    if not (facts.boots or fresh.wished.requested or fresh.goal) \
            and snapshotrules.waits_for_a_server(image.image_hash, image.properties, record):
        return skip(Cause(Reason.SNAPSHOT_UNUSED), asked.settle)
    fresh = fresh.wishing(quota=asked.quota, settle=asked.settle, boot_marker=asked.boot_marker)
    begun = _begun(record, image, asked, settings, facts.boots)
    if begun is None:
        return _next(fresh, facts) if fresh.goal else Decision(fresh, retirement(fresh))
    is_change = is_owners_change(image, known) and not facts.boots \
        and not fresh.wished.requested and fresh.goal is not Goal.SERVE
    fresh = fresh.standing_at(fresh.standing, goal=begun).wishing(held=False)
    if begun is not Goal.BUILD:
        fresh = taken_up(fresh, image, facts.now)
    if is_change and not facts.may_change:
        return Decision(dataclasses.replace(
            fresh, goal=Goal.NONE, cause=Cause(Reason.TOO_MANY_CHANGES)), waits=True)
    return dataclasses.replace(_next(fresh, facts), is_change=is_change)


def _next(record: Manifest, facts: Facts) -> Decision:
    """Return what is done next towards an image's goal."""
    if record.goal is Goal.BUILD and record.made.working_set is None:
        record = dataclasses.replace(record, goal=Goal.RECORD)
    if record.goal is Goal.SERVE or not facts.has_base:
        return Decision(record, Step.GET_BASE)
    if record.goal is Goal.BUILD:
        return Decision(record, Step.BUILD)
    if facts.has_hosts:
        waited = record.cause.reason in (Reason.NO_HOST, Reason.NO_HOST_REQUESTED)
        return Decision(dataclasses.replace(record, cause=NO_CAUSE) if waited else record,
                        Step.RECORD)
    return Decision(dataclasses.replace(record, cause=Cause(
        Reason.NO_HOST_REQUESTED if record.wished.requested else Reason.NO_HOST)))


def retirement(record: Manifest) -> Step | None:
    """Return the step for an image that is skipped: None when nothing of it is served any more."""
    return Step.RETIRE if record.standing is Standing.SKIPPED and (
        record.made.base_path or record.wished.availability is Availability.DELETED) else None


def observed(record: Manifest, facts: Facts, settings: Settings) -> Manifest:
    """Return a record with what Glance says of its image now."""
    return signed_anew(
        seen(record, facts.image.visibility, facts.now), facts.image, settings.verifies,
        facts.now).wishing(name=facts.image.name, owner=facts.image.owner,
                           availability=availability(facts.image))


def deleted(record: Manifest, held: bool = False) -> Manifest:
    """Return a record of an image that Glance has no more, or whose cache image an operator has
    deleted.

    :param held: an operator has, and Glance has the image: it is not recorded again by itself.
    """
    cause = Cause(Reason.EVICTED_BY_OPERATOR if held else Reason.DELETED)
    return skipped(record, cause).wishing(
        held=held, requested=False,
        availability=record.wished.availability if held else Availability.DELETED)


def requested(record: Manifest) -> Manifest:
    """Return a record of an image of which an operator wants a new recording.

    One of an image that is deleted in Glance is left as it is.
    """
    if record.wished.availability is Availability.DELETED:
        return record
    return dataclasses.replace(record, goal=Goal.NONE).wishing(requested=True, held=False)


def asked_for(record: Manifest, is_lost: bool = False) -> Manifest:
    """Return a record of an image from which a server boots, and whose base is not here.

    :param is_lost: whether it was.
    """
    return record.standing_at(Standing.WANTED, goal=Goal.SERVE) \
        if snapshotrules.is_left(record) or (is_lost and record.standing is Standing.DONE) \
        or (waits_for_its_owner(record) and not record.made.base_path) else record


def is_same_work(record: Manifest | None, begun: Manifest) -> bool:
    """Tell whether a step that was begun for a record is still to be done."""
    return record is not None and (
        record.image_hash, record.goal, record.wished.requested, record.made.signed_as) \
        == (begun.image_hash, begun.goal, begun.wished.requested, begun.made.signed_as) \
        and record.standing is not Standing.SKIPPED and not record.is_missing


def failed(record: Manifest, error: Exception, is_without_older: bool = False) -> Manifest:
    """Return the record of an image of which a step has failed.

    What the storage node, Glance or Nova could not do is tried again; the image's own faults are
    for good. An older cache image serves on.

    :param is_without_older: the step cost the image the cache image that it had.
    """
    if isinstance(error, exception.ImageRefused):
        return record.making(working_set=None, cache_image=None, difference=None).wishing(
            requested=False).standing_at(Standing.SKIPPED, error.cause)
    cause = error.cause if isinstance(error, exception.ImageError) \
        else Cause(Reason.FAILED, str(error))
    passes = savefile.means_full(error) or is_without_older or isinstance(
        error, (exception.StorageDaemonError, exception.StorageNodeFull, exception.ServiceAway,
                exception.DatabaseAway, exception.Interrupted, OSError))
    if passes and record.made.cache_image is None:
        return record.standing_at(Standing.WANTED, Cause(Reason.RETRY, str(cause)), record.goal)
    if passes:
        cause = Cause(Reason.FAILED, str(cause))
    if record.made.cache_image is not None and not record.has_older_base:
        return record.wishing(requested=False).standing_at(Standing.DONE, cause)
    # The newer content is got when nobody needs the older one any more.
    goal = record.goal if record.has_older_base \
        or cause.reason is Reason.OLDER_CONTENT_IN_USE else Goal.NONE
    return record.wishing(requested=False).standing_at(Standing.FAILED, cause, goal)


def waits_for_its_owner(record: Manifest) -> bool:
    """Tell whether nothing is done about an image until its owner may change another one."""
    return record.cause.reason is Reason.TOO_MANY_CHANGES and not record.wished.requested \
        and not record.is_missing


def is_owners_change(image: ImageFacts, known: Manifest | None) -> bool:
    """Tell whether an image is to be taken up as its owner has registered or changed it.

    Not where it was taken up before, and waits, or where it is looked at by other rules.
    """
    if known is None or known.cause.reason is Reason.TOO_MANY_CHANGES:
        return True
    return known.cause.reason is not Reason.INSPECTION_RULES \
        and not (known.standing is Standing.WANTED and known.image_hash == image.image_hash)
