"""``bootcache build`` of images that write without end: real guests of one boot sector, by TCG."""

import glob
import os
import struct
import subprocess

import pytest
from command import BOOTCACHE, bootcache, command
from functional_tools import until

MIB = 1 << 20
# mov dx, 0x3f8; mov al, 'x'; again: out dx, al; jmp again
CONSOLE = bytes.fromhex('baf803b078eeebfd')
# xor ax, ax; mov ds, ax; mov si, 0x7c40; again: mov ah, 0x43; mov al, 0; int 0x13;
# add word [0x7c48], 127; adc word [0x7c4a], 0; jmp again. At 0x7c40: 127 sectors from 0x8000.
DISK = bytes.fromhex('31c08ed8be407cb443b000cd138106487c7f0083164a7c00ebed')
PACKET = bytes.fromhex('10007f000080000001000000' + '00000000')
# xor ax, ax; mov ds, ax; mov si, 0x7c40; mov dx, 0x3f8; cld; again: lodsb; test al, al; jz end;
# out dx, al; jmp again; end: hlt; jmp end. What it says is at 0x7c40.
SPEAK = bytes.fromhex('31c08ed8be407cbaf803fcac84c07403eeebf8f4ebfd')
# An entry of the table of partitions, as an image without one is not served: Linux, all but 1 MiB.
PARTITION = struct.pack('<B3xB3xII', 0x80, 0x83, 2048, 2048 * 255)


@pytest.fixture
def image(directory):
    """Makes an image of a boot sector, with data at 0x7c40."""
    def make(code, data=PACKET):
        path = os.path.join(directory, 'image')
        with open(path, 'wb') as stream:
            stream.write((code.ljust(0x40, b'\0') + data).ljust(446, b'\0') + PARTITION
                         + bytes(48) + b'\x55\xaa')
            stream.truncate(256 * MIB)
        return path
    return make


def test_a_boot_that_writes_without_end_is_given_up(image, directory):
    done = bootcache(directory, 'build', image(DISK), '--image-format', 'raw', '--allow-tcg',
                     '--memory', '64', '--disk-limit', '8MiB')
    assert done.returncode == 1 and not done.stdout
    last = done.stderr.splitlines()[-1]
    assert 'bytes to its disk while it booted, more than 8388608' in last \
        and '--disk-limit' in last
    assert not glob.glob(f'{directory}/bootcache-profile-*')


def test_a_console_without_end_takes_no_room(image, directory):
    argv, options = command(BOOTCACHE, directory, 'build', image(CONSOLE), '--image-format', 'raw',
                            '--allow-tcg', '--memory', '64', '--console-limit', '64KiB',
                            '--silence', '600')
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    try:
        def size():
            assert process.poll() is None, process.stderr.read()
            return [os.path.getsize(path) for path in
                    glob.glob(f'{directory}/bootcache-profile-*/console.log')]

        for _again in range(2):
            # It grows over the limit, is cut, and the guest goes on: by that it grows again.
            until(lambda: size() and size()[0] > 64 << 10, 'a console over the limit')
            until(lambda: size()[0] < 64 << 10, 'a console that was cut')
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize('says, told', [
    (b'Kernel panic - not syncing: no init', 'Kernel panic - not syncing: no init'),
    (b'Loading', 'read nothing from its disk but')])
def test_a_guest_that_does_not_come_up_has_not_booted(image, directory, says, told):
    """It stands still after its first reads: neither silence nor the time limit makes it a boot."""
    done = bootcache(directory, 'build', image(SPEAK, b'\r\n' + says + b'\r\n\0'), '--image-format',
                     'raw', '--allow-tcg', '--memory', '64', '--silence', '2', '--timeout', '12')
    assert done.returncode == 1 and not done.stdout
    assert told in done.stderr.splitlines()[-1]
