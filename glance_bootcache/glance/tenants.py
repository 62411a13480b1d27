"""What tenants are told of an image's final state, by Glance's ``bootcache_reason``. Pure.

Everybody who may see an image sees its properties. The reason in the manifest is the operators':
it may name hosts, paths and what a service answered. Tenants get one of a closed list of sentences.
"""

from bootcache import properties
from bootcache.manifest import ImageState
from bootcache.reasons import Cause, Reason

GENERAL = {
    ImageState.READY: 'an older cache image serves, as no newer one could be made; the operators of'
                      ' the cloud can see why',
    ImageState.FAILED: 'no cache image could be made, and servers start without; the operators of'
                       ' the cloud can see why',
    ImageState.SKIPPED: 'it is not served, and servers start the usual way; the operators of the'
                        ' cloud can see why',
}

# Of reasons that are about the image itself: what its owner is told.
_KIND = 'images with a kernel, a ramdisk, a block device mapping or encryption are not served'
_OF_IMAGES = {
    Reason.MODE_OFF: f'{properties.MODE}=off',
    Reason.INVALID_MODE: f'{properties.MODE} has to be one of: {", ".join(properties.MODES)}',
    Reason.INVALID_QUOTA: f'{properties.QUOTA} has to be a size that this cloud allows, as in'
                          ' 256MiB',
    Reason.INVALID_BOOT_MARKER: f'{properties.BOOT_MARKER} has to be a regular expression of 1 to'
                                f' {properties.MAX_MARKER_LENGTH} characters that matches within'
                                ' one line and is cheap to look for',
    Reason.INVALID_SETTLE: f'{properties.SETTLE} has to be one of: yes, no',
    Reason.INVALID_REQUIRE: f'{properties.REQUIRE} has to be one of:'
                            f' {", ".join(properties.REQUIREMENTS)}',
    Reason.DISK_FORMAT: 'its disk_format is not served, only qcow2 and raw are',
    Reason.CONTAINER_FORMAT: 'its container_format is not served, only bare is',
    Reason.EMPTY: 'the image has no data of its own',
    Reason.UNSUPPORTED_PROPERTY: _KIND,
    Reason.SIGNATURES_OFF: 'signed images are not served: their signature is checked as they are'
                           ' downloaded',
    Reason.SIGNATURE_INVALID: 'its signature is not right, or lacks one of its properties',
    Reason.SNAPSHOT_UNUSED: 'snapshots of servers are not served in this cloud',
    Reason.SNAPSHOTS_OFF: 'snapshots of servers are not served in this cloud',
    Reason.FORMAT_MISMATCH: 'its content is not what disk_format says',
    Reason.UNSAFE: 'the image is not safe to open',
    Reason.UNREADABLE: 'the image is damaged',
    Reason.BACKING_FILE: 'the image has a backing file',
    Reason.DATA_FILE: 'the image has an external data file',
    Reason.TOO_LARGE: 'its disk is larger than this cloud allows',
    Reason.ENCRYPTED: 'the image is encrypted',
    Reason.PARTIAL_SECTOR: 'its size is not one of whole sectors',
    Reason.EVICTED_BY_OPERATOR: 'an operator of the cloud has taken its cache image away',
    Reason.NO_DATA: 'the image has no data: its import or upload into Glance has failed; import it'
                    ' again',
    Reason.SWITCHED_OFF: 'its guest switched itself off before its boot marker was seen: it may'
                         f' lack a driver, or needs a {properties.BOOT_MARKER} of its own',
    Reason.STUCK: 'its guest does not come up, as its console says: it may lack a driver, as that'
                  ' of its disk',
    Reason.READ_NOTHING: 'its boot read nothing from the disk, or next to nothing',
}

SENTENCES = frozenset({*GENERAL.values(), *_OF_IMAGES.values()})


def told(state: ImageState, cause: Cause) -> str:
    """Return what tenants are told of a cause; empty where there is none.

    :returns: one of ``SENTENCES``.
    """
    if not cause:
        return ''
    if state is ImageState.READY:
        # What was wrong is wrong with the newer one.
        return GENERAL[state]
    return _OF_IMAGES.get(cause.reason, GENERAL[state])
