"""The errors of bootcache; each message names the thing at fault and the cure."""

from bootcache.reasons import Cause, Reason


class BootcacheError(Exception):
    """Base of all errors of this project; the message is meant for an operator."""


class ImageError(BootcacheError):
    """An image cannot be served, or not have a cache image.

    :param detail: the reason's argument; what is wrong, and the cure, where that has no text.
    :param reason: of the image's state.
    """

    _REASON = Reason.FAILED

    def __init__(self, detail: str, reason: Reason | None = None):
        self.cause = Cause(reason or self._REASON, detail)
        super().__init__(str(self.cause))


class InvalidProperty(ImageError):
    """An image property has a value that cannot be used."""

    _REASON = Reason.REFUSED


class InvalidWorkingSet(BootcacheError):
    """A working set does not fit the image that it claims to be of."""


class InvalidManifest(BootcacheError):
    """A manifest cannot be read, is of another version, or disagrees with its files."""


class ImageRefused(ImageError):
    """A tenant's image file is not safe to be opened, or not of a kind that can be served."""

    _REASON = Reason.REFUSED


class Interrupted(BootcacheError):
    """A program that this project runs was ended by others, or was not done in its time: of what it
    worked on that says nothing, and it may be done in a while."""


class StorageDaemonError(BootcacheError):
    """qemu-storage-daemon did not start, did not answer, or refused a command."""


class StorageDaemonBusy(StorageDaemonError):
    """qemu-storage-daemon runs, and did not answer in its time: it may again in a while."""


class BaseUnreadable(StorageDaemonError):
    """One base cannot be read where others may be."""


class StorageNodeAway(StorageDaemonError):
    """A storage node's exporter does not answer."""


class StorageNodeFull(BootcacheError):
    """A file system of the storage node has no room: it may have in a while."""


class StorageServiceAway(BootcacheError):
    """The storage service does not answer, or does not have an image yet: it may in a while."""


class ServiceAway(BootcacheError):
    """Glance, Nova or Keystone does not answer, or refuses a token: it may again in a while."""


class BuildFailed(ImageError):
    """A cache image could not be built, or is not what it should be."""


class ProfileBootFailed(ImageError):
    """A profile boot did not start, did not end in its time, or its record was lost."""


class FlavorTooSmall(BootcacheError):
    """A server's flavor has a smaller disk than its image.

    :param flavor_bytes: of the flavor's disk.
    :param image_bytes: of the image's.
    """

    def __init__(self, flavor_bytes: int, image_bytes: int):
        super().__init__(f'the flavor\'s disk has {flavor_bytes} bytes, the image {image_bytes}')
        self.flavor_bytes, self.image_bytes = flavor_bytes, image_bytes


class NoRoom(BootcacheError):
    """A tier, or the medium that it is on, has no room for a file: it may have in a while."""


class NoSlot(BootcacheError):
    """Others get full bases from the storage node now.

    :ivar seconds: after which to ask again.
    """

    def __init__(self, seconds: float):
        super().__init__('as many hosts get full bases from the storage node as may at the same'
                         ' time: [bootcache]settle_slots of the storage service')
        self.seconds = seconds


class Cancelled(BootcacheError):
    """The work was given up because its image was deleted or opted out."""


class RequestRefused(BootcacheError):
    """What an operator asks for cannot be done; the message says why, and the cure."""


class ConfigurationError(BootcacheError, ValueError):
    """A configuration cannot be used; the message names the option and the cure."""


class CertificateExpired(ConfigurationError):
    """A certificate was valid, and is not any more, or is not yet; the message names the file."""


class LibvirtHangs(BootcacheError):
    """libvirt does not answer, or a guest's QEMU does not answer libvirt: they may in a while."""


class TooManyCalls(LibvirtHangs):
    """Calls to libvirt about others have no answer, and so none is made: it may be in a while."""


class BlockJobStalls(LibvirtHangs):
    """A guest's QEMU answers, but a block job of it comes to no end: it may in a while."""


class MessageRefused(BootcacheError):
    """What somebody says on the message bus cannot be, or was not asked for.

    :param field: of the message, by its name in bootcache/rpcapi.py.
    :param why: what is wrong with it; of what it says no more than a short quotation.
    """

    def __init__(self, field: str, why: str):
        super().__init__(f'{field}: {why}')
        self.field, self.why = field, why


class TooManyMessages(MessageRefused):
    """Somebody says more on the message bus than is read of him: it may be said in a while."""


class ExchangeFailed(BootcacheError):
    """A file does not come from other hosts, or is not given to them: it is copied instead."""


class ExchangeStalled(ExchangeFailed):
    """A file came from other hosts in part, and nothing more comes.

    :param missing: what did not come: offset and length, in bytes.
    """

    def __init__(self, text: str, missing: list[tuple[int, int]]):
        super().__init__(text)
        self.missing = missing
