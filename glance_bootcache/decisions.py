"""What is to be done about an image. Pure: plain values in, a decision out."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from bootcache import exception, properties
from bootcache.manifest import IN_HAND, Manifest, State
from bootcache.properties import Policy
from glance_bootcache import inspection


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


class Action(enum.Enum):
    """What to do about an image."""

    NOTHING = 'nothing'
    WAIT = 'wait'          # until Glance says that it is active
    SKIP = 'skip'          # drop what there is, and say why
    SERVE = 'serve'        # the base only: the next server's boot is recorded
    RECORD = 'record'      # profile boot, then build
    REBUILD = 'rebuild'    # build from the working set that there is


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action, with what it needs.

    :ivar reason: for SKIP.
    :ivar policy: for SERVE, RECORD and REBUILD; also for NOTHING, where the image is served.
    """

    action: Action
    reason: str = ''
    policy: Policy | None = None


def skip_reason(image: ImageFacts, build_snapshots: bool) -> str:
    """Return why an image cannot have a cache image, or an empty string."""
    if image.disk_format not in inspection.FORMATS:
        return f'disk_format {image.disk_format} is not served, only qcow2 and raw are'
    if image.container_format != 'bare':
        return f'container_format {image.container_format} is not served, only bare is'
    if image.stored_bytes == 0:
        return 'the image has no data of its own'
    for name, what in (('kernel_id', 'a separate kernel'), ('ramdisk_id', 'a separate ramdisk'),
                       ('block_device_mapping', 'a block device mapping'),
                       ('cinder_encryption_key_id', 'an encrypted volume'),
                       ('os_encrypt_format', 'encryption')):
        if image.properties.get(name) not in (None, '', '[]'):
            return f'an image with {what} ({name}) is not served'
    if image.properties.get('image_type') == 'snapshot' and not build_snapshots:
        return 'a snapshot of a server; [bootcache]build_snapshots is off'
    return ''


def decide(image: ImageFacts, manifest: Manifest | None, *, default_quota: int, max_quota: int,
           default_marker: str, build_snapshots: bool, forced: bool = False,
           profile_boots: bool = True, booting: bool = False) -> Decision:
    """Decide about an image that was registered, changed, or asked for.

    :param manifest: what is known of it, None if nothing.
    :param forced: the operator asks for a new recording.
    :param profile_boots: whether images are booted to be recorded; if not, servers' boots are.
    :param booting: a server boots from the image just now, and can be recorded.
    """
    try:
        policy = properties.parse(image.properties, default_quota=default_quota,
                                  max_quota=max_quota, default_marker=default_marker)
    except exception.InvalidProperty as error:
        return Decision(Action.SKIP, str(error))
    if policy.mode == 'off':
        return Decision(Action.SKIP, f'{properties.MODE}=off')
    if image.status in ('queued', 'saving', 'uploading', 'importing'):
        return Decision(Action.WAIT)
    if image.status != 'active':
        return Decision(Action.SKIP, f'the image is {image.status}')
    reason = skip_reason(image, build_snapshots)
    if reason:
        return Decision(Action.SKIP, reason)
    record = Decision(Action.RECORD, policy=policy)
    first = record if profile_boots and not booting else Decision(Action.SERVE, policy=policy)
    nothing = Decision(Action.NOTHING, policy=policy)
    if forced:
        return record
    if manifest is None or (manifest.state in IN_HAND and profile_boots):
        return first if manifest is None else record
    if manifest.held:
        return Decision(Action.NOTHING)
    if manifest.image_hash != image.image_hash or manifest.state in IN_HAND:
        return first
    if manifest.state in (State.FAILED, State.SKIPPED, State.SERVED):
        # Not by itself: each change of a property would start the same failure again.
        return nothing
    if manifest.working_set is None or manifest.cache_image is None \
            or manifest.working_set.boot_marker != policy.boot_marker:
        return record if profile_boots else nothing
    if manifest.cache_image.quota != policy.quota:
        return Decision(Action.REBUILD, policy=policy)
    return nothing
