"""``tools/bench.sh snapshots``: taking snapshots, and booting from them, beside stock Nova's ways.

Real QEMU, a real Ceph of one OSD, XFS on a loop device, Glance's own stores. Each host, the storage
node and the OSD have a network namespace; links are shaped for boots, see boots.py, and for taking
where that is asked for. Nova, RPC, HTTP, TLS and the rest of Glance are not in it, nor is the hash
that Glance makes of a location's bytes.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from bench.replay import netns, record
from bench.replay.cephmachines import cephs
from bench.replay.netns import Network
from bench.snapshots import bootfigures, boots, figures, servers
from bench.snapshots.servers import Disk, qemu
from bench.snapshots.stores import CephStore, FilesStore, Setup
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.sending import Sending, new_export
from glance_bootcache.storage.exporters import COMMON, Exporters

TOP = Path(__file__).resolve().parents[2]
_XFS_BYTES = 200 << 30
# As many as a storage service makes at a time, and a host as stock Nova.
_AT_ONCE, _HOSTS = 4, 4
_STORES = 'rbd', 'file'
_TAKING, _BOOTING, _RESUMING = 'taking', 'booting', 'resuming'
_PARTS = _TAKING, _BOOTING, _RESUMING
# What a server has written, MB: small in a small image, so that its part of that is about the same.
_CHANGED, _QUICK_CHANGED = 30.0, 7.0
# Of that, within what its image's boots read: little of it, and about as much as hosts make cache
# images of.
_DIFFERING, _QUICK_DIFFERING = (4.0, 24.0), (2.0, 6.0)


def parsed() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(prog='tools/bench.sh snapshots',
                                     description=(__doc__ or '').splitlines()[0])
    parser.add_argument('image', help='a qcow2 image', type=lambda path: str(Path(path).resolve()))
    parser.add_argument('--quick', action='store_true',
                        help='a small image, 7 MB changed in each disk, up to 16 servers, once')
    parser.add_argument('--parts', nargs='+', choices=_PARTS, default=list(_PARTS),
                        help='(default: all)')
    parser.add_argument('--stores', nargs='+', choices=_STORES, default=list(_STORES),
                        help='(default: both)')
    parser.add_argument('--servers', type=int, nargs='+',
                        help='(default: 1 8 64; quick: 1 8 16); as many as the last are resumed')
    parser.add_argument('--changed', type=float, metavar='MB',
                        help='that each server has written (default: 30, quick: 7)')
    parser.add_argument('--differing', type=float, nargs='+', metavar='MB',
                        help='of that, within what boots read (default: 4 24, quick: 2 6)')
    parser.add_argument('--link', type=int, default=0, metavar='MBIT',
                        help='of each link while snapshots are taken (default: no limit)')
    parser.add_argument('--repeats', type=int, default=0, help='how often (default: 3, quick: 1)')
    parser.add_argument('--report', default=str(TOP / 'bench-report'), help='folder of the report')
    parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.changed = options.changed or (_QUICK_CHANGED if options.quick else _CHANGED)
    options.differing = options.differing or (_QUICK_DIFFERING if options.quick else _DIFFERING)
    options.servers = options.servers or ([1, 8, 16] if options.quick else [1, 8, 64])
    options.repeats = options.repeats or (1 if options.quick else 3)
    return options


@dataclasses.dataclass
class Measuring:
    """One run after the other, in a network.

    :ivar options: of the command line.
    :ivar network: with hosts, the storage node and the OSD's machine.
    :ivar home: a directory, where hosts have their disks.
    :ivar records: of the product's snapshots, by image.
    """

    options: argparse.Namespace
    network: Network
    home: str
    records: dict[str, Record] = dataclasses.field(default_factory=dict)

    def measure(self, setup: Setup, counts: Sequence[int]) -> list[dict[str, Any]]:
        """Take snapshots of each number of servers, in each way, as often as wanted."""
        exporters = Exporters(setup.store.conf, f'{self.home}/clients-{uuid.uuid4()}.json')
        exporters.start()
        sending = Sending(setup.store.conf, [setup.store.snapshots], exporters, self.home)
        runs = []
        try:
            for count in counts:
                made = [servers.make_disk(
                    f'{self.home}/disk-{number}', setup.store.base, setup.store.base_format,
                    int(self.options.changed * 1e6), number) for number in range(count)]
                for _repeat in range(self.options.repeats):
                    if setup.beside:
                        runs.append(self._run(setup, made, None))
                    runs.append(self._run(setup, made, sending))
                for disk in made:
                    os.unlink(disk.path)
        finally:
            sending.rest(lambda: True)
            exporters.stop()
        return runs

    def _run(self, setup: Setup, disks: Sequence[Disk], sending: Sending | None) -> dict[str, Any]:
        store, network = setup.store, self.network
        groups = {'hosts': network.hosts, 'storage': [network.storage], 'osds': network.machines}
        ids = [str(uuid.uuid4()) for _disk in disks]
        network.shape(self.options.link * 1_000_000)
        before = store.used()
        before_sent = {who: sum(map(network.sent, names)) for who, names in groups.items()}
        began = time.monotonic()
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            hosts = itertools.cycle(network.hosts)
            for done in [pool.submit(self._one, setup, sending, image_id, disk, next(hosts))
                         for image_id, disk in zip(ids, disks, strict=True)]:
                done.result()
        seconds = time.monotonic() - began
        sent = {who: sum(map(network.sent, names)) - before_sent[who]
                for who, names in groups.items()}
        if sending is not None:
            for image_id in ids:
                store.snapshots.settled(self.records[image_id], math.inf)
        after = time.monotonic() - began - seconds
        stored = store.used() - before
        # What is compared comes over the links as well, and is not measured.
        network.shape(0)
        for image_id, disk in zip(ids, disks, strict=True):
            store.compare(image_id, disk, 'qcow2' if sending is None else store.base_format)
        for image_id in ids:
            store.remove(image_id)
        line = figures.line(
            setup.name, len(disks), figures.STOCK if sending is None else setup.way,
            seconds=seconds, after=after, sent=sent, stored=stored,
            changed=sum(disk.changed_bytes for disk in disks), base=store.base_bytes,
            load=os.getloadavg()[0])
        print(line, file=sys.stderr, flush=True)
        return line

    def _one(self, setup: Setup, sending: Sending | None, image_id: str, disk: Disk,
             host: str) -> None:
        store = setup.store
        if sending is None:
            servers.flatten_and_upload(
                host, self.network.address(self.network.storage), disk,
                lambda stream, size: store.upload(image_id, stream, size))
            return
        made = store.manifest.made
        record, told = sending.begin(
            Record(image_id, store.snapshots.name, export=new_export(), base=made.base_path,
                   disk_format=made.image_format), store.manifest, disk.virtual_bytes, COMMON)
        self.records[image_id] = record
        servers.send(host, told, disk)
        url = sending.finish(record, disk.virtual_bytes, lambda: None,
                             lambda record: self.records.update({image_id: record}))
        store.take(image_id, url, record.work)


@contextlib.contextmanager
def xfs(home: str) -> Iterator[str]:
    """Mount an XFS in this mount namespace, in a sparse file."""
    place, image = f'{home}/xfs', f'{home}/xfs.img'
    os.mkdir(place)
    with open(image, 'wb') as stream:
        stream.truncate(_XFS_BYTES)
    qemu('mkfs.xfs', '-q', image)
    qemu('mount', '-o', 'loop,discard', image, place)
    try:
        yield place
    finally:
        subprocess.run(['umount', '-l', place], check=False, capture_output=True)
        os.unlink(image)


def measured_boots(options: argparse.Namespace, home: str) -> list[dict[str, Any]]:
    """Measure boots from snapshots, and return the figures of each run."""
    image, found = Path(options.image), list[dict[str, Any]]()
    traces = record.traces_of(image, image.stem.partition('-')[0])
    differing, changed = [int(size * 1e6) for size in options.differing], int(options.changed * 1e6)
    if _BOOTING in options.parts:
        found += boots.measured(home, options.image, traces, differing, changed, options.repeats)
    if _RESUMING in options.parts:
        place = f'{home}/r'
        os.mkdir(place)
        found += boots.resumed(place, options.image, traces, options.servers[-1], differing[0],
                               changed, options.repeats)
        shutil.rmtree(place)
    return found


def measured(options: argparse.Namespace, home: str) -> list[dict[str, Any]]:
    """Measure all stores, and return the figures of each run."""
    runs: list[dict[str, Any]] = []
    with netns.network(_HOSTS, 0, machines=1) as network:
        measuring = Measuring(options, network, home)
        # This thread stays outside: a namespace that a process is in is not removed.
        servers.at_host(network.storage, lambda: on_stores(measuring, runs))
    return runs


def on_stores(measuring: Measuring, runs: list[dict[str, Any]]) -> None:
    """Measure all stores that are wanted, in the storage node's namespace; add to the runs."""
    options, network, home = measuring.options, measuring.network, measuring.home
    address = network.address(network.storage)
    if 'rbd' in options.stores:
        with cephs(network, (1,)) as made:
            store = CephStore(f'{home}/ceph', options.image, address, made[1])
            runs += measuring.measure(Setup(figures.RBD, figures.OURS, store, True),
                                      options.servers)
        shutil.rmtree(f'{home}/ceph')
    if 'file' in options.stores:
        with xfs(home) as place:
            for name, image_format in ((figures.RAW, 'raw'), (figures.QCOW2, 'qcow2')):
                runs += on_files(measuring, name, image_format, place, address)


def on_files(measuring: Measuring, name: str, image_format: str, place: str,
             address: str) -> list[dict[str, Any]]:
    """Measure the file store, on an XFS that is mounted at a place."""
    options, runs = measuring.options, list[dict[str, Any]]()
    folder, elsewhere = f'{place}/{image_format}', f'{measuring.home}/apart'
    for way, apart, registers, counts in (
            (figures.OURS, None, True, options.servers),
            ('uploaded, shared', None, False, [1]),
            ('copied, uploaded', elsewhere, False, [1])):
        files = FilesStore(folder, options.image, image_format, address, apart, registers)
        runs += measuring.measure(Setup(name, way, files, way == figures.OURS), counts)
        for path in filter(None, (folder, apart)):
            shutil.rmtree(path)
    return runs


def main() -> int:
    """Measure in a mount namespace of its own, in which the XFS is mounted."""
    options = parsed()
    if not options.inside:
        os.execvp('unshare', ['unshare', '--mount', '--propagation', 'private', sys.executable,
                              '-W', 'ignore', '-m', 'bench.snapshots', *sys.argv[1:], '--inside'])
    home = tempfile.mkdtemp(prefix='bcr-snap-', dir='/tmp')
    runs, booted = list[dict[str, Any]](), list[dict[str, Any]]()
    try:
        # Hosts of boots are processes that are forked: before there are threads.
        if {_BOOTING, _RESUMING} & set(options.parts):
            booted = measured_boots(options, home)
        if _TAKING in options.parts:
            runs = measured(options, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    targets = figures.judged(runs) + bootfigures.judged(booted)
    folder = Path(options.report)
    folder.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(['git', '-C', str(TOP), 'describe', '--always', '--dirty'], text=True,
                            capture_output=True, check=False).stdout.strip()
    (folder / 'snapshots.json').write_text(json.dumps(
        {'commit': commit, 'cpus': os.cpu_count(), 'image': os.path.basename(options.image),
         'changed_mb': options.changed, 'taking_link_mbit': options.link or None,
         'runs': runs + booted,
         'ratios': figures.ratios(runs) + bootfigures.ratios(booted),
         'targets': targets}, indent=1) + '\n')
    print('\n'.join([*(figures.table(runs) if runs else ()),
                     *(bootfigures.table(booted) if booted else ())]))
    for target in targets:
        met = {True: 'met    ', False: 'NOT MET', None: 'told   '}[target['met']]
        bound = '' if target['target'] is None else f' (at most {target["target"]})'
        print(f'{met} {target["what"]}: {target["value"]}{bound}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
