"""Images of gigabytes whose servers need no operating system: a boot sector that reads some of it.

Every eighth cluster holds noise, and the others are not allocated: the file has an eighth of the
virtual size, and neither compresses nor is zero where it is read.
"""

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

CLUSTER = 65536
EVERY = 8
# 256 BIOS requests of 32 KiB, each at the beginning of a cluster with noise; then it says so on the
# serial line, and halts.
BOOT_READS, BOOT_READ_BYTES = 256, 32768
MARKER = 'bcr-ready'
_BOOT_SECTOR = bytes.fromhex(
    '31c08ed88ed0bc007cfc'  # xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 0x7c00; cld
    'b90001'                # mov cx, 256
    '51be427cb442b280cd1359'  # push cx; mov si, packet; mov ah, 0x42; mov dl, 0x80; int 0x13; pop
    '7225'                  # jc halt
    '6681064a7c00040000'    # add dword [packet + 8], 1024: the next cluster with noise
    'e2e8'                  # loop
    'be527cac84c0741288c3'  # mov si, text; next: lodsb; test al, al; jz halt; mov bl, al
    'bafd03eca82074fb'      # wait: mov dx, 0x3fd; in al, dx; test al, 0x20; jz wait
    'baf80388d8eeebe9'      # mov dx, 0x3f8; mov al, bl; out dx, al; jmp next
    'f4ebfd'                # halt: hlt; jmp halt
    '10004000000000100000000000000000'  # packet: 64 sectors to 1000:0000, from sector 0
    '0d0a6263722d72656164790d0a00')     # text: the marker, on a line of its own


def boot_sector(virtual_bytes: int) -> bytes:
    """Return the first sector of the disk, with a partition: Nova refuses bases without one. Pure.

    :param virtual_bytes: of the disk.
    """
    partition = struct.pack('<B3sB3sII', 0x80, b'\0\2\0', 0x83, b'\xff' * 3, 1,
                            virtual_bytes // 512 - 1)
    return _BOOT_SECTOR.ljust(446, b'\0') + partition.ljust(64, b'\0') + b'\x55\xaa'


def make(path: Path, virtual_bytes: int) -> int:
    """Make an image, qcow2; the bytes of its file.

    :param virtual_bytes: of the disk.
    """
    raw = path.with_suffix('.raw')
    try:
        with open(raw, 'wb') as stream, open('/dev/urandom', 'rb') as noise:
            stream.truncate(virtual_bytes)
            for offset in range(0, virtual_bytes, CLUSTER * EVERY):
                stream.seek(offset)
                stream.write(noise.read(min(CLUSTER, virtual_bytes - offset)))
            stream.seek(0)
            stream.write(boot_sector(virtual_bytes))
        subprocess.run(['qemu-img', 'convert', '-q', '-f', 'raw', '-O', 'qcow2', str(raw),
                        str(path)], check=True)
    finally:
        raw.unlink(missing_ok=True)
    return os.stat(path).st_size


def needed_bytes(sizes: Sequence[int]) -> int:
    """Return the disk space that measuring images of these sizes takes at most. Pure.

    Glance has them all; and the largest is there twice more, when it is made, or when Nova has
    downloaded and converted it.
    """
    return (sum(sizes) + 2 * max(sizes, default=0)) // EVERY + (2 << 30)
