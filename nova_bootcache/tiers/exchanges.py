"""Cache images that come to this host from others, instead of from the storage node alone."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, qemuimg
from bootcache.exchange import client
from bootcache.exchange.client import ExchangeClient, Exchanged, FetchProgress
from bootcache.manifest import CacheInfo
from bootcache.rpc.messages import ExchangeWay
from bootcache.util import threads
from nova_bootcache.asking.client import ExchangeAsking
from nova_bootcache.gateway import sharedstore
from nova_bootcache.metrics import BytesFrom, HostMetrics
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

# One that is smaller is copied in less time than it takes to find the others.
_WORTH_BYTES = 4 << 20
_SECTOR = 512
# Each takes a process: hundreds of pieces that others did not give are copied with what is between.
_MOST_COPIES = 8


class Exchanges:
    """Brings cache images by exchange, if that can be had.

    :param conf: Nova's configuration, with the driver's options registered.
    :param asking: tells who has them.
    :param metrics: count the bytes that come.
    """

    def __init__(self, conf: cfg.ConfigOpts, asking: ExchangeAsking, metrics: HostMetrics):
        self._conf = conf[bootcache_conf.GROUP]
        self._asking = asking
        self._metrics = metrics
        self._client = ExchangeClient(self._conf.exchange_socket)

    def is_worth_it(self, info: CacheInfo) -> bool:
        """Tell whether it is to be asked for what other hosts have of a cache image."""
        return self._asking.is_on and info.bytes >= _WORTH_BYTES

    def bring(self, remote: Remote, wanted: Exchanged, info: CacheInfo, path: str,
              source: dict[str, Any], *, rate: int, seconds: float, stalled: float, gives_on: bool,
              check: Callable[[], None], begun: float) -> bool:
        """Bring a cache image from other hosts; what they have not is copied.

        :param remote: where the storage node's exporter is.
        :param wanted: what ``ask`` has returned.
        :param path: of the file that it comes into.
        :param source: the storage node's file, as a block node.
        :param rate: bytes a second at most; 0 for no limit.
        :param seconds: that it may take, and copying what others have not again.
        :param stalled: seconds in which nothing comes, after which copying is given up.
        :param gives_on: whether the file stays as it is, so that this host can give it to others.
        :param check: called several times a second; what it raises ends it.
        :param begun: since when it has been waited for, in monotonic seconds.
        :returns: False if it has to be copied from the storage node, all of it.
        :raises BootcacheError: if what others have not cannot be copied either.
        :raises OSError: if the file cannot be written.
        """
        _take_room(path, info.bytes)
        seen: list[FetchProgress] = []

        def look(progress: FetchProgress) -> None:
            seen[:] = [progress]
            check()

        try:
            progress = client.fetch(self._client, wanted, path,
                                      self._conf.exchange_linger if gives_on else 0.0,
                                      look, rate, seconds, begun)
        except exception.ExchangeStalled as still:
            LOG.warning('image %s: others do not give all of its cache image, and the rest is'
                        ' copied: %s', remote.image_id, still)
            parts = joined(still.missing, _MOST_COPIES)
            _copy(parts, info.bytes, path, source, rate, seconds,
                  check if rate else _unless_stalled(path, stalled, check))
            copied = sum(length for _, length in parts)
            self._count(wanted, seen[0] if seen else None, copied)
            self._asking.report(remote.image_id, wanted.sha256, ExchangeWay.STALLED,
                                seen[0] if seen else None, copied, gives=False)
            return True
        except exception.ExchangeFailed as error:
            LOG.warning('image %s: its cache image is copied: %s', remote.image_id, error)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return False
        LOG.info('image %s: cache image of %d bytes came from %s', remote.image_id, info.bytes,
                 ', '.join(f'{address} ({got} bytes)'
                           for address, got in sorted(progress.peers.items()) if got))
        self._count(wanted, progress, 0)
        self._asking.report(remote.image_id, wanted.sha256, ExchangeWay.EXCHANGED, progress, 0,
                            gives=gives_on and bool(self._conf.exchange_linger))
        return True

    def _count(self, wanted: Exchanged, progress: FetchProgress | None, copied: int) -> None:
        storage_nodes = {address for address, _port in wanted.reserve}
        for address, got in progress.peers.items() if progress else ():
            self._metrics.count_bytes(BytesFrom.STORAGE_NODE if address in storage_nodes
                                      else BytesFrom.PEERS, got)
        self._metrics.count_bytes(BytesFrom.STORAGE_NODE, copied)

    def give(self, image_id: str, wanted: Exchanged, path: str, is_told: bool = False) -> None:
        """Give a cache image that is here to hosts that were told of this one.

        :param wanted: what ``ask`` has returned.
        :param path: of its file, which is verified.
        :param is_told: whether ``bring`` has told how it came; else all of it was copied.
        """
        if not self._conf.exchange_linger:
            return
        try:
            size = os.stat(path).st_size
            self._client.give(wanted.torrent, path, self._conf.exchange_linger)
        except (exception.ExchangeFailed, OSError) as error:
            LOG.info('image %s: its cache image is not given to other hosts: %s', image_id, error)
            return
        if not is_told:
            self._asking.report(image_id, wanted.sha256, ExchangeWay.COPIED, None, size,
                                gives=True)

    def ask(self, image_id: str, info: CacheInfo) -> Exchanged | None:
        """Ask from whom a cache image can be had; others are told that this host gives it soon.

        :param info: of one that ``is_worth_it``.
        :returns: None if all of it is to be copied from the storage node.
        """
        return self._asking.ask_for_cache(image_id, info.sha256)


def _take_room(path: str, size: int) -> None:
    """Have a new file's room be this process's, before another one writes to it.

    In memory it counts for who takes it for as long as the file is there, and the exchange's unit
    allows little: it would be killed for the cache images of a memory tier.

    :param size: bytes; the file stays empty.
    :raises OSError: if there is not so much.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    threads.run_native(lambda: sharedstore.hold(path, size))


def _copy(missing: list[tuple[int, int]], size: int, path: str, source: dict[str, Any],
          rate: int, seconds: float, check: Callable[[], None]) -> None:
    whole, deadline = -(-size // _SECTOR) * _SECTOR, time.monotonic() + seconds
    os.truncate(path, whole)
    for offset, length in missing:
        # A piece that came in part, or wrong; copying leaves zeros out.
        sharedstore.clear(path, offset, length)
    for offset, length in missing:
        qemuimg.copy_piece(source, path, offset=offset, length=min(length, whole - offset),
                           target_bytes=whole - offset, rate=rate,
                           seconds=max(0.0, deadline - time.monotonic()), check=check)
    os.truncate(path, size)


def joined(parts: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Join those parts of a file between which the least lies. Pure.

    :param parts: offset and length of each, in their order.
    :param most: how many there may be then; at least 1.
    """
    gaps = sorted(range(1, len(parts)),
                  key=lambda number: parts[number][0] - sum(parts[number - 1]))
    closed = set(gaps[:max(0, len(parts) - most)])
    found: list[tuple[int, int]] = []
    for number, (offset, length) in enumerate(parts):
        if number in closed:
            offset, length = found[-1][0], offset + length - found.pop()[0]
        found.append((offset, length))
    return found


def _unless_stalled(path: str, stalled: float, check: Callable[[], None]) -> Callable[[], None]:
    there, since = 0, time.monotonic()

    def checked() -> None:
        nonlocal there, since
        check()
        # It has all of its blocks already.
        if (written := os.stat(path).st_mtime_ns) != there:
            there, since = written, time.monotonic()
        if time.monotonic() - since >= stalled:
            raise exception.BootcacheError(f'{path}: nothing has come for {stalled:.0f} s')

    return checked

