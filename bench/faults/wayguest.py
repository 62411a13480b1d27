"""Guests of a stage that are QEMU's, below a libvirtd of its own: they read places of their disk.

Each runs 16-bit code on a PC's BIOS, which reads 4 KiB at a time and tells its console of each read
as it begins and when it has its answer. As servers have it, QEMU stops a guest whose disk gives an
error; the product lets it go on.
"""

import contextlib
import dataclasses
import itertools
import socket
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import libvirt
import libvirt_qemu

from bench.faults.storageside import log_to
from bench.faults.wayplan import Event, Figures, figures_of
from nova_bootcache.standstill import errorstop
from tools import libvirtd

# Of the disk of 24 MiB, the last 8 MiB, of which a boot has read nothing (images.py).
_BEGIN, _BLOCK = 16 << 20, 4096
_FAILED = 0xffffffff
# QEMU's own, which have the moment: libvirt may be slow to tell.
_EVENTS = {'STOP': Event.STOPPED, 'RESUME': Event.RESUMED}

# xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 0x7c00; cld; again: imul eax, [0x7d00], 1103515245;
# add eax, 12345; mov [0x7d00], eax; shr eax, 8; and eax, 0x7ff; shl eax, 3; add eax, 32768;
# mov [0x7d18], eax; call tell; mov si, 0x7d10; mov ah, 0x42; mov dl, 0x81; int 0x13;
# mov eax, -1; jc failed; xor eax, eax; mov si, 0x8000; mov cx, 1024; sum: rol eax, 1;
# add eax, [si]; add si, 4; loop sum; failed: call tell; mov cx, 1; mov dx, 0x86a0; mov ah, 0x86;
# int 0x15 (0.1 s); jmp again; tell: mov dx, 0x3f8; mov cx, 8; digit: rol eax, 4; push ax;
# and al, 15; add al, 'A'; out dx, al; pop ax; loop digit; push ax; mov al, 10; out dx, al; pop ax;
# ret. At 0x7d00: where it is in its order of places. At 0x7d10: 8 sectors to 0x8000.
_CODE = bytes.fromhex(
    '31c08ed88ed0bc007cfc666906007d6d4ec64166053930000066a3007d66c1e8086625ff07000066c1e0'
    '0366050080000066a3187de83400be107db442b281cd1366b8ffffffff72146631c0be0080b9000466d1'
    'c066030483c604e2f5e80c00b90100baa086b486cd15eb9ebaf803b9080066c1c00450240f0441ee58e2'
    'f350b00aee58c3').ljust(0x100, b'\0')
_PACKET = bytes.fromhex('1000080000800000').ljust(16, b'\0')


def sum_of(block: bytes) -> int:
    """Return the sum of 4 KiB that a guest tells. Pure."""
    found = 0
    for place in range(0, _BLOCK, 4):
        found = (found << 1 | found >> 31) & _FAILED
        found = found + int.from_bytes(block[place:place + 4], 'little') & _FAILED
    return found


def _boot_disk(seed: int) -> bytes:
    code = (_CODE + seed.to_bytes(16, 'little') + _PACKET).ljust(510, b'\0')
    # The BIOS knows nothing smaller by cylinders.
    return (code + b'\x55\xaa').ljust(8 << 20, b'\0')


def _xml(server_id: str, bus: str, disk: str, place: str) -> str:
    policies = ' '.join(f"{name}='{value}'" for name, value in errorstop.POLICIES.items())
    return f"""<domain type='qemu'>
  <name>guest-{server_id}</name><uuid>{server_id}</uuid><memory unit='MiB'>16</memory>
  <os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/></features>
  <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <controller type='scsi' model='virtio-scsi'/>
    <disk type='file' device='disk'><driver name='qemu' type='raw'/>
      <source file='{place}.boot'/><target dev='vdz' bus='virtio'/><boot order='1'/></disk>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2' {policies}/>
      <source file='{disk}'/><target dev='{'sda' if bus == 'scsi' else 'vda'}' bus='{bus}'/>
      <boot order='2'/></disk>
    <serial type='unix'><source mode='bind' path='{place}.console'/><target port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>"""


class _Guest:
    """One guest, from its start on.

    :param sums: of all places, by their sectors.
    """

    def __init__(self, console: str, sums: dict[int, int]):
        self._sums = sums
        self._lock = threading.Lock()
        self._events: list[tuple[float, Event]] = []
        self._errors = self._wrong = 0
        self._console = socket.socket(socket.AF_UNIX)
        self._console.connect(console)
        threading.Thread(target=self._hear, daemon=True).start()

    def note(self, moment: float, event: Event) -> None:
        """Note what was told of it, at a moment in monotonic seconds."""
        with self._lock:
            self._events.append((moment, event))

    def begin(self) -> None:
        """Count anew."""
        with self._lock:
            # A read may be under way.
            self._events = [one for one in self._events[-1:] if one[1] is Event.BEGUN]
            self._errors = self._wrong = 0

    def figures(self, since: float | None) -> Figures:
        """Return what was seen since it was begun.

        :param since: the moment of ``until_on``, in monotonic seconds.
        """
        with self._lock:
            return dataclasses.replace(figures_of(self._events, time.monotonic(), since),
                                       errors=self._errors, wrong=self._wrong)

    def _hear(self) -> None:
        place: int | None = None
        with self._console.makefile('rb') as stream:
            for line in stream:
                told = line.strip()
                if len(told) != 8 or not all(65 <= digit < 81 for digit in told):
                    # What the BIOS says.
                    continue
                now, value = time.monotonic(), 0
                for digit in told:
                    value = value << 4 | digit - 65
                self.note(now, Event.BEGUN if place is None else Event.ENDED)
                if place is None:
                    place = value
                    continue
                with self._lock:
                    self._errors += value == _FAILED
                    self._wrong += _BLOCK * (value not in (_FAILED, self._sums[place]))
                place = None
        with self._lock:
            self._errors += 1


def _dispatch() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


class QemuSide:
    """A host's QEMUs; made in its process.

    :param directory: of the stage.
    """

    def __init__(self, directory: str):
        log_to(f'{directory}/log/qemu.log')
        self._home = home(directory)
        Path(self._home).mkdir(exist_ok=True)
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_dispatch, daemon=True).start()
        self._process, self._connection = libvirtd.start(self._home)
        for name in _EVENTS:
            libvirt_qemu.qemuMonitorEventRegister(self._connection, None, name, self._note, None)
        # By their servers.
        self._guests: dict[str, _Guest] = {}
        self._sums: dict[int, int] = {}
        self._numbers = itertools.count()

    def know(self, raw: str) -> None:
        """Learn what the image's bytes are."""
        content = Path(raw).read_bytes()
        self._sums = {place // 512: sum_of(content[place:place + _BLOCK])
                      for place in range(_BEGIN, len(content), _BLOCK)}

    def start(self, server_id: str, bus: str, disk: str) -> None:
        """Start a guest.

        :param bus: of its disk, scsi or virtio.
        """
        place = f'{self._home}/{next(self._numbers)}'
        Path(f'{place}.boot').write_bytes(_boot_disk(zlib.crc32(server_id.encode())))
        self._connection.createXML(_xml(server_id, bus, disk, place), 0)
        self._guests[server_id] = _Guest(f'{place}.console', self._sums)

    def _note(self, _connection: Any, domain: Any, name: str, seconds: int, micros: int,
              *_details: Any) -> None:
        if (guest := self._guests.get(domain.UUIDString())) is not None:
            guest.note(seconds + micros / 1e6 - time.time() + time.monotonic(), _EVENTS[name])

    def begin(self) -> None:
        """Count anew."""
        for guest in self._guests.values():
            guest.begin()

    def figures(self, since: float | None = None) -> list[Figures]:
        """Return what was seen of each guest: see ``Figures``.

        :param since: the moment of ``until_on``.
        """
        return [guest.figures(since) for guest in self._guests.values()]

    def end_guests(self) -> None:
        """End all guests; what was seen of them is forgotten."""
        self._guests.clear()
        for domain in self._connection.listAllDomains():
            with contextlib.suppress(libvirt.libvirtError):
                domain.destroy()

    def stop(self) -> None:
        """End all of it."""
        self.end_guests()
        self._process.terminate()
        self._process.wait()

    def left(self) -> list[str]:
        """Return nothing: what it has is in its own directory."""
        return []


def home(directory: str) -> str:
    """Return where a stage's libvirtd has its files. Pure."""
    return f'{directory}/v'
