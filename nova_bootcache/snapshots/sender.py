"""Sending a snapshot: what an overlay holds, into a copy of its base at the storage node.

The storage service makes that copy, which shares all of the base, and lets this host alone write
it. It gives up who is silent; so it is asked how far it is as long as this goes on.
"""

import contextlib
import dataclasses
import operator
import secrets
import threading
import time
from collections.abc import Callable, Iterator

import oslo_messaging as messaging
import tenacity
from oslo_log import log as logging

from bootcache import exception, qemuimg
from bootcache.rpc.messages import (
    AbandonSnapshot,
    BeginSnapshot,
    FinishSnapshot,
    SnapshotProgress,
    UploadSnapshot,
)
from nova_bootcache import storagenode
from nova_bootcache.asking.client import HostsClient
from nova_bootcache.storagenode import Encryption

LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
# For which the storage service may take to begin one.
_BEGIN_SECONDS = 120
_TELL_SECONDS = 10
# Of sending: stock Nova has no limit, and a disk may be large.
_SEND_SECONDS = 6 * 3600
# The same, where the storage service puts it together, or gives it to Glance.
_STEP_SECONDS = _SEND_SECONDS
_LONGEST_PAUSE = 2.0
# For which a storage service may be away that has all of it, or is to remove what it has made.
_AWAY_SECONDS = 60


class SnapshotRefused(exception.BootcacheError):
    """A snapshot goes stock Nova's way; the message says why, in one line.

    :ivar is_usual: nothing has failed: here, or of this image, it is always so.
    """

    def __init__(self, reason: str, is_usual: bool = False):
        super().__init__(reason)
        self.is_usual = is_usual


@dataclasses.dataclass(frozen=True)
class SentDisk:
    """A disk that nobody writes.

    :ivar path: of the qcow2.
    :ivar backing: path of what it is on, whose content is the base's.
    :ivar backing_format: qcow2 or raw.
    :ivar virtual_bytes: its size.
    :ivar wanted_format: that the operator wants of all snapshots; empty for any.
    """

    path: str
    backing: str
    backing_format: str
    virtual_bytes: int
    wanted_format: str = ''


class Snapshot:
    """A snapshot that is being sent.

    :param client: the storage service.
    :param encryption: how this host connects to storage nodes.
    :param image_id: of which the server was made.
    :param snapshot_id: the image that it becomes.
    :param virtual_bytes: size of the server's disk.
    :param why_other: told of the content of the storage node's base, by its hash and by its export,
        why the disk may not be on that; returns nothing if it is.
    """

    def __init__(self, client: HostsClient, encryption: Encryption, image_id: str,
                 snapshot_id: str, virtual_bytes: int, why_other: Callable[[str, str], str]):
        self._client = client
        self._encryption = encryption
        self._image_id = image_id
        self.snapshot_id = snapshot_id
        self._virtual_bytes = virtual_bytes
        self._why_other = why_other
        # Where it is sent to, once that is known.
        self._export = ''
        self._token = secrets.token_hex(16)
        # Why the storage service gave it up meanwhile.
        self._given_up = ''
        # Whether there may be a file of its name in Glance's store.
        self._is_placed = False

    def begin(self) -> SnapshotProgress:
        """Have a copy of the base be made, and wait for it.

        :returns: where it is written, and what it is to be.
        :raises SnapshotRefused: if there is none.
        """
        try:
            told = self._until(self._ask, lambda told: bool(told.export), seconds=_BEGIN_SECONDS,
                               longest_pause=_POLL_SECONDS, away_seconds=0)
        except SnapshotRefused as error:
            # Most storage services refuse all: nothing is configured for snapshots.
            raise SnapshotRefused(str(error), True) from error
        self._export = told.export
        # What differs from one content is another disk on another one.
        if reason := self._why_other(told.image_hash, told.base_export):
            self.abandon()
            raise SnapshotRefused(reason, True)
        return told

    def _ask(self) -> SnapshotProgress:
        return self._client.send(BeginSnapshot(
            self._image_id, self.snapshot_id, self._client.hostname, self._encryption.name(),
            self._token, self._virtual_bytes))

    def finish(self) -> str:
        """Tell that all was sent; return by what Glance finds it.

        :returns: its location; empty if it is to be uploaded, once Glance knows what it is.
        :raises SnapshotRefused: if the storage service does not take it.
        """
        self._check()
        self._is_placed = True
        return self._until(
            lambda: self._client.send(FinishSnapshot(self.snapshot_id, self._token)),
            lambda told: bool(told.url) or told.upload).url

    def upload(self) -> None:
        """Have it be given to Glance, which knows what it is, and wait for that.

        :raises SnapshotRefused: if Glance does not take it, or nobody knows whether it does.
        """
        self._until(lambda: self._client.send(UploadSnapshot(self.snapshot_id, self._token)),
                    lambda told: told.uploaded)

    def _until(self, ask: Callable[[], SnapshotProgress],
               is_done: Callable[[SnapshotProgress], bool], *, seconds: float = _STEP_SECONDS,
               longest_pause: float = _LONGEST_PAUSE, away_seconds: float = _AWAY_SECONDS
               ) -> SnapshotProgress:
        answered = time.monotonic()

        def ask_once() -> SnapshotProgress:
            nonlocal answered
            try:
                told = ask()
                answered = time.monotonic()
            except (messaging.RemoteError, exception.AnswerInvalid) as error:
                raise SnapshotRefused(str(error)) from error
            except messaging.MessagingException as error:
                if time.monotonic() - answered >= away_seconds:
                    raise SnapshotRefused(
                        f'the storage service does not answer: {error}') from error
                return SnapshotProgress()
            if told.refused:
                raise SnapshotRefused(told.refused)
            return told

        try:
            return tenacity.Retrying(
                retry=tenacity.retry_if_not_result(is_done),
                stop=tenacity.stop_after_delay(seconds),
                wait=tenacity.wait_exponential(_POLL_SECONDS, longest_pause))(ask_once)
        except tenacity.RetryError:
            raise SnapshotRefused(
                f'the storage service was not done after {seconds} s') from None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Tell now and then, within the block, that this host goes on."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(_TELL_SECONDS):
                try:
                    told = self._ask()
                except (messaging.MessagingException, exception.BootcacheError) as error:
                    LOG.debug('snapshot %s: %s', self.snapshot_id, error)
                    continue
                if told.refused:
                    self._given_up = told.refused
                    return
                if told.export != self._export:
                    self._given_up = 'the storage service has begun it anew'
                    return

        teller = threading.Thread(target=tell, name='bootcache-snapshot', daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join(_TELL_SECONDS)

    def _check(self) -> None:
        if self._given_up:
            raise SnapshotRefused(self._given_up)

    def send(self, told: SnapshotProgress, overlay: SentDisk) -> None:
        """Send what an overlay holds.

        :param told: what ``begin`` returned.
        :raises SnapshotRefused: if it cannot be sent, or the storage service gave it up.
        """
        try:
            if told.server is None:
                raise SnapshotRefused('the storage service does not say where to send it')
            node = storagenode.nbd_node(*told.server, told.export,
                                        self._encryption.credentials(told.tls))
            qemuimg.send_own(overlay.path, overlay.backing, overlay.backing_format, node,
                             seconds=_SEND_SECONDS, check=self._check)
        except SnapshotRefused:
            raise
        except exception.BootcacheError as error:
            raise SnapshotRefused(f'it cannot be sent: {error}') from error

    def abandon(self) -> None:
        """Have it removed; if nobody hears that, it is given up for silence.

        Of one that may be in Glance's store it is waited for: Glance stores nothing else under its
        name before.
        """
        def log(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            if error is not None or self._is_placed:
                LOG.info('snapshot %s is not known to be removed%s', self.snapshot_id,
                         f': {error}' if error is not None else '')

        tenacity.Retrying(
            retry=tenacity.retry_if_result(operator.not_) | tenacity.retry_if_exception_type(
                (messaging.MessagingException, exception.BootcacheError)),
            stop=tenacity.stop_after_delay(_AWAY_SECONDS if self._is_placed else 0),
            wait=tenacity.wait_fixed(_LONGEST_PAUSE / 2), retry_error_callback=log)(
                lambda: self._client.send(AbandonSnapshot(self.snapshot_id, self._token)))
