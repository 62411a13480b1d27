"""What is in hand for one image, shared by its worker and the RPC calls that report."""

import dataclasses
import secrets
import threading
import time

from bootcache import exception
from bootcache.manifest import ImageState, Manifest
from bootcache.workingset import WorkingSet


@dataclasses.dataclass(frozen=True)
class ProfileReport:
    """What a compute host reported of a profile boot.

    :ivar working_set: what it read.
    :ivar ended_by: as of bootcache/ending.py; not looked at yet.
    :ivar boot_seconds: from the making of its disk to its end.
    :ivar line: of the guest's console, where that is what ended it.
    """

    working_set: WorkingSet
    ended_by: str
    boot_seconds: float
    line: str = ''


@dataclasses.dataclass
class ImageJob:
    """One step of an image.

    All attributes are set by one thread each; ``changed`` wakes the worker.

    :ivar image_id: the image.
    :ivar step: what is done.
    :ivar begun: the image's record when it was begun.
    :ivar token: secret that proves a server or a report to belong to this profile boot.
    :ivar cancelled: set when the image was deleted or opted out.
    :ivar host: the compute host that records, once it has asked.
    :ivar recorded_bytes: size of the growing store.
    :ivar heard_at: monotonic time of that.
    :ivar report: what the host reported.
    :ivar quota: bytes that the profile boot may read.
    :ivar boot_marker: by which it is known to be over.
    :ivar phase: what it does now, RECORDING or BUILDING; None while it waits, or gets a base.
    :ivar parent: id of the image that a snapshot's server was made of; empty if none is known.
    :ivar is_child: it builds the first cache image of a snapshot that has its working set from its
        server's image; then it makes what differs from its parent's.
    :ivar is_without_older: the image's older cache image went, as disk had no room for both.
    """

    image_id: str
    step: str = ''
    begun: Manifest | None = None
    token: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)
    changed: threading.Event = dataclasses.field(default_factory=threading.Event)
    host: str = ''
    recorded_bytes: int = 0
    heard_at: float = 0.0
    report: ProfileReport | None = None
    quota: int = 0
    boot_marker: str = ''
    phase: ImageState | None = None
    is_without_older: bool = False
    parent: str = ''
    is_child: bool = False

    def owns(self, token: str | None) -> bool:
        """Tell whether a token is this job's, in constant time."""
        return token is not None and secrets.compare_digest(token.encode(), self.token.encode())

    def restart(self) -> None:
        """Begin anew with another server; reports that belong to the old one do not count."""
        self.token = secrets.token_hex(16)
        self.host = ''
        self.recorded_bytes, self.heard_at = 0, 0.0
        self.report = None

    def heard(self, recorded_bytes: int) -> None:
        """Note a host's progress message."""
        self.recorded_bytes = recorded_bytes
        self.heard_at = time.monotonic()

    def take_report(self, report: ProfileReport) -> None:
        """Note a host's report, and wake the worker."""
        self.report = report
        self.changed.set()

    def wait(self, seconds: float) -> None:
        """Wait until something has changed.

        :param seconds: at most.
        """
        self.changed.wait(seconds)
        self.changed.clear()

    def pause(self, seconds: float) -> None:
        """Wait, unless told to give up.

        :raises Cancelled: if told so.
        """
        self.cancelled.wait(seconds)
        self.check_cancelled()

    def check_cancelled(self) -> None:
        """Give up if told so.

        :raises Cancelled: if the image was deleted or opted out.
        """
        if self.cancelled.is_set():
            raise exception.Cancelled(f'image {self.image_id} was deleted or opted out')

    def cancel(self) -> None:
        """Tell the worker to give up."""
        self.cancelled.set()
        self.changed.set()
