"""Hostile files that are no qcow2, or say that they are none."""

import os
import struct

import hostile_qcow2
from functional_tools import qemu_img

MIB = 1 << 20


def written(*pieces, length=4 * MIB):
    """Return what makes a file of zeros with some bytes in it.

    :param pieces: pairs of offset and bytes.
    """
    def make(path):
        with open(path, 'wb') as stream:
            stream.truncate(length)
            for offset, content in pieces:
                stream.seek(offset)
                stream.write(content)
    return make


def of(image_format, *options):
    """Return what has qemu-img make one of another format."""
    return lambda path: qemu_img('create', '-q', '-f', image_format, *options, path, 4 * MIB)


def flat(extent, kind='monolithicFlat'):
    """Return what makes the text of a VMDK that names another file."""
    text = ('# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n'
            f'createType="{kind}"\n{extent}\n').encode()
    return written((0, text), length=65536)


def inside(extent):
    """Return what makes a sparse VMDK whose text names another file."""
    def make(path):
        of('vmdk')(path)
        with open(path, 'r+b') as stream:
            content = stream.read(65536)
            place = content.index(b'RW ')
            stream.seek(place)
            stream.write(extent.encode() + b'\n')
    return make


def partition(kind=0xee, boot=0x00, chs=b'\x00\x02\x00', lba=1, sectors=8191):
    """Return an entry of a partition table; without arguments, the one of a protective MBR."""
    return bytes([boot]) + chs + bytes([kind]) + b'\xff\xff\xff' + struct.pack('<II', lba, sectors)


def gpt(*partitions):
    """Return what makes a GPT under these partitions."""
    return written((446, b''.join(partitions)), (510, b'\x55\xaa'), (512, b'EFI PART'))


def luks(version=1):
    """Return what makes a disk that begins as an encrypted one."""
    return written((0, b'LUKS\xba\xbe' + struct.pack('>H', version) + b'aes'.ljust(32, b'\0')
                    + b'xts-plain64'.ljust(32, b'\0') + b'sha256'.ljust(32, b'\0')
                    + struct.pack('>II', 4096, 64)))


def huge_vhdx(path):
    """Its tables are megabytes beyond its end."""
    of('vhdx')(path)
    os.truncate(path, 300 << 10)


ISO = (32768, b'\x01CD001\x01')
# By name: Glance's disk_format, what makes the file, what the reason says.
MAKERS = {
    'an empty file': ('raw', written(length=0), 'no data'),
    'an empty qcow2': ('qcow2', written(length=0), 'no data'),
    'zeros as qcow2': ('qcow2', written(), 'content is raw'),
    'a qcow2 as raw': ('raw', hostile_qcow2.disk, 'content is qcow2'),
    'a qcow2 with a backing file as raw': ('raw', hostile_qcow2.backed('/etc/passwd'),
                                           'content is qcow2'),
    'a qcow as raw': ('raw', hostile_qcow2.old, 'content is qcow2'),
    **{f'{kind} as {said}': (said, of(kind), f'content is {found}')
       for kind, found in (('qed', 'qed'), ('vmdk', 'vmdk'), ('vhdx', 'vhdx'), ('vpc', 'vhd'),
                           ('vdi', 'vdi')) for said in ('raw', 'qcow2')},
    'a streamed vmdk': ('raw', of('vmdk', '-o', 'subformat=streamOptimized'), 'content is vmdk'),
    'a flat vmdk': ('raw', flat('RW 8192 FLAT "/etc/passwd" 0'), 'content is vmdk'),
    'a flat vmdk as qcow2': ('qcow2', flat('RW 8192 FLAT "/etc/passwd" 0'), 'content is raw'),
    'a vmdk of a URL': ('raw', flat('RW 8192 FLAT "nbd://127.0.0.1:1/x" 0'), 'content is vmdk'),
    'a vmdk of another URL': ('raw', flat('RW 8192 SPARSE "https://127.0.0.1:1/x"',
                                          'twoGbMaxExtentSparse'), 'content is vmdk'),
    'a vmdk of a device': ('raw', flat('RW 8192 FLAT "/dev/sda" 0', 'fullDevice'),
                           'content is vmdk'),
    'a sparse vmdk of another file': ('raw', inside('RW 8192 FLAT "/etc/passwd" 0'),
                                      'content is vmdk'),
    'a qed with a backing file': ('raw', of('qed', '-u', '-b', '/etc/passwd', '-F', 'raw'),
                                  'content is qed'),
    'a fixed vhd as qcow2': ('qcow2', of('vpc', '-o', 'subformat=fixed'), 'content is'),
    'a text that is none after a sector': ('raw', written((0, b'#' * 512 + b'\xe4')),
                                           'oslo.utils breaks'),
    'a vmdk that is an ISO': ('raw', written((0, b'KDMV'), ISO), 'ultiple|vmdk'),
    'a qed that is an ISO': ('raw', written((0, b'QED\0'), ISO), 'ultiple|qed'),
    'a vhdx that is a VDI': ('raw', written((0, b'vhdxfile'), (64, b'\x7f\x10\xda\xbe')),
                             'ultiple|vdi|vhdx'),
    'a qcow2 of nothing but its magic': ('qcow2', written((0, b'QFI\xfb')), 'not safe|content is'),
    'a vhdx that is cut': ('raw', huge_vhdx, 'content is vhdx'),
    'an ISO': ('raw', written(ISO), 'content is iso'),
    'an ISO with partitions': ('raw', written(ISO, (446, partition(0x17, 0x80)),
                                              (510, b'\x55\xaa')), 'ultiple'),
    'an ISO that is encrypted': ('raw', written((0, b'LUKS\xba\xbe\0\x01'), ISO), 'ultiple'),
    'encrypted': ('raw', luks(), 'content is luks'), 'encrypted anew': ('raw', luks(2), 'luks'),
    'a VDI with partitions': ('raw', written((64, b'\x7f\x10\xda\xbe'), (446, partition(0x83)),
                                             (510, b'\x55\xaa')), 'ultiple'),
    'parallels': ('raw', written((0, b'WithoutFreeSpace')), 'content is parallels'),
    'an old vmdk': ('raw', written((0, b'COWD')), 'content is vmdk'),
    'a GPT without protection': ('raw', gpt(), 'mbr'),
    'a GPT beside a partition': ('raw', gpt(partition(), partition(0x83, lba=2048)), 'mbr'),
    'a GPT that is the second': ('raw', gpt(partition(0x83), partition()), 'mbr'),
    'a GPT from elsewhere': ('raw', gpt(partition(lba=64)), 'mbr'),
    'a GPT of other heads': ('raw', gpt(partition(chs=b'\x01\x01\x00')), 'mbr'),
    'a strange boot flag': ('raw', gpt(partition(boot=0x42)), 'mbr'),
    'partitions as qcow2': ('qcow2', gpt(partition()), 'content is gpt'),
}
# What looks strange, and is no harm: no program looks for a format here. Also the disk's bytes.
HARMLESS = {
    'raw': ('raw', written((0, b'a disk')), 4 * MIB),
    'partitions': ('raw', written((446, partition(0x83, 0x80)), (510, b'\x55\xaa')), 4 * MIB),
    'a GPT': ('raw', gpt(partition()), 4 * MIB),
    'a VHD\'s footer': ('raw', written((4 * MIB, b'conectix'), length=4 * MIB + 512),
                        4 * MIB + 512),
    'another format within': ('raw', written((512, b'QFI\xfb\0\0\0\x03'), (MIB, b'vhdxfile')),
                              4 * MIB),
    'a broken sector': ('raw', written(length=MIB + 1), MIB + 512),
    'qcow2': ('qcow2', hostile_qcow2.disk, 4 * MIB),
    'compressed': ('qcow2', lambda path: hostile_qcow2.disk(path, '-c'), 4 * MIB),
    'a large disk': ('qcow2', lambda path: qemu_img('create', '-q', '-f', 'qcow2', path, '64G'),
                     64 << 30),
    'a qcow2 of a broken sector': ('qcow2', hostile_qcow2.word(hostile_qcow2.SIZE, 4 * MIB - 1),
                                   4 * MIB - 512),
    'large clusters': ('qcow2', lambda path: hostile_qcow2.disk(path, '-o', 'cluster_size=2M'),
                       4 * MIB),
}
