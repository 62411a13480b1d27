"""Why an image is skipped, has failed or waits: an enum with its argument; texts for people. Pure.

Code compares reasons, and never texts. Tenants are told less: glance_bootcache/glance/tenants.py.
"""

import dataclasses
import enum


class Reason(enum.StrEnum):
    """Why an image is in its state. A value is stored, and so does not change."""

    NONE = ''

    # The image waits.
    NO_HOST = 'no-host'
    NO_HOST_REQUESTED = 'no-host-requested'   # and an operator has asked for a new recording
    TOO_MANY_CHANGES = 'too-many-changes'
    RETRY = 'retry'                           # the storage node, Glance or Nova could not

    # The image is skipped.
    MODE_OFF = 'mode-off'
    INVALID_MODE = 'invalid-mode'
    INVALID_QUOTA = 'invalid-quota'
    INVALID_BOOT_MARKER = 'invalid-boot-marker'
    INVALID_SETTLE = 'invalid-settle'
    INVALID_REQUIRE = 'invalid-require'
    GLANCE_STATUS = 'glance-status'
    DISK_FORMAT = 'disk-format'
    CONTAINER_FORMAT = 'container-format'
    EMPTY = 'empty'
    UNSUPPORTED_PROPERTY = 'unsupported-property'
    SIGNATURES_OFF = 'signatures-off'
    SIGNATURE_INVALID = 'signature-invalid'
    SNAPSHOT_UNUSED = 'snapshot-unused'
    SNAPSHOTS_OFF = 'snapshots-off'
    MISSING = 'missing'
    DELETED = 'deleted'
    EVICTED_BY_OPERATOR = 'deleted-by-operator'
    INSPECTION_RULES = 'inspection-rules'
    FORMAT_MISMATCH = 'format-mismatch'
    UNSAFE = 'unsafe'
    UNREADABLE = 'unreadable'
    BACKING_FILE = 'backing-file'
    DATA_FILE = 'data-file'
    TOO_LARGE = 'too-large'
    ENCRYPTED = 'encrypted'
    PARTIAL_SECTOR = 'partial-sector'
    REFUSED = 'refused'

    # The image has failed.
    NO_DATA = 'no-data'
    SWITCHED_OFF = 'switched-off'
    STUCK = 'stuck'
    READ_NOTHING = 'read-nothing'
    OLDER_CONTENT_IN_USE = 'older-content-in-use'
    FAILED = 'failed'


_NO_HOST = ('no compute host with bootcache\'s driver has reported since the storage service'
            ' started; the image is recorded by itself as soon as one does, within a minute after'
            ' the start of its nova-compute ("bootcache host list" shows those that have)')
_SNAPSHOT = 'a snapshot of a server'
# What is shown to operators; "{}" stands for the argument. All others' text is the argument.
_TEXTS = {
    Reason.NO_HOST: _NO_HOST,
    Reason.NO_HOST_REQUESTED: f'{_NO_HOST}. An operator has asked for it',
    Reason.TOO_MANY_CHANGES: 'its owner has changed more images within the hour than'
                             ' [bootcache]changes_per_hour says; it is taken up by itself',
    Reason.RETRY: 'the storage node could not, and it is tried again by itself: {}',
    Reason.GLANCE_STATUS: 'the image is {}',
    Reason.DISK_FORMAT: 'disk_format {} is not served, only qcow2 and raw are',
    Reason.CONTAINER_FORMAT: 'container_format {} is not served, only bare is',
    Reason.EMPTY: 'the image has no data of its own',
    Reason.UNSUPPORTED_PROPERTY: 'an image with {} is not served',
    Reason.SIGNATURES_OFF: 'the image is signed: only stock Nova checks that, while it downloads'
                           ' the image, as [bootcache]verify_signatures is off',
    Reason.SIGNATURE_INVALID: 'the image\'s signature is not right: {}',
    Reason.SNAPSHOT_UNUSED: f'{_SNAPSHOT}; it is taken up when a server boots from it',
    Reason.SNAPSHOTS_OFF: f'{_SNAPSHOT}; [bootcache]build_snapshots is off',
    Reason.MISSING: 'Glance says that it does not have the image; if it has it again, it is given'
                    ' out again',
    Reason.DELETED: 'the image was deleted in Glance',
    Reason.EVICTED_BY_OPERATOR: 'deleted with "bootcache image delete"; "bootcache image build"'
                                ' makes it again',
    Reason.INSPECTION_RULES: 'the image was accepted by other rules than those of now, and is'
                             ' looked at again',
    Reason.NO_DATA: 'the image has no data: its import or upload into Glance has failed; import it'
                    ' again',
    Reason.OLDER_CONTENT_IN_USE: 'compute hosts still read the image\'s older content, or servers'
                                 ' of the image may need it that are off; the new one is got by'
                                 ' itself when they are gone, within the hour',
}


@dataclasses.dataclass(frozen=True)
class Cause:
    """A reason with its argument.

    :ivar detail: for people: what the reason is about, or the error that it stands for.
    """

    reason: Reason = Reason.NONE
    detail: str = ''

    def __str__(self) -> str:
        """Return what operators are shown; empty without a reason."""
        return _TEXTS.get(self.reason, '{}').replace('{}', self.detail)

    def __bool__(self) -> bool:
        """Return whether there is a reason."""
        return self.reason is not Reason.NONE


NO_CAUSE = Cause()
