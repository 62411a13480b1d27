"""The calls of the storage service's RPC API of files that hosts give to each other."""

from typing import Any

# In which a host is told from whom it may have a file; else it copies, five seconds late at most.
_SECONDS = 4
# How a file came that was asked for by exchange: all of it, in part, or not.
EXCHANGED = 'exchanged'
STALLED = 'stalled'
COPIED = 'copied'
WAYS = (EXCHANGED, STALLED, COPIED)
# Givers that are named in a report of it.
MOST_GIVERS = 64


class ExchangeCalls:
    """Those of rpcapi.StorageAPI, which sends them."""

    def _call(self, method: str, **arguments: Any) -> Any:
        raise NotImplementedError

    def _cast(self, method: str, **arguments: Any) -> None:
        raise NotImplementedError

    def exchange_cache(self, image_id: str, host: str, sha256: str, address: str, port: int,
                       rack: str) -> dict[str, Any] | None:
        """Ask from whom a cache image can be had that ``plan_boot`` offers; others are told of us.

        :param sha256: of its file.
        :param address: of this host's exchange, as is the port.
        :param rack: that the host is in; empty if it does not know.
        :returns: ``torrent`` (in base64), ``peers`` (``[address, port]`` of each) and ``reserve``
            (likewise, for when these do not go on); None if it is to be copied.
        """
        answer: dict[str, Any] | None = self._call(
            'exchange_cache', seconds=_SECONDS,
            # It waits for another process than the service's own.
            counts=False, image_id=image_id, host=host, sha256=sha256, address=address, port=port,
            rack=rack)
        return answer

    def exchange_base(self, image_id: str, host: str, image_hash: str, address: str, port: int,
                      rack: str) -> dict[str, Any] | None:
        """Ask from whom an image's stored file can be had, as ``exchange_cache`` does.

        :param image_hash: of the file, as ``serve_stored`` tells it.
        :returns: also ``slot``: whether the storage node is among those, and the host has a slot
            for that, as by ``take_slot``. Or ``{'wait': True}``: the file is being read, and it is
            to be asked again; with ``again``: nobody else has it yet, and others have all slots;
            it is to be asked again in so many seconds.
        """
        answer: dict[str, Any] | None = self._call(
            'exchange_base', seconds=_SECONDS, counts=False, image_id=image_id, host=host,
            image_hash=image_hash, address=address, port=port, rack=rack)
        return answer

    def take_slot(self, host: str) -> float:
        """Ask for leave to get full bases from the storage node.

        :returns: 0 if the host has it. If others do: the seconds in which to ask again; the host
            keeps its place among those that wait if it does.
        """
        answer: float = self._call('take_slot', host=host)
        return answer

    def hold_slot(self, host: str, holds: bool) -> None:
        """Tell that a host uses its slot, or (``holds`` False) that it needs none any more."""
        self._cast('hold_slot', host=host, holds=holds)

    def report_exchange(self, image_id: str, host: str, file: str, way: str,
                        got: list[list[Any]], copied: int, gives: bool) -> None:
        """Tell how a file came that was asked for by exchange; all of it is there.

        :param file: the SHA-256 of a cache image, or the hash of a stored file.
        :param way: one of ``WAYS``.
        :param got: ``[address, bytes]`` of those that gave most.
        :param copied: bytes that the storage node's exporter gave.
        :param gives: whether the host gives it to others.
        """
        self._cast('report_exchange', image_id=image_id, host=host, file=file, way=way, got=got,
                   copied=copied, gives=gives)
