"""A server of a stage: a daemon that opens its chain as QEMU does, and a guest that looks at bytes.

The guest plays a boot's requests one after the other, and compares all that it reads with the
image and with what it has written itself. A request that QEMU refuses is asked again, as it is by
a QEMU with rerror=stop when its host lets it go on; for so long the guest is paused.
"""

import time
from pathlib import Path
from typing import Any

import nbd

from bench.faults.storageside import log_to
from bench.replay import trace
from bench.replay.trace import Request
from bootcache import exception
from bootcache.storagedaemon import StorageDaemon, UnixListener

EXPORT = 'disk'
# After which a request that did not come to an end is an error.
_PATIENCE = 180.0
_PAUSE = 0.1


class Crashed(Exception):
    """The process that has the disk open is gone."""


class GuestSide:
    """A server; made in its process.

    :param directory: of the stage.
    """

    def __init__(self, directory: str):
        log_to(f'{directory}/log/guest.log')
        self._directory = directory
        self._daemon = StorageDaemon('qemu', f'{directory}/q', UnixListener(f'{directory}/q/nbd'))
        self._content = bytearray()
        # What was written since the last flush: after a crash it may be there or not.
        self._unflushed: list[tuple[int, int]] = []
        self._unknown: list[tuple[int, int]] = []
        self._pauses, self._waited, self._wrong, self._errors = 0, 0.0, 0, 0

    def know(self, raw: str) -> None:
        """Learn what the image's bytes are; nothing is written yet."""
        self._content = bytearray(Path(raw).read_bytes())
        self._unflushed, self._unknown = [], []

    def start(self, disk: str) -> None:
        """Open a disk with its chain, as the header has it."""
        self._daemon.stop()
        self._daemon.ensure_running()
        self._daemon.add_nodes({'driver': 'qcow2', 'node-name': 'disk',
                                'file': {'driver': 'file', 'filename': disk}})
        self._daemon.add_export(EXPORT, 'disk', writable=True)

    def stop(self) -> None:
        """Close it."""
        self._daemon.stop()

    def play(self, requests: list[Request], think: float, grace: float = 0.0) -> dict[str, Any]:
        """Play requests; what came of it.

        :param think: seconds before each.
        :param grace: seconds for which a request may take longer than otherwise.
        """
        self._pauses, self._waited, self._wrong, self._errors = 0, 0.0, 0, 0
        handle, crashed = None, False
        for number, one in enumerate(requests):
            time.sleep(think)
            noise = (number % 255 + 1).to_bytes(1, 'little') * one.length
            began, ended = time.monotonic(), False
            while not ended and time.monotonic() - began < _PATIENCE + grace:
                try:
                    handle = handle or self._connect()
                    self._do(handle, one, noise)
                    ended = True
                except Crashed:
                    crashed = True
                    break
                except nbd.Error:
                    handle = None
                    self._pauses += 1
                    time.sleep(_PAUSE)
            if crashed:
                break
            self._waited = max(self._waited, time.monotonic() - began)
            if not ended:
                self._errors += 1
                break
        if handle is not None and not crashed:
            handle.shutdown()
        if crashed:
            self._unknown += self._unflushed
        return {'crashed': crashed, 'pauses': self._pauses, 'waited': self._waited,
                'wrong': self._wrong, 'errors': self._errors}

    def _connect(self) -> nbd.NBD:
        if self._daemon.pid() is None:
            raise Crashed
        handle = nbd.NBD()
        handle.set_export_name(EXPORT)
        handle.connect_unix(f'{self._directory}/q/nbd')
        return handle

    def _do(self, handle: nbd.NBD, one: Request, noise: bytes) -> None:
        if one.op == trace.READ:
            self._compare(one.offset, bytes(handle.pread(one.length, one.offset)))
        elif one.op == trace.WRITE:
            handle.pwrite(noise, one.offset)
            self._content[one.offset:one.end] = noise
            self._unflushed.append((one.offset, one.end))
        elif one.op == trace.FLUSH:
            handle.flush()
            self._unflushed = []

    def _compare(self, offset: int, found: bytes) -> None:
        wanted = self._content[offset:offset + len(found)]
        if found == wanted:
            return
        doubtful = [(max(begin - offset, 0), min(end - offset, len(found)))
                    for begin, end in self._unknown if begin < offset + len(found) and end > offset]
        self._wrong += sum(a != b for place, (a, b) in enumerate(zip(found, wanted, strict=True))
                           if not any(begin <= place < end for begin, end in doubtful))

    def left(self) -> list[str]:
        """Return nothing: what it has open is in its own directory."""
        try:
            return [f'server\'s export {name}' for name in self._daemon.exports()]
        except exception.BootcacheError:
            return []
