"""What is to be done about an image. Pure: plain values in, a decision out."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from bootcache import exception, properties, signatures
from bootcache.cachelayout import Compression
from bootcache.manifest import Availability, ImageState, Manifest, Standing
from bootcache.properties import Policy
from bootcache.reasons import NO_CAUSE, Cause, Reason
from glance_bootcache import snapshotrules
from glance_bootcache.availability import served
from glance_bootcache.storage import inspection


@dataclasses.dataclass(frozen=True)
class ImageFacts:
    """What Glance says of an image.

    :ivar image_id: its id.
    :ivar status: Glance's: queued, saving, importing, active, deactivated, deleted...
    :ivar disk_format: Glance's.
    :ivar container_format: Glance's.
    :ivar stored_bytes: size of the image file.
    :ivar image_hash: ``algorithm:hexadecimal``, empty while Glance has none.
    :ivar min_ram: MiB.
    :ivar min_disk: GiB.
    :ivar properties: all other properties.
    :ivar visibility: Glance's: public, community, shared or private; empty if it does not say.
    :ivar owner: the project that it belongs to; empty if Glance does not say.
    :ivar name: Glance's; empty if it has none.
    :ivar updated_at: when it was changed last, as Glance gives it.
    """

    image_id: str
    status: str
    disk_format: str
    container_format: str
    stored_bytes: int
    image_hash: str
    min_ram: int
    min_disk: int
    properties: Mapping[str, Any]
    visibility: str = ''
    owner: str = ''
    name: str = ''
    updated_at: str = ''


# From whom everybody sees to whom the owner alone does.
VISIBILITIES = ('public', 'community', 'shared', 'private')


def next_generation(generation: int, now: float) -> int:
    """Return the generation after another.

    It is at least the time, so that after the loss of a manifest it is above what hosts hold.

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


def signed_anew(manifest: Manifest, image: ImageFacts, verifies: bool, now: float) -> Manifest:
    """Return a manifest without what was built, if the image has another signature than it had.

    As ``revoked``: the base stays, and is verified by that one.

    :param verifies: whether signatures are verified here.
    :param now: seconds since the epoch.
    """
    signed_as = signatures.digest(image.properties) if verifies else ''
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


class ImageAction(enum.Enum):
    """What to do about an image."""

    NOTHING = 'nothing'
    WAIT = 'wait'          # until Glance says that it is active
    SKIP = 'skip'          # drop what there is, and say why
    FAIL = 'fail'          # there is nothing to work on; say why
    SERVE = 'serve'        # the base only: the next server's boot is recorded
    RECORD = 'record'      # profile boot, then build
    AWAIT = 'await'        # the same, once a compute host is there that can record
    REBUILD = 'rebuild'    # build from the working set that there is


@dataclasses.dataclass(frozen=True)
class ImageDecision:
    """An action, with what it needs.

    :ivar cause: for SKIP, FAIL and AWAIT.
    :ivar policy: for SERVE, RECORD, AWAIT and REBUILD; also for NOTHING, where the image is served,
        and for SKIP of one that is off or deactivated.
    """

    action: ImageAction
    cause: Cause = NO_CAUSE
    policy: Policy | None = None


def is_signed(image: ImageFacts) -> bool:
    """Tell whether an image has any of Glance's properties of a signature."""
    return signatures.is_signed(image.properties)


def _unverifiable(image: ImageFacts, verifies: bool) -> Cause:
    if not is_signed(image):
        return NO_CAUSE
    if not verifies:
        return Cause(Reason.SIGNATURES_OFF)
    missing = signatures.missing(image.properties)
    return Cause(Reason.SIGNATURE_INVALID, f'the image has no {", ".join(missing)}') \
        if missing else NO_CAUSE


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
    if cause := _unverifiable(image, verifies):
        return cause
    if properties.is_snapshot(image.properties) and not build_snapshots:
        return Cause(Reason.SNAPSHOTS_OFF)
    return NO_CAUSE


def decide(image: ImageFacts, manifest: Manifest | None, *, default_quota: int, max_quota: int,
           default_marker: str, build_snapshots: bool, verifies: bool = False, forced: bool = False,
           profile_boots: bool = True, booting: bool = False, has_hosts: bool = True,
           again: bool = False) -> ImageDecision:
    """Decide about an image that was registered, changed, or asked for.

    :param manifest: what is known of it, None if nothing.
    :param verifies: whether signatures are verified here.
    :param forced: the operator asks for a new recording.
    :param profile_boots: whether images are booted to be recorded; if not, servers' boots are.
    :param booting: a server boots from the image just now, and can be recorded.
    :param has_hosts: a compute host with the driver is known; without, no boot can be recorded.
    :param again: what kept its content from being taken has gone.
    """
    try:
        policy = properties.parse(image.properties, default_quota=default_quota,
                                  max_quota=max_quota, default_marker=default_marker)
    except exception.InvalidProperty as error:
        return ImageDecision(ImageAction.SKIP, error.cause)
    if availability(image) is Availability.OFF:
        return ImageDecision(ImageAction.SKIP, Cause(Reason.MODE_OFF, f'{properties.MODE}=off'),
                             policy)
    if image.status == 'queued' and (manifest is None or not manifest.made.base_path):
        # It is heard of when it has data. One that had begun to get them has failed to.
        return ImageDecision(ImageAction.FAIL, Cause(Reason.NO_DATA)) if manifest is not None \
            else ImageDecision(ImageAction.NOTHING)
    if image.status in ('queued', 'saving', 'uploading', 'importing'):
        return ImageDecision(ImageAction.WAIT)
    if image.status != 'active':
        return ImageDecision(ImageAction.SKIP, Cause(Reason.GLANCE_STATUS, image.status), policy)
    if cause := skip_cause(image, build_snapshots, verifies):
        return ImageDecision(ImageAction.SKIP, cause)
    forced = forced or is_forced(manifest)
    profile_boots = profile_boots and not properties.is_snapshot(image.properties)
    record = ImageDecision(ImageAction.RECORD, policy=policy) if has_hosts else ImageDecision(
        ImageAction.AWAIT, Cause(Reason.NO_HOST_REQUESTED if forced else Reason.NO_HOST), policy)
    first = record if profile_boots and not booting \
        else ImageDecision(ImageAction.SERVE, policy=policy)
    nothing = ImageDecision(ImageAction.NOTHING, policy=policy)
    if forced:
        return record
    if not booting and not (manifest is not None and manifest.wished.held) \
            and snapshotrules.waits_for_a_server(image.image_hash, image.properties, manifest):
        return ImageDecision(ImageAction.SKIP, Cause(Reason.SNAPSHOT_UNUSED))
    if booting and manifest is not None and snapshotrules.is_left(manifest):
        manifest = None  # also where Glance has no hash of it, and so none that is new
    if manifest is not None and is_put_off(manifest) and not again \
            and manifest.image_hash == image.image_hash:
        return nothing
    if manifest is None or (manifest.standing is Standing.WANTED and profile_boots):
        return first if manifest is None else record
    if manifest.wished.held:
        return ImageDecision(ImageAction.NOTHING)
    if again or manifest.image_hash != image.image_hash or manifest.standing is Standing.WANTED:
        return first
    if manifest.standing in (Standing.FAILED, Standing.SKIPPED) \
            or manifest.made.cache_image is None or manifest.has_older_base:
        # Not by itself: each change of a property would start the same failure again.
        return nothing
    if manifest.cause and (manifest.wished.quota, manifest.wished.boot_marker) \
            == (policy.quota, policy.boot_marker):
        # The older cache image serves, as none could be made of these.
        return nothing
    if manifest.made.working_set is None \
            or manifest.made.working_set.boot_marker != policy.boot_marker:
        return record if profile_boots else nothing
    if manifest.made.cache_image.quota != policy.quota or manifest.made.is_behind:
        # The latter where its building was not begun, or not ended, before a restart.
        return ImageDecision(ImageAction.REBUILD, policy=policy)
    return nothing


def is_owners_change(image: ImageFacts, known: Manifest | None) -> bool:
    """Tell whether an image is to be taken up as its owner has registered or changed it.

    Not where it was taken up before, and waits, or where it is looked at by other rules.
    """
    if known is None or known.cause.reason is Reason.TOO_MANY_CHANGES:
        return True
    return known.cause.reason is not Reason.INSPECTION_RULES \
        and not (known.standing is Standing.WANTED and known.image_hash == image.image_hash)


def is_forced(manifest: Manifest | None) -> bool:
    """Tell whether an operator has asked for a new recording, which waits for a host."""
    return manifest is not None and manifest.cause.reason is Reason.NO_HOST_REQUESTED
