"""A replay of a tiny made-up boot through the real chain: exporter, gateway, namespaces, links."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from functional_tools import qemu_img

from bench.replay import cluster, netns, peers, peers_yolo, servers, trace
from bench.replay.trace import Header, Request, Trace
from bootcache.cachelayout import Compression

MIB = 1 << 20
SIZE = 8 * MIB

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='network namespaces are made by root')


@pytest.fixture
def base(directory):
    """An image of random data, which becomes smaller by compression."""
    raw, path = Path(directory, 'raw'), Path(directory, 'base')
    raw.write_bytes(random.Random(0).randbytes(SIZE // 2).hex().encode())
    qemu_img('convert', '-f', 'raw', '-O', 'qcow2', raw, path)
    return path


def boot():
    """Reads and writes, two of the reads in flight together."""
    requests = [Request('r', 0, 4096, -1, 0.01, 0), Request('r', MIB, 65536, 0, 0.01, 0),
                Request('r', 2 * MIB, 65536, 0, 0.011, 0), Request('w', MIB, 4096, 2, 0.01, 0),
                Request('f', 0, 0, 3, 0, 0), Request('r', MIB + 4096, 8192, 4, 0.01, 0),
                # After the boot's end.
                Request('r', 4 * MIB, 4096, 5, 0.01, 0)]
    made = Trace(Header('tiny', '', SIZE, 6, 0.1, 0.02, {}), tuple(requests))
    made.check()
    return made


def test_all_ways_read_the_same_and_nothing_is_left(base, directory):
    played = boot()
    extents = trace.read_extents(played.requests, 4096, SIZE)
    found = {}
    with cluster.cluster(2, 400_000_000, media=Path(directory),
                         storage=Path(directory)) as made:
        network = made.network
        image = made.add_image(base, 'qcow2', SIZE, extents, compression=Compression.NONE)
        for peer in (peers.LocalRaw(), peers.OnDemand(), peers.Sc13(), peers.Ours(),
                     peers.OursFirst(), peers.FullCopy()):
            for run in made.run(peer, [image], [played], 2):
                found[run.label] = run
        small = made.add_image(base, 'qcow2', SIZE, extents, compression=Compression.ZSTD)
        for run in made.run(peers.OursCompressed(), [small], [played], 2):
            found[run.label] = run
    listed = subprocess.run(['ip', 'netns', 'list'], check=True, capture_output=True, text=True)
    assert not any(name in listed.stdout for name in (network.storage, *network.hosts))
    assert [name for name in os.listdir(directory) if name.startswith('bcr')] == []
    assert len({boot.digest for run in found.values() for boot in run.boots}) == 1
    assert all(boot.seconds > 0.05 for run in found.values() for boot in run.boots)
    # But for some reads of 4 KiB, whether a base is there.
    traffic = {label: {kind: there.bytes for kind, there in run.traffic.items()
                       if there.bytes > 2 * 65536} for label, run in found.items()}
    base_bytes = {label: there['base'] for label, there in traffic.items() if 'base' in there}
    # What is on demand: the reads, and the rest of the 64 KiB cluster that was written to.
    assert base_bytes['on demand'] >= 2 * (4096 + 2 * 65536)
    assert set(base_bytes) == {'on demand', 'SC13 cold', 'bootcache first'}
    assert found['bootcache cold'].traffic['cache'].bytes >= 2 * image.answer['cache_image'][
        'data_bytes']
    assert traffic['bootcache warm'] == {} == traffic['SC13 warm']
    assert found['bootcache zstd cold'].traffic['cache'].bytes \
        < found['bootcache cold'].traffic['cache'].bytes
    assert traffic['bootcache zstd warm'] == {} == traffic['bootcache zstd expanded']
    # It has the clusters of the uncompressed one again.
    assert found['bootcache zstd warm'].to_json()['host_bytes'] \
        < found['bootcache zstd expanded'].to_json()['host_bytes']
    assert found['full copy'].copied == 2 * base.stat().st_size


def test_servers_of_one_host_boot_from_what_it_has(base, directory):
    played = boot()
    extents = trace.read_extents(played.requests, 4096, SIZE)
    with cluster.cluster(1, 400_000_000, media=Path(directory),
                         storage=Path(directory)) as made:
        small = made.add_image(base, 'qcow2', SIZE, extents, compression=Compression.ZSTD)
        for peer in (peers_yolo.OursColdCompressed(), peers_yolo.OursWarmCompressed(),
                     peers_yolo.OursExpanded()):
            made.everywhere(1, servers.prepare, peer, [small, small], peer.phases[0], {})
            made.traffic(1)
            found = made.everywhere(1, servers.boot, [played] * 2, False, 1.0, 0.0, True,
                                    time.monotonic() + 0.1)[0]
            assert ('cache' in made.traffic(1)) == (peer.phases[0] == 'cold')
            assert len(set(found['digests'])) == 1 and not found['refused']
            made.everywhere(1, servers.finish)
            made.reset(1)


def test_a_network_that_somebody_left_is_removed():
    gone = subprocess.Popen(['true'])
    gone.wait()
    name = f'bcr{gone.pid}-left'
    subprocess.run(['ip', 'netns', 'add', name], check=True)
    process = subprocess.Popen(['ip', 'netns', 'exec', name, 'sleep', '60'])
    try:
        netns.remove_stale()
        assert process.wait(10) != 0
        assert name not in subprocess.run(['ip', 'netns', 'list'], check=True, text=True,
                                          capture_output=True).stdout
    finally:
        process.kill()
        process.wait()
