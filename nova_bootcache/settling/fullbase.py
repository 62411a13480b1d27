"""Completes a full base at stock Nova's own path, in the form that stock Nova makes it.

The bytes come from the storage node that serves the image, not from Glance's API, or from other
hosts by exchange: slowly, so that servers notice nothing, and they count only once their
hash is Glance's. What is under way lies beside the base under a name that Nova's image cache
manager does not take for its own; it stays there if the work is interrupted, and the next try goes
on with it (see partial.py).

Stock Nova, too, makes bases at that path, and of what the image is then, so the content of one that
is here is looked at: after Glance's database
was restored, of another content than servers of the host were started from. A base that was made
or compared here says so itself, by an extended attribute: a file that takes its place has none.
"""

import contextlib
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache import exception, fileformat, qemuimg, savefile, steps
from bootcache.exchange import client as exchange_client
from bootcache.exchange.client import ExchangeClient, Exchanged, FetchProgress
from bootcache.rpc.messages import ExchangeWay
from bootcache.util import threads
from nova_bootcache.asking.client import ExchangeAsking, HostsClient
from nova_bootcache.settling import partial

LOG = logging.getLogger(__name__)

_ATTRIBUTE = 'user.bootcache.content'
# Each piece has a deadline of its own: a frozen storage node is not noticed otherwise.
_HASHED_PIECE = 1 << 30
_SLOWEST = 1 << 20
_GRACE_SECONDS = 600
# Such an attribute has room in the inode, and takes no block of its own.
_DIGITS = 40


def identity(path: str) -> tuple[int, int]:
    """Return what tells a file from another one that takes its name.

    :raises OSError: if there is none.
    """
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _short(content: str) -> str:
    algorithm, colon, digest = content.partition(':')
    if not colon:
        return f'name-{hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]}'
    return f'{algorithm}:{digest[:_DIGITS]}'


def note(path: str, content: str) -> None:
    """Note in a base what content it has.

    libvirt may have given the file to its own user, or its file system know no such attributes:
    it is compared again then.

    :param content: hash of the image, or the exporter's name for the base where that is not known.
    """
    try:
        os.setxattr(path, _ATTRIBUTE, _short(content).encode())
    except OSError as error:
        LOG.debug('the content of %s is not noted in it: %s', path, error)


def noted(path: str) -> str:
    """Return the begin of what content a base has; empty if it does not say."""
    try:
        return os.getxattr(path, _ATTRIBUTE).decode()
    except (OSError, UnicodeDecodeError):
        return ''


def is_noted(path: str, contents: Collection[str]) -> bool:
    """Tell whether a base says that it is of a content; no if it does not say.

    :param contents: what it may be called, as in :func:`note`.
    """
    found = noted(path)
    return any(content and found == _short(content) for content in contents)


def check(path: str, image_format: str, content: str, source: Callable[[], Mapping[str, Any]],
          rate: int, is_over: Callable[[], None]) -> tuple[int, int]:
    """Check that a base is of a content; one that does not say is compared with the storage node's.

    That reads all of both, once for a file.

    :param image_format: of the base, raw or qcow2.
    :param content: what the servers' disks stand on, as in :func:`note`.
    :param source: gives the block node of the storage node's base.
    :param rate: bytes a second that are read of it at most; 0 for no limit.
    :param is_over: called several times a second; what it raises ends the comparing.
    :returns: the identity of the file that was checked.
    :raises BootcacheError: if it is of another content, or that cannot be told.
    :raises OSError: if it is not there.
    """
    checked = identity(path)
    found = noted(path)
    if found == _short(content):
        return checked
    # Names of exports tell nothing of each other.
    is_other = ':' in found and ':' in content
    if not is_other:
        LOG.info('base %s is compared with the storage node\'s, at %d bytes a second, as it was not'
                 ' made here', path, rate)
        is_other = not _is_same(path, image_format, source(), rate, is_over)
    if is_other:
        raise exception.BootcacheError(
            f'base {path} is of another content than the disks of the image\'s servers ({content});'
            ' these stay on their cache image. Restore the image\'s content and remove the base'
            ' once no server uses it, or rebuild the servers')
    if identity(path) != checked:
        raise exception.BootcacheError(f'base {path} was replaced while it was compared')
    note(path, content)
    return checked


def _is_same(path: str, image_format: str, source: Mapping[str, Any], rate: int,
             is_over: Callable[[], None]) -> bool:
    virtual_bytes = qemuimg.info(path, image_format)['virtual-size']
    for offset in range(0, max(virtual_bytes, 1), _HASHED_PIECE):
        # The last one goes to the end of both: what is longer has to be zeros there.
        length = _HASHED_PIECE if offset + _HASHED_PIECE < virtual_bytes else None
        if not qemuimg.is_same_piece(
                source, path, image_format, offset=offset, length=length, rate=rate, check=is_over,
                seconds=_GRACE_SECONDS + 3 * _HASHED_PIECE / (rate or _SLOWEST)):
            return False
    return True


# One that is smaller is copied in less time than it takes to find the others.
_WORTH_BYTES = 4 << 20
_LOOK_SECONDS = 1.0
# In which the storage node reads the file, at least; and this host what it has of it.
_READ_RATE = 20 << 20
_READ_GRACE_SECONDS = 30
# A fetch that is slower is left to copying, in pieces.


class ExchangedBase:
    """One stored file: asked for, then fetched, then told of.

    :param asking: the storage service.
    :param image_hash: Glance's, of the file.
    :param size: of the file, in bytes.
    """

    def __init__(self, asking: ExchangeAsking, image_id: str, image_hash: str, size: int):
        self._asking = asking
        self._client = ExchangeClient(asking.socket)
        self._linger = asking.linger
        self._image_id = image_id
        self._image_hash = image_hash
        self._size = size
        self._progress: FetchProgress | None = None
        self._way: ExchangeWay | None = None
        self._copied = 0

    def ask(self, check: Callable[[], None]) -> Exchanged | None:
        """Ask from whom it can be had; waits while the storage node reads it.

        :param check: called meanwhile; what it raises ends it.
        :returns: None if all of it is to be copied.
        :raises NoSlot: if it comes from the storage node only, and it is others' turn.
        """
        if not self._asking.is_on or self._size < _WORTH_BYTES:
            return None
        try:
            # Before others are sent to this host, and what was copied earlier is handed over.
            self._client.files()
        except exception.ExchangeFailed as error:
            LOG.info('image %s: its full base is copied: %s', self._image_id, error)
            return None
        deadline = time.monotonic() + _READ_GRACE_SECONDS + self._size / _READ_RATE

        def wait() -> bool:
            check()
            time.sleep(_LOOK_SECONDS)
            return time.monotonic() < deadline

        return self._asking.ask_for_base(self._image_id, self._image_hash, wait)

    def fetch(self, wanted: Exchanged, path: str, has_some: bool, rate: int,
              check: Callable[[], None]) -> list[tuple[int, int]] | None:
        """Fetch it; what is right of the file that is there stays.

        :param path: of the file.
        :param has_some: whether something is in it, which is looked at first.
        :param rate: bytes a second at most; 0 for no limit.
        :param check: called several times a second; what it raises ends it.
        :returns: the parts that did not come, offset and length; None if it does not come this
            way: the file is to be made anew then.
        :raises OSError: if the file cannot be opened.
        """
        def look(progress: FetchProgress) -> None:
            self._progress = progress
            check()

        now = time.monotonic()
        try:
            self._progress = exchange_client.fetch(
                self._client, wanted, path, self._linger, look, rate,
                _READ_GRACE_SECONDS + 3 * self._size / (rate or _SLOWEST),
                now + (self._size / _READ_RATE if has_some else 0.0))
        except exception.ExchangeStalled as still:
            LOG.warning('image %s: others do not give all of its full base, and the rest is copied:'
                        ' %s', self._image_id, still)
            self._way = ExchangeWay.STALLED
            self._copied = sum(length for _offset, length in still.missing)
            return still.missing
        except exception.ExchangeFailed as error:
            LOG.warning('image %s: its full base is copied: %s', self._image_id, error)
            self._way, self._progress = ExchangeWay.COPIED, None
            self._copied = self._size
            return None
        self._way = ExchangeWay.EXCHANGED
        LOG.info('image %s: full base of %d bytes came from %s', self._image_id, self._size,
                 ', '.join(f'{address} ({got} bytes)'
                           for address, got in sorted(self._progress.peers.items()) if got))
        return []

    def tell(self) -> None:
        """Tell the storage service how it came, if it was to be fetched; it has been verified."""
        if self._way is not None:
            self._asking.report(self._image_id, self._image_hash, self._way, self._progress,
                                self._copied,
                                gives=bool(self._linger) and self._way == ExchangeWay.EXCHANGED)


# The storage service takes it back from a host from which it hears nothing for a minute.
_TELL_SECONDS = 15.0


class StorageSlot:
    """Taken before bytes come from the storage node, and given back when they have come.

    :param storage: the storage service.
    :param clock: monotonic seconds.
    """

    def __init__(self, storage: HostsClient, clock: Callable[[], float] = time.monotonic):
        self._storage = storage
        self._clock = clock
        # When it was told last that it is used; None where there is none.
        self._told: float | None = None

    def take(self) -> None:
        """Take it, if this host has none.

        :raises NoSlot: if others have all of them.
        :raises MessagingException: if the storage service does not answer.
        """
        if self._told is None:
            self._storage.take_slot()
            self.was_given()

    def was_given(self) -> None:
        """Note that the storage service has given it with another answer."""
        self._told = self._clock()

    def keep(self) -> None:
        """Tell now and then that it is used; cheap."""
        if self._told is not None and self._clock() - self._told >= _TELL_SECONDS:
            self._told = self._clock()
            self._storage.hold_slot(True)

    def give_back(self) -> None:
        """Let another host have it, if this one has it."""
        if self._told is not None:
            self._told = None
            self._storage.hold_slot(False)


SUFFIX = '.bootcache'
FORMATS = ('qcow2', 'raw')
# The file as Glance has it, the same converted, what is noted of each, and that half-written.
_OURS = re.compile(r'(?P<path>(?P<base>[^.]+)\.bootcache(\.raw)?)(\.json(?P<torn>\.\w+\.tmp)?)?')
_CHUNK = 1 << 20
# What is copied again after an interruption, at most. A conversion reads this host's disk only.
_PIECE = 64 << 20
_CONVERTED_PIECE = 1 << 30


class _Unverified(exception.BootcacheError):
    """What has been copied is not what Glance has, or that cannot be told."""


class _IsThere(exception.BootcacheError):
    """Somebody else, stock Nova for instance, has made the base."""


def complete(source: Mapping[str, Any], stored_bytes: int, image_hash: str, image_format: str,
             target: str, *, raw: bool, rate: int, keep_free: int, cancelled: threading.Event,
             lock: contextlib.AbstractContextManager[Any],
             others: ExchangedBase | None = None, slot: StorageSlot | None = None) -> bool:
    """Make a full base: ``target`` appears whole and verified, or not at all.

    One caller at a time for a target. What was copied stays for the next call if the work is
    interrupted, unless space is short: see ``sweep``.

    :param source: block node of the stored image file, see storagenode.py; its size is
        ``stored_bytes`` rounded up to a sector.
    :param stored_bytes: size of the image file as Glance has it.
    :param image_hash: Glance's hash of that file, ``algorithm:hexadecimal``.
    :param image_format: qcow2 or raw, as Glance says; never probed.
    :param target: Nova's path of the base.
    :param raw: whether Nova converts bases ([DEFAULT]force_raw_images).
    :param rate: bytes of data a second that are copied, hashed and converted at most, holes not
        counted; 0 for no limit.
    :param keep_free: bytes of the file system that have to stay free.
    :param cancelled: when it is set, the work is given up within a second.
    :param lock: Nova's lock of the base's name; entered for the last step only.
    :param others: bring the stored file from other hosts; None if it is copied.
    :param slot: is had while anything comes from the source; None if that is not the storage node.
    :returns: False if somebody else completed the base meanwhile; theirs stays.
    :raises Cancelled: if ``cancelled`` was set.
    :raises NoSlot: if it is others' turn; what came stays, as with any interruption.
    :raises ImageRefused: if stock Nova would refuse the image as well.
    :raises BootcacheError: if it cannot be copied, is not what Glance has, or the space is short.
    """
    if image_format not in FORMATS:
        raise exception.ImageRefused(f'{target}: format {image_format} is not served; boot its'
                                     ' servers the stock way')
    work = _Work(target, rate, keep_free, cancelled, others, slot)
    stored, converted = f'{target}{SUFFIX}', f'{target}{SUFFIX}.raw'
    began = time.monotonic()
    is_over = False
    try:
        work.check()
        work.fetch(source, stored_bytes, image_hash, stored)
        virtual_bytes = _inspect(stored, image_format)
        made = stored
        if raw and image_format != 'raw':
            work.copy(_file_node(stored, image_format), virtual_bytes, image_hash, converted,
                      _CONVERTED_PIECE)
            _inspect(converted, 'raw')
            made = converted
        # As Nova leaves them; libvirt gives the file to its own user when a server starts.
        os.chmod(made, 0o644)
        note(made, image_hash)
        work.check()
        steps.reached('settle: verified')
        with lock:
            work.check_missing()
            savefile.commit(made, target)
        is_over = True
    except _IsThere as error:
        LOG.info('%s', error)
        is_over = True
        return False
    except (exception.ImageRefused, _Unverified):
        is_over = True
        raise
    except OSError as error:
        raise exception.BootcacheError(f'base {target} cannot be completed: {error}') from error
    finally:
        work.give_back()
        for path in (stored, converted):
            if is_over or not work.has_room() or not partial.is_usable(path):
                partial.remove(path)
    LOG.info('base %s completed in %.0f s', target, time.monotonic() - began)
    return True


def sweep(directory: str, wanted: Container[str] | None = None, keep_free: int = 0) -> None:
    """Remove what was left half-made beside the bases; nobody may be at work there.

    What a copy can go on from stays, if its base is wanted, something was added to it not too long
    ago, and there is room.

    :param directory: Nova's ``_base``; need not exist.
    :param wanted: names of the bases that are still to be completed; None while nobody knows.
    :param keep_free: bytes of the file system that have to stay free.
    :raises OSError: if something cannot be removed.
    """
    try:
        names = os.listdir(directory)
        has_room = shutil.disk_usage(directory).free >= keep_free
    except FileNotFoundError:
        return
    for name in names:
        found = _OURS.fullmatch(name)
        if found is None:
            continue
        base, path = found['base'], os.path.join(directory, found['path'])
        is_wanted = (wanted is None or base in wanted) \
            and not os.path.exists(os.path.join(directory, base))
        if found['torn'] or not (is_wanted and has_room and partial.is_usable(path)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


class _Work:
    """The steps that take long, and what may end them."""

    def __init__(self, target: str, rate: int, keep_free: int, cancelled: threading.Event,
                 others: ExchangedBase | None = None, slot: StorageSlot | None = None):
        self._target = target
        self._rate = rate
        self._keep_free = keep_free
        self._cancelled = cancelled
        self._others = others
        self._slot = slot

    def check(self) -> None:
        """Raise where there is a reason to end."""
        if self._slot is not None:
            self._slot.keep()
        if self._cancelled.is_set():
            raise exception.Cancelled(f'base {self._target} is not completed now')
        self.check_missing()
        free = self._free()
        if free < self._keep_free:
            raise exception.BootcacheError(
                f'base {self._target} is not completed: {free} bytes are free, and'
                f' {self._keep_free} have to stay so; make room in the instances directory')

    def check_missing(self) -> None:
        """Raise if the base is there."""
        if os.path.exists(self._target):
            raise _IsThere(f'base {self._target} has been made by somebody else meanwhile')

    def _free(self) -> int:
        return shutil.disk_usage(os.path.dirname(self._target)).free

    def has_room(self) -> bool:
        """Tell whether there is room to go on later; what has been copied is in the way else."""
        try:
            return self._free() >= self._keep_free + _PIECE
        except OSError:
            return False

    def copy(self, source: Mapping[str, Any], length: int, image_hash: str, path: str,
             piece_bytes: int) -> int:
        """Copy ``length`` bytes at the rate; return how many of them an earlier try had copied."""
        return partial.Partial(path, image_hash, length).copy(
            source, piece_bytes=piece_bytes, rate=self._rate, check=self.check)

    def fetch(self, source: Mapping[str, Any], stored_bytes: int, image_hash: str,
              path: str) -> None:
        """Have the stored file come, and verify it."""
        part = partial.Partial(path, image_hash, stored_bytes)
        before = stored_bytes if self._exchange(source, part, path) \
            else self._copy_stored(source, stored_bytes, image_hash, path)
        self.give_back()
        try:
            self.verify(path, image_hash)
            if self._others is not None:
                self._others.tell()
        except _Unverified as error:
            if not before:
                raise
            LOG.warning('%s; it began with %d bytes of an earlier try or of other hosts, and is'
                        ' copied anew', error, before)
            partial.remove(path)
            self._copy_stored(source, stored_bytes, image_hash, path)
            self.give_back()
            self.verify(path, image_hash)

    def _copy_stored(self, source: Mapping[str, Any], stored_bytes: int, image_hash: str,
                     path: str) -> int:
        self._take()
        return self.copy(source, stored_bytes, image_hash, path, _PIECE)

    def _take(self) -> None:
        """Have leave to get something from the source."""
        if self._slot is not None:
            self._slot.take()

    def give_back(self) -> None:
        """Let other hosts get something from the source."""
        if self._slot is not None:
            self._slot.give_back()

    def _exchange(self, source: Mapping[str, Any], part: partial.Partial, path: str) -> bool:
        """Have the stored file come from other hosts; False if it is to be copied."""
        if self._others is None or (wanted := self._others.ask(self.check)) is None:
            return False
        if self._slot is not None and wanted.has_slot:
            self._slot.was_given()
        missing = self._others.fetch(wanted, path, part.scatter(), self._rate, self.check)
        if missing is None:
            partial.remove(path)
            return False
        if missing:
            self._take()
        part.fill(source, missing, piece_bytes=_PIECE, rate=self._rate, check=self.check)
        return True

    def verify(self, path: str, image_hash: str) -> None:
        """Read the file once and compare its hash with Glance's."""
        algorithm, _, wanted = image_hash.partition(':')
        try:
            digest = hashlib.new(algorithm)
        except ValueError as error:
            raise _Unverified(
                f'base {self._target} cannot be verified: Glance\'s hash is {image_hash!r}, whose'
                ' algorithm is not known here') from error
        began, done = time.monotonic(), 0
        with open(path, 'rb') as stream:
            def read() -> bytes:
                chunk = stream.read(_CHUNK)
                digest.update(chunk)
                return chunk

            while chunk := threads.run_native(read):
                # What is zero was copied as a hole, and costs the disk nothing.
                done += len(chunk) if chunk.lstrip(b'\0') else 0
                self.check()
                ahead = done / self._rate - (time.monotonic() - began) if self._rate else 0.0
                time.sleep(min(max(ahead, 0.0), 0.5))
        if digest.hexdigest() != wanted.lower():
            raise _Unverified(
                f'base {self._target} is not completed: what the storage node serves has'
                f' {algorithm} {digest.hexdigest()}, but Glance says {wanted}; register the image'
                ' anew (bootcache image build)')


def _file_node(path: str, image_format: str) -> dict[str, Any]:
    return {'driver': image_format, 'backing': None, 'read-only': True,
            'file': {'driver': 'file', 'filename': path, 'read-only': True}}


def _inspect(path: str, image_format: str) -> int:
    """Refuse what Nova's ``images.fetch_to_raw`` refuses; return the virtual size in bytes."""
    try:
        inspector = threads.run_native(lambda: fileformat.inspect(path))
        fileformat.check_safe(inspector)
    except exception.ImageRefused as error:
        raise exception.ImageRefused(f'{path}: {error}') from error
    found = str(inspector)
    # An image with a partition table is raw for Glance.
    if found != image_format and not (image_format == 'raw' and found == 'gpt'):
        raise exception.ImageRefused(f'{path} is {found}, but has to be {image_format}')
    details = qemuimg.info(path, image_format)
    specific = details.get('format-specific', {}).get('data', {})
    for fault, present in (('a backing file', details.get('full-backing-filename')
                            or details.get('backing-filename')),
                           ('an external data file', specific.get('data-file')),
                           ('encryption', details.get('encrypted'))):
        if present:
            raise exception.ImageRefused(f'{path} has {fault}, which Nova does not take')
    return int(details['virtual-size'])
