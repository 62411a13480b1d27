"""What QEMU would take a raw image for if it were asked to guess, by its first bytes. Pure.

bootcache never has it guess. Stock Nova does, and refuses an image of which QEMU and oslo.utils'
inspector think differently; the inspector does not know all that QEMU does.
"""

import re

# So many bytes QEMU looks at.
PROBED_BYTES = 512
_BEGINNINGS = (
    (b'QFI\xfb', 'qcow2'), (b'QED\0', 'qed'), (b'KDMV', 'vmdk'), (b'COWD', 'vmdk'),
    (b'conectix', 'vhd'), (b'vhdxfile', 'vhdx'), (b'LUKS\xba\xbe', 'luks'),
    (b'WithoutFreeSpace', 'parallels'), (b'WithouFreSpacExt', 'parallels'),
    (b'Bochs Virtual HD Image', 'bochs'), (b'#!/bin/sh\n#V2.0 Format\nmodprobe cloop', 'cloop'))
_VDI_OFFSET, _VDI = 64, b'\x7f\x10\xda\xbe'
# Comments and blank lines, then the version: the text of a VMDK, which names other files.
_VMDK_TEXT = re.compile(rb'(?:#[^\n]*\n| *\r?\n)*version=[123]\r?\n')


def taken_for(first: bytes) -> str:
    """Return the format, or an empty string for a raw image.

    :param first: the first ``PROBED_BYTES`` of it.
    """
    for begin, name in _BEGINNINGS:
        if first.startswith(begin):
            return name
    if first[_VDI_OFFSET:].startswith(_VDI):
        return 'vdi'
    return 'vmdk' if _VMDK_TEXT.match(first) else ''
