"""What a boot asks of a host's disk for the server's own writes, by the overlay's format.

A recorded boot is played on an overlay whose file is served by nbdkit, which notes every request
that QEMU makes of it. Requests and bytes are exact; nothing is timed. Run by
``tools/bench.sh overlays``.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.replay import player, record, trace
from bench.replay.setting import recorded
from bench.replay.trace import Request
from bootcache.storagedaemon import StorageDaemon, UnixListener
from nova_bootcache.host import ComputeHost

STOCK = 'cluster_size=64k'
# The product's, and what it is made of.
SUBCLUSTERS = 'cluster_size=128k,extended_l2=on'
# Wherever the overlay's clusters come to lie: a block device does not grow.
_ROOM = 4 << 30


def make(path: Path, base: Path, options: str) -> None:
    """Make an overlay.

    :param options: of the format; empty for the product's own way.
    """
    size = base.stat().st_size
    if options:
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', '-o', options, '-b', str(base),
                        '-F', 'raw', str(path)], check=True)
    else:
        ComputeHost._create(str(path), size, str(base), 'raw')
    with open(path, 'r+b') as stream:
        stream.truncate(_ROOM)


@contextlib.contextmanager
def opened(directory: Path, socket: Path) -> Iterator[str]:
    """Serve the overlay behind a socket as QEMU would a disk; the socket of that."""
    daemon = StorageDaemon('chain', str(directory / 'c'), UnixListener(str(directory / 'c/nbd')))
    daemon.ensure_running()
    try:
        daemon.add_nodes({'driver': 'nbd', 'node-name': 'file',
                          'server': {'type': 'unix', 'path': str(socket)}},
                         {'driver': 'qcow2', 'node-name': 'disk', 'file': 'file'})
        daemon.add_export('disk', 'disk', writable=True)
        yield str(directory / 'c/nbd')
    finally:
        daemon.stop()


def measure(base: Path, requests: Sequence[Request], options: str) -> dict[str, object]:
    """Play a boot; what was asked of the overlay's file until it had booted."""
    directory = Path(tempfile.mkdtemp(prefix='bcr-ov-', dir='/tmp'))
    try:
        overlay = directory / 'overlay'
        make(overlay, base, options)
        with record.recorded_disk(overlay, directory) as (socket, log), \
                opened(directory, socket) as disk:
            player.play(disk, 'disk', requests, scale=0.02)
            asked = record.parse_log(log.read_text())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    written = [one for one in asked if one.op in (trace.WRITE, trace.ZERO)]
    return {'overlay': options or 'bootcache', 'writes': len(written),
            'written_bytes': sum(one.length for one in written if one.op == trace.WRITE),
            'flushes': sum(one.op == trace.FLUSH for one in asked)}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--image', default='small')
    parser.add_argument('--report', type=Path, default=Path('bench-report/overlays.json'))
    options = parser.parse_args()
    path, traces = recorded(options.image)
    boot = traces[1].boot
    directory = Path(tempfile.mkdtemp(prefix='bcr-ovb-', dir='/tmp'))
    try:
        base = directory / 'base'
        subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', str(path), str(base)],
                       check=True)
        rows = [measure(base, boot, kind) for kind in (STOCK, SUBCLUSTERS, '')]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    asked = {'writes': sum(one.op == trace.WRITE for one in boot),
             'written_bytes': sum(one.length for one in boot if one.op == trace.WRITE),
             'flushes': sum(one.op == trace.FLUSH for one in boot)}
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(
        {'image': options.image, 'guest': asked, 'overlays': rows}, indent=1) + '\n')
    print(f'the guest: {asked}')
    for row in rows:
        print(row)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
