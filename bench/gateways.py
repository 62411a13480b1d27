"""One gateway for all images of a host, or one for each: what both cost.

``python -m bench.gateways`` serves bases by the product's exporter, and has its gateway serve each
of them to a server's socket: by one daemon, then by one daemon an image, each with a socket of its
own. Of the connectors, by which all of them read, there is the same in both cases: they do not
count. Prints memory (what each daemon has for itself, and PSS, where what processes share is
divided among them), files, and the time until an image is served, of the first start and of an
adoption by a nova-compute that starts anew.
"""

import argparse
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import naming
from bootcache.ceph.rights import RbdAccess
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.starter import Starter
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache import conf as glance_conf
from glance_bootcache.ceph.opening import OpenClones
from glance_bootcache.storage.exporter import Exporter
from nova_bootcache.gateway.connections import BaseConnections
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.storagenode import PLAIN, Remote

_BYTES = 64 << 20


def _remotes(exporter: Exporter, directory: str, count: int) -> list[Remote]:
    found = []
    for number in range(count):
        image_id = f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
        path = f'{directory}/{image_id}'
        with open(path, 'wb') as stream:
            stream.truncate(_BYTES)
        manifest = Manifest(image_id, Standing.DONE, made=Made(
            image_format='raw', virtual_bytes=_BYTES, base_path=path,
            base_export=naming.export_name(naming.EXPORT_BASE, image_id)))
        exporter.ensure(manifest, None)
        found.append(Remote.from_answer(image_id, exporter.describe(manifest)))
    return found


def _memory(pid: int, kind: str) -> int:
    text = Path(f'/proc/{pid}/smaps_rollup').read_text()
    return sum(int(count) for count in re.findall(rf'^{kind}: +(\d+) kB', text, re.MULTILINE)) << 10


def _served(gateways: list[Gateway], remotes: list[Remote]) -> list[float]:
    """Have each image served by its gateway; return the seconds of each."""
    seconds = []
    for gateway, remote in zip(gateways, remotes, strict=True):
        began = time.monotonic()
        gateway.start()
        gateway.ensure_base(remote)
        seconds.append(time.monotonic() - began)
    return seconds


def _gateway(directory: str, name: str) -> Gateway:
    os.makedirs(f'{directory}/{name}', exist_ok=True)
    clones = HostClones(RbdAccess('', '', '', '', '', '', '', '', ''), is_on=False)
    connections = BaseConnections(Connectors(directory, Starter(directory).do), PLAIN, clones)
    return Gateway(f'{directory}/{name}', f'{directory}/{name}/sock', connections)


def measure(directory: str, remotes: list[Remote], each_its_own: bool) -> str:
    """Serve images, and return what that costs as a row.

    :param directory: of sockets; short.
    """
    kind = 'own' if each_its_own else 'one'

    def gateways() -> list[Gateway]:
        if each_its_own:
            return [_gateway(directory, f'o{number}') for number in range(len(remotes))]
        return [_gateway(directory, 'all')] * len(remotes)

    there = gateways()
    try:
        started = _served(there, remotes)
        # As a nova-compute that starts anew: it finds daemons by their monitors.
        began = time.monotonic()
        adopted = _served(gateways(), remotes)
        all_adopted = time.monotonic() - began
        pids = {pid for gateway in there if (pid := gateway.daemon.pid()) is not None}
        own, shared = (sum(_memory(pid, kind) for pid in pids) / (1 << 20)
                       for kind in ('Private_Dirty', 'Pss'))
        files = sum(len(os.listdir(f'/proc/{pid}/fd')) for pid in pids)
        threads = sum(len(os.listdir(f'/proc/{pid}/task')) for pid in pids)
    finally:
        for gateway in dict.fromkeys(there):
            gateway.daemon.stop()
        Starter(directory).kill_all()
    return (f'{len(remotes):6} {kind:4} {len(pids):7} {own:8.1f} {shared:8.1f} {files:6}'
            f' {threads:7} {1000 * started[0]:9.0f} {1000 * statistics.median(started[1:]):9.0f}'
            f' {1000 * statistics.median(adopted):9.0f} {all_adopted:9.2f}')


def rows(count: int, **options: Any) -> Iterator[str]:
    """Yield the row of one daemon for all images, and that of one for each.

    :param count: of images.
    :param options: of the exporter.
    """
    with tempfile.TemporaryDirectory(prefix='bcg') as directory:
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        for name, value in {'run_dir': f'{directory}/x', 'export_host': '127.0.0.1',
                            **options}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        exporter = Exporter(conf, OpenClones(conf))
        exporter.start()
        try:
            remotes = _remotes(exporter, directory, count)
            for each_its_own in (False, True):
                yield measure(directory, remotes, each_its_own)
        finally:
            exporter.stop()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--images', type=int, nargs='+', default=[10, 50, 100])
    said = parser.parse_args()
    print('images kind daemons own, MiB PSS, MiB  files threads first, ms  next, ms adopt, ms'
          '    all, s')
    for count in said.images:
        for row in rows(count):
            print(row, flush=True)


if __name__ == '__main__':
    main()
