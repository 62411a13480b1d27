"""What tenants are told of an image's final state, by Glance's ``bootcache_reason``. Pure.

Everybody who may see an image sees its properties. The reason in the manifest is the operators':
it may name hosts, paths and what a service answered. Tenants get one of a closed list of sentences;
what is not known here is told in general.
"""

from bootcache import properties
from bootcache.manifest import ImageState
from glance_bootcache import decisions, snapshotrules

GENERAL = {
    ImageState.READY: 'an older cache image serves, as no newer one could be made; the operators of'
                      ' the cloud can see why',
    ImageState.FAILED: 'no cache image could be made, and servers start without; the operators of'
                       ' the cloud can see why',
    ImageState.SKIPPED: 'it is not served, and servers start the usual way; the operators of the'
                        ' cloud can see why',
}

# How a reason begins that is about the image itself, and what its owner is told.
_SKIPPED = (
    (f'{properties.MODE}=off', f'{properties.MODE}=off'),
    (f'{properties.MODE}=', f'{properties.MODE} has to be one of: {", ".join(properties.MODES)}'),
    (properties.QUOTA, f'{properties.QUOTA} has to be a size that this cloud allows,'
                       ' as in 256MiB'),
    (properties.BOOT_MARKER, f'{properties.BOOT_MARKER} has to be a regular expression of 1 to'
                             f' {properties.MAX_MARKER_LENGTH} characters that matches within one'
                             ' line and is cheap to look for'),
    (properties.SETTLE, f'{properties.SETTLE} has to be one of: yes, no'),
    (properties.REQUIRE, f'{properties.REQUIRE} has to be one of:'
                         f' {", ".join(properties.REQUIREMENTS)}'),
    ('disk_format ', 'its disk_format is not served, only qcow2 and raw are'),
    ('container_format ', 'its container_format is not served, only bare is'),
    ('the image has no data', 'the image has no data of its own'),
    ('an image with ', 'images with a kernel, a ramdisk, a block device mapping or encryption are'
                       ' not served'),
    (decisions.SIGNED, 'signed images are not served: their signature is checked as they are'
                       ' downloaded'),
    (decisions.SIGNATURE_REFUSED, 'its signature is not right, or lacks one of its properties'),
    (snapshotrules.SNAPSHOT, 'snapshots of servers are not served in this cloud'),
    ('the content is ', 'its content is not what disk_format says'),
    ('the image is not safe to open', 'the image is not safe to open'),
    ('the image cannot be read', 'the image is damaged'),
    ('the image has a backing file', 'the image has a backing file'),
    ('the image has an external data file', 'the image has an external data file'),
    ('the image is a disk of', 'its disk is larger than this cloud allows'),
    ('the image is encrypted', 'the image is encrypted'),
    ('the image has ', 'its size is not one of whole sectors'),
    (decisions.HELD, 'an operator of the cloud has taken its cache image away'),
)
_FAILED = (
    (decisions.NO_DATA, decisions.NO_DATA),
    (decisions.SWITCHED_OFF, 'its guest switched itself off before its boot marker was seen: it may'
                             f' lack a driver, or needs a {properties.BOOT_MARKER} of its own'),
    (decisions.STUCK, 'its guest does not come up, as its console says: it may lack a driver, as'
                      ' that of its disk'),
    (decisions.READ_NOTHING, 'its boot read nothing from the disk, or next to nothing'),
)
_KNOWN = {ImageState.SKIPPED: _SKIPPED, ImageState.FAILED: _FAILED}

SENTENCES = frozenset({*GENERAL.values(),
                       *(sentence for known in _KNOWN.values() for _begin, sentence in known)})


def told(state: ImageState, reason: str) -> str:
    """Return what tenants are told of a reason; empty where there is none.

    :param reason: as it is in the manifest.
    :returns: one of ``SENTENCES``.
    """
    if not reason:
        return ''
    for begin, sentence in _KNOWN.get(state, ()):
        if reason.startswith(begin):
            return sentence
    return GENERAL[state]
