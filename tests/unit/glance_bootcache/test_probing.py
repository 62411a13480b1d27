"""What QEMU would take a raw image for."""

import pytest

from glance_bootcache.storage import inspection


@pytest.mark.parametrize('first, taken', [
    (b'', ''), (bytes(512), ''), (b'QFI\xfb\0\0\0\1', 'qcow2'), (b'QED\0', 'qed'),
    (b'KDMV\7', 'vmdk'), (b'COWD', 'vmdk'), (b'conectix', 'vhd'), (b'vhdxfile', 'vhdx'),
    (b'LUKS\xba\xbe\0\2', 'luks'), (b'WithoutFreeSpace', 'parallels'),
    (b'WithouFreSpacExt', 'parallels'), (b'Bochs Virtual HD Image', 'bochs'),
    (b'#!/bin/sh\n#V2.0 Format\nmodprobe cloop', 'cloop'),
    (bytes(64) + b'\x7f\x10\xda\xbe', 'vdi'), (bytes(65) + b'\x7f\x10\xda\xbe', ''),
    (b'# Disk DescriptorFile\nversion=1\nCID=1\n\0\0', 'vmdk'), (b'version=3\r\n', 'vmdk'),
    (b'#\r\n  \r\n\nversion=2\n', 'vmdk'), (b'version=4\n', ''), (b'x\nversion=1\n', ''),
    (b'#' * 511 + b'\n', ''), (b'\n' * 512, ''), (b' ' * 512, ''), (b'#!/bin/sh\nexit 0\n', '')])
def test_what_qemu_would_take_it_for(first, taken):
    assert inspection.taken_for(first) == taken
