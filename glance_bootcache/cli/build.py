"""``bootcache build``: a cache image of an image file, without any OpenStack."""

import argparse
import os
import signal
import sys
import time
import uuid
from typing import Any

from bootcache import (
    cacheimage,
    cachelayout,
    ending,
    exception,
    properties,
    recording,
    savefile,
    scratch,
)
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression
from bootcache.workingset import WorkingSet
from glance_bootcache.bootconf import DEFAULT_MARKER
from glance_bootcache.cli.arguments import count, marker, seconds, size
from glance_bootcache.cli.listing import Showing
from glance_bootcache.profileboot import direct
from glance_bootcache.storage import inspection


def _inspect(path: str, image_format: str) -> inspection.Inspected:
    """Look at the image file; no Glance has said which format it is of, so the option is named."""
    try:
        return inspection.inspect(path, image_format)
    except exception.ImageRefused as error:
        other, = {*inspection.FORMATS} - {image_format}
        # A raw disk is told by its table of partitions.
        contents = ('raw', 'gpt') if other == 'raw' else (other,)
        told = str(error).replace(f'disk_format says {image_format}',
                                  f'--image-format says {image_format}')
        if any(f'the content is {content},' in told for content in contents):
            told += f'; give --image-format {other}'
        raise exception.ImageRefused(f'{path}: {told}') from error


class BuildFile(Showing):
    """Boot an image file with libvirt, record what it reads, and build its cache image.

    The image file itself is not changed. Chain a disk to the result with "qemu-img create -b".
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('file', help='image file')
        parser.add_argument('-o', '--output', metavar='FILE',
                            help='cache image to write (default: FILE.cache.qcow2)')
        parser.add_argument('--image-format', choices=inspection.FORMATS, default='qcow2',
                            help='format of the image file (default: qcow2)')
        parser.add_argument('--quota', type=size, default=512 << 20, metavar='SIZE',
                            help='size that the cache image may have (default: 512MiB)')
        parser.add_argument('--cluster-size', type=int, choices=cachelayout.CLUSTER_SIZES,
                            default=cachelayout.DEFAULT_CLUSTER_BYTES,
                            help='cluster size in bytes (default: %(default)s)')
        parser.add_argument('--compression', choices=[one.value for one in Compression],
                            default=cachelayout.DEFAULT_COMPRESSION.value,
                            help='how its clusters are stored (default: %(default)s)')
        parser.add_argument('--backing', metavar='NAME',
                            help='file name or NBD URI of the base, for the header'
                                 ' (default: the image file)')
        parser.add_argument('--marker', type=marker, default=DEFAULT_MARKER, metavar='REGEX',
                            help='console line that ends the boot (default: a login prompt)')
        parser.add_argument('--timeout', type=seconds, default=900, metavar='SECONDS',
                            help='longest boot (default: 900)')
        parser.add_argument('--silence', type=seconds, default=60, metavar='SECONDS',
                            help='time without reads that ends a boot without a marker'
                                 ' (default: 60)')
        parser.add_argument('--memory', type=count(1 << 30), default=1024, metavar='MIB',
                            help='memory of the machine (default: 1024)')
        parser.add_argument('--disk-limit', type=size, default=direct.DISK_LIMIT, metavar='SIZE',
                            help='what the boot may write to its disk, in the folder for temporary'
                                 ' files; one that writes more is given up (default: 4GiB)')
        parser.add_argument('--console-limit', type=size, default=direct.CONSOLE_LIMIT,
                            metavar='SIZE',
                            help='how much of the console is kept in that folder; what is older is'
                                 ' dropped (default: 16MiB)')
        parser.add_argument('--connection', default=direct.EMBEDDED, metavar='URI',
                            help='libvirt URI (default: a private QEMU driver)')
        parser.add_argument('--allow-tcg', action='store_true',
                            help='boot the image although KVM does not run here; only for images'
                                 ' that you trust')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Record, build, and say what came out."""
        path = os.path.abspath(parsed_args.file)
        output = os.path.abspath(parsed_args.output or f'{path}.cache.qcow2')
        if os.path.exists(output):
            raise exception.BootcacheError(f'{output} exists; remove it or name another --output')
        scratch.check_parent()
        inspected = _inspect(path, parsed_args.image_format)
        base = Base(path, inspected.image_format, inspected.virtual_bytes)
        progress = self.app.progress()
        # So that no guest is left behind.
        signal.signal(signal.SIGTERM, lambda *_arguments: sys.exit(128 + signal.SIGTERM))
        try:
            extents, found = direct.record(
                base, str(uuid.uuid4()),
                properties.Policy(parsed_args.quota, parsed_args.marker),
                ending.BootLimits(parsed_args.quota, 20, parsed_args.silence, parsed_args.timeout),
                direct.Machine(parsed_args.connection, parsed_args.memory,
                               allow_tcg=parsed_args.allow_tcg, disk_limit=parsed_args.disk_limit,
                               console_limit=parsed_args.console_limit),
                lambda text: progress.show('recording', text))
            progress.show('building')
            working_set = WorkingSet(os.path.basename(path), 'sha256:' + savefile.file_digest(path),
                                     base.virtual_bytes, recording.GRANULARITY,
                                     tuple(extents))
            began = time.monotonic()
            built = cacheimage.build(base, extents, output, quota=parsed_args.quota,
                                     cluster_bytes=parsed_args.cluster_size,
                                     backing_uri=parsed_args.backing or path,
                                     backing_format='raw' if parsed_args.backing
                                     else inspected.image_format,
                                     compression=Compression(parsed_args.compression))
            took = time.monotonic() - began
            savefile.write_json(f'{output}.working-set.json', working_set.to_json())
        finally:
            progress.end()
        return self.dict2columns({
            'cache_image': output, 'cache_bytes': built.bytes, 'cache_data_bytes': built.data_bytes,
            'cache_extents': len(built.extents), 'sha256': built.sha256,
            'working_set': f'{output}.working-set.json', 'working_set_bytes': working_set.bytes,
            'working_set_extents': len(working_set.extents), 'ended_by': found.ended_by,
            'boot_seconds': round(found.seconds, 1), 'build_seconds': round(took, 2),
            'reason': ending.doubt(found.ended_by)})
