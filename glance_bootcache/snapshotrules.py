"""Which snapshots of servers are taken up, when, and what they have from their image. Pure.

Nobody boots most snapshots: those of nightly backups, for instance. One costs nothing until a
server boots from it. Then its working set is that of the image that its server was made of, its
parent: the two boot in the same way, from mostly the same bytes. So there is no profile boot.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bootcache import workingset
from bootcache.manifest import Manifest, Standing, WorkingSetInfo
from bootcache.properties import is_snapshot
from bootcache.reasons import Reason
from bootcache.workingset import WorkingSet

# By whom a working set was recorded that is a parent's.
PARENT = 'parent'
# For which the first servers of a snapshot wait for its cache image, once its base is here: most of
# what they would read from the base is on their host.
BUILD_SECONDS = 30.0


def waits_for_a_server(image_hash: str, properties: Mapping[str, Any],
                       manifest: Manifest | None) -> bool:
    """Tell whether an image is to be taken up when a server boots from it, and not before.

    :param image_hash: of its content in Glance.
    :param manifest: what is known of it, None if nothing.
    """
    return is_snapshot(properties) and (manifest is None or (
        not manifest.made.base_path and manifest.image_hash != image_hash))


def is_left(manifest: Manifest) -> bool:
    """Tell whether an image is skipped for as long as no server boots from it."""
    return manifest.standing is Standing.SKIPPED \
        and manifest.cause.reason is Reason.SNAPSHOT_UNUSED


def may_be_parent(parent: Manifest | None, owner: str) -> bool:
    """Tell whether an image may be the parent of a snapshot of a project.

    Only where the project may see the image anyway: what two images have in common tells of both.

    :param parent: of the image.
    :param owner: the project that the snapshot belongs to.
    """
    return parent is not None and parent.standing is Standing.DONE and not parent.has_older_base \
        and parent.made.working_set is not None and bool(parent.made.base_hash) \
        and (parent.wished.visibility in ('public', 'community')
             or (bool(owner) and parent.wished.owner == owner))


def inherited(parents: WorkingSet, child: Manifest) -> WorkingSet:
    """Return a parent's working set as that of a snapshot's content.

    :param parents: the parent's.
    :param child: of the snapshot, with its base.
    """
    size = child.made.virtual_bytes
    within = [extent for extent in parents.extents if extent.end <= size]
    return dataclasses.replace(
        parents, image_id=child.image_id, image_hash=child.made.base_hash, virtual_bytes=size,
        extents=tuple(workingset.align(within, parents.granularity, size)))


def described(parents: WorkingSetInfo, sha256: str, working_set: WorkingSet) -> WorkingSetInfo:
    """Return what a manifest says of a working set that is a parent's.

    :param parents: what the parent's says of its own.
    :param sha256: of the working set's text.
    """
    return dataclasses.replace(parents, sha256=sha256, bytes=working_set.bytes,
                               extents=len(working_set.extents), recorded_by=PARENT, version=1)
