"""Guests of one boot sector each that mean harm: images that run in a second, also by TCG.

Each is 16-bit code for a PC's BIOS, in hexadecimal, with its assembler beside it.
"""

import os
import random
import struct

MIB = 1 << 20
IMAGE_BYTES = 256 * MIB
NO_CARD, CARD = 'there is no network card', 'there is a network card'

# xor ax, ax; mov ds, ax; mov si, 0x7c40; again: mov ah, OPERATION; mov al, 0; int 0x13;
# add word [0x7c48], 127; adc word [0x7c4a], 0; jmp again. At 0x7c40: 127 sectors from 0x8000.
_DISK = '31c08ed8be407cb4{:02x}b000cd138106487c7f0083164a7c00ebed'
_PACKET = bytes.fromhex('10007f000080000001000000' + '00000000')
# xor ax, ax; mov ds, ax; mov si, 0x7c40; mov dx, 0x3f8; cld; again: lodsb; test al, al; jz end;
# out dx, al; jmp again; end: hlt; jmp end. What it says is at 0x7c40.
_SPEAK = '31c08ed8be407cbaf803fcac84c07403eeebf8f4ebfd'
# mov ebx, 0x80000008; next: mov eax, ebx; mov dx, 0xcf8; out dx, eax; mov dx, 0xcfc; in eax, dx;
# shr eax, 24; cmp al, 2; je found; add ebx, 0x100; cmp ebx, 0x81000008; jb next; xor ax, ax;
# mov ds, ax; mov si, 0x7c80; jmp speak; found: xor ax, ax; mov ds, ax; mov si, 0x7cb0; speak: as
# above from mov dx on. Each PCI device of all buses is asked for its class.
_PCI = ('66bb08000080' '6689d8' 'baf80c' '66ef' 'bafc0c' '66ed' '66c1e818' '3c02' '7419'
        '6681c300010000' '6681fb08000081' '72db' '31c08ed8' 'be807c' 'eb07' '31c08ed8' 'beb07c'
        'baf803fcac84c07403eeebf8f4ebfd')

# Reads its disk, and then again; writes to it, past its end as well.
READS = bytes.fromhex(_DISK.format(0x42)).ljust(0x40, b'\0') + _PACKET
WRITES = bytes.fromhex(_DISK.format(0x43)).ljust(0x40, b'\0') + _PACKET
# mov dx, 0x3f8; mov al, 'x'; again: out dx, al; jmp again
FLOODS = bytes.fromhex('baf803b078eeebfd')
# jmp 0xffff:0
REBOOTS = bytes.fromhex('ea0000ffff')
# Looks for network cards, and says on its console what it finds.
LOOKS_FOR_NETWORK = bytes.fromhex(_PCI).ljust(0x80, b'\0') \
    + f'\r\n{NO_CARD}\r\n\0'.encode().ljust(0x30, b'\0') + f'\r\n{CARD}\r\n\0'.encode()
# An entry of the table of partitions, as an image without one is not served: Linux, all but 1 MiB.
_PARTITION = struct.pack('<B3xB3xII', 0x80, 0x83, 2048, IMAGE_BYTES // 512 - 2048)


def speaks(says: bytes) -> bytes:
    """Return a guest that says something on its console, and does nothing more."""
    return bytes.fromhex(_SPEAK).ljust(0x40, b'\0') + says + b'\0'


def make(path: str | os.PathLike[str], guest: bytes, filled: int = 0) -> None:
    """Write a raw image of a guest, with a table of partitions.

    :param filled: bytes behind that which are no zeros.
    """
    if len(guest) > 446:
        raise ValueError(f'{len(guest)} bytes do not fit before the table of partitions')
    with open(path, 'wb') as stream:
        stream.write(guest.ljust(446, b'\0') + _PARTITION + bytes(48) + b'\x55\xaa')
        stream.write(random.Random(1).randbytes(filled))
        stream.truncate(IMAGE_BYTES)
