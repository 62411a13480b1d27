"""What a snapshot on Glance's file store takes, in bytes and seconds, each way: see filestore.rst.

Real files on XFS on a loop device, real QEMU. Nova, RPC and Glance are not in it: of an upload what
Glance's file store does with it, writing all bytes once. ``python -m bench.snapshotfiles IMAGE``,
as root; IMAGE is a qcow2.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.manifest import Made, Manifest, Standing
from bootcache.naming import nbd_unix_uri
from bootcache.storagedaemon import StorageDaemon, UnixListener
from glance_bootcache import conf as glance_conf
from glance_bootcache.filestore.snapshots import FileSnapshots

_DISK = 24 << 30
# What a guest that runs for a while writes: many small pieces, some large ones.
_PIECES = [4096] * 6 + [16384] * 3 + [65536] * 2 + [524288]


def qemu(*arguments: object) -> str:
    """Run a program of QEMU's, and return what it prints."""
    return subprocess.run([str(word) for word in arguments], check=True, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL).stdout


def used(path: str) -> int:
    """Return the bytes that are taken of a file system."""
    os.sync()
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


class _Stores:
    """Stands for what was found out of Glance: one directory is of a store of ours, or none is."""

    def __init__(self, name: str):
        self._name = name

    def store_of(self, _directory: str) -> str:
        return self._name

    def doubt(self, _directory: str) -> None:
        pass

    def look(self) -> None:
        pass


def configured(state: str, store: str) -> cfg.ConfigOpts:
    """Return a storage service's configuration."""
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    glance_conf.register_opts(conf)
    conf.set_override('state_dir', state, bootcache_conf.GROUP)
    conf.set_override('glance_store_dirs', [store], bootcache_conf.GROUP)
    return conf


def overlay(path: str, base: str, base_format: str, changed: int, seed: int) -> None:
    """Make a server's overlay with so many bytes that the server has written."""
    size = json.loads(qemu('qemu-img', 'info', '--output=json', '-f', base_format, base))
    virtual = size['virtual-size']
    qemu('qemu-img', 'create', '-q', '-f', 'qcow2', '-o', 'cluster_size=128k,extended_l2=on',
         '-b', base, '-F', base_format, path)
    source, left, commands = random.Random(seed), changed, []
    while left > 0:
        length = min(source.choice(_PIECES), max(4096, left // 4096 * 4096))
        begin = source.randrange((virtual - length) // 4096) * 4096
        commands.append(f'write -q -P {source.randrange(1, 255)} {begin} {length}')
        left -= length
    subprocess.run(['qemu-io', '-f', 'qcow2', path], input='\n'.join(commands), text=True,
                   check=True, stdout=subprocess.DEVNULL)


def written(home: str, node: Any, image: str, base: str, base_format: str) -> None:
    """Write what an overlay holds, and nothing else, as a host does."""
    daemon = StorageDaemon('snapshot', f'{home}/d', UnixListener(f'{home}/d/nbd'))
    daemon.ensure_running()
    try:
        with daemon.session() as session:
            session.execute('blockdev-add', **{**node, 'node-name': 'snapshot'})
            session.execute('block-export-add', type='nbd', id='snapshot', name='x',
                            node_name='snapshot', writable=True)
        qemu('qemu-img', 'convert', '-n', '-B', base, '-F', base_format, '-O', 'raw', image,
             nbd_unix_uri(f'{home}/d/nbd', 'x'))
    finally:
        daemon.stop()


@dataclasses.dataclass(frozen=True)
class Taken:
    """A snapshot that was taken.

    :ivar path: of the image in the store.
    :ivar seconds: until Glance had it.
    """

    path: str
    seconds: float


def stock(_conf: cfg.ConfigOpts, manifest: Manifest, image: str, store: str, home: str) -> Taken:
    """Nova flattens the overlay, and uploads all of it."""
    began = time.monotonic()
    target = f'{store}/{uuid.uuid4()}'
    image_format = manifest.made.image_format
    qemu('qemu-img', 'convert', '-f', 'qcow2', '-O', image_format, image, f'{home}/flat')
    _upload(f'{home}/flat', target)
    os.unlink(f'{home}/flat')
    return Taken(target, time.monotonic() - began)


def _upload(source: str, target: str) -> None:
    with open(source, 'rb') as one, open(target, 'wb') as other:
        # As Glance does: whatever is a hole in the one is zeros in the other.
        while piece := one.read(64 << 10):
            other.write(piece)


def ours(store_name: str) -> Callable[..., Taken]:
    """Return one of our ways: with Glance's name of a store that registers, or without."""
    def way(conf: cfg.ConfigOpts, manifest: Manifest, image: str, store: str, home: str) -> Taken:
        began = time.monotonic()
        snapshots = FileSnapshots(conf, _Stores(store_name))  # type: ignore[arg-type]
        made = manifest.made
        snapshot = str(uuid.uuid4())
        node = snapshots.begin(manifest, snapshot, made.virtual_bytes).node
        written(home, node, image, made.base_path, made.image_format)
        stored = snapshots.finish(snapshot)
        if stored.path:
            _upload(stored.path, f'{store}/{snapshot}')
        taken = Taken(f'{store}/{snapshot}', time.monotonic() - began)
        snapshots.settled(snapshot)
        while os.listdir(f'{conf.bootcache.state_dir}/snapshots'):
            snapshots.tidy()
        return taken
    return way


def measure(options: argparse.Namespace, place: str, home: str) -> list[dict[str, Any]]:
    """Take each way as often as wanted, and return the figures of each run."""
    runs = []
    store = f'{place}/images'
    os.mkdir(store)
    for image_format in ('raw', 'qcow2'):
        shared, apart = f'{place}/base.{image_format}', f'{home}/base.{image_format}'
        qemu('qemu-img', 'convert', '-f', 'qcow2', '-O', image_format, options.image, shared)
        qemu('qemu-img', 'convert', '-f', 'raw', '-O', 'raw', shared, apart)
        info = json.loads(qemu('qemu-img', 'info', '--output=json', '-f', image_format, shared))
        for way, base, state, take in (
                ('stock', shared, f'{place}/state', stock),
                ('registered', shared, f'{place}/state', ours('file')),
                ('uploaded, shared', shared, f'{place}/state', ours('')),
                ('no reflinks, uploaded', apart, f'{home}/state', ours(''))):
            manifest = Manifest(str(uuid.uuid4()), Standing.DONE, made=Made(
                image_format=image_format, virtual_bytes=info['virtual-size'], base_path=base))
            for number in range(options.repeat):
                image = f'{home}/overlay'
                overlay(image, base, image_format, int(options.changed * 1e6), number)
                before, began = used(place), time.monotonic()
                taken = take(configured(state, store), manifest, image, store, home)
                after = time.monotonic() - began - taken.seconds
                runs.append({'way': way, 'format': image_format,
                             'seconds': round(taken.seconds, 2), 'seconds_after': round(after, 2),
                             'stored_bytes': used(place) - before})
                qemu('qemu-img', 'compare', '-f', image_format, '-F', 'qcow2', taken.path, image)
                print(json.dumps(runs[-1]), flush=True)
                os.unlink(image)
                os.unlink(taken.path)
    return runs


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Return the medians, one line for each way and format."""
    lines: list[str] = []
    for key in dict.fromkeys((run['format'], run['way']) for run in runs):
        same = [run for run in runs if (run['format'], run['way']) == key]
        lines.append(f'{key[0]:6} {key[1]:22}'
                     f' {statistics.median(run["stored_bytes"] for run in same) / 1e6:8.1f} MB'
                     f' {statistics.median(run["seconds"] for run in same):6.2f} s'
                     f' ({min(run["seconds"] for run in same):.2f} to'
                     f' {max(run["seconds"] for run in same):.2f}), afterwards'
                     f' {statistics.median(run["seconds_after"] for run in same):.2f} s')
    return lines


def main() -> None:
    """Measure in a mount namespace of its own, in which the XFS is mounted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('image', type=lambda path: str(Path(path).resolve()))
    parser.add_argument('--changed', type=float, default=30, help='MB that a server has written')
    parser.add_argument('--repeat', type=int, default=3)
    parser.add_argument('--report', type=Path, default=Path('bench-report/snapshotfiles.json'))
    parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        os.execvp('unshare', ['unshare', '--mount', '--propagation', 'private', sys.executable,
                              '-W', 'ignore', '-m', 'bench.snapshotfiles', *sys.argv[1:],
                              '--inside'])
    home = tempfile.mkdtemp(prefix='bcsnap')
    try:
        os.mkdir(f'{home}/xfs')
        with open(f'{home}/xfs.img', 'wb') as stream:
            stream.truncate(_DISK)
        qemu('mkfs.xfs', '-q', f'{home}/xfs.img')
        qemu('mount', '-o', 'loop', f'{home}/xfs.img', f'{home}/xfs')
        runs = measure(options, f'{home}/xfs', home)
        options.report.parent.mkdir(exist_ok=True)
        options.report.write_text(json.dumps({'changed_mb': options.changed, 'runs': runs},
                                             indent=1) + '\n')
        print('\n'.join(table(runs)))
    finally:
        subprocess.run(['umount', '-l', f'{home}/xfs'], check=False, capture_output=True)
        shutil.rmtree(home)


if __name__ == '__main__':
    main()
