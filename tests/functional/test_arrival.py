"""Servers that boot while their image's cache image is on its way, with real daemons.

A stock nbdkit stands before the exporter: it makes the way long, and notes what is read.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import re
import signal
import socket
import subprocess
import threading

import nbd
import pytest
from compute_host import SERVER, boot, compare
from functional_tools import free_port, qemu_img, reached, read_base, until
from storage_node import IMAGE, MIB, SIZE, content

from bootcache import daemonjobs, exception, naming
from bootcache.manifest import Made, Manifest, Standing
from bootcache.workingset import Extent
from nova_bootcache.gateway import arrivingimage, below, graph
from nova_bootcache.tiers import fetches

# The end of the base is read last, and so arrives last.
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SET = Extent(3 * MIB, MIB), Extent(0, MIB), Extent(5 * MIB, 300_000)
LAST = 5 * MIB + 8192
QEMU_MAJOR = int(re.search(r'version (\d+)', qemu_img('--version'))[1])
_LINE = re.compile(r'connection=(\d+) (Connect|Read)\b(.*)')


class Way:
    """The way to the storage node.

    :param rate: bits a second.
    """

    def __init__(self, directory, port, rate):
        self.port, self.log = free_port(), f'{directory}/way.log'
        self._trigger = f'{directory}/way.extents'
        self.process = subprocess.Popen(
            ['nbdkit', '--foreground', '--ipaddr', '127.0.0.1', '--port', str(self.port),
             '--filter=log', '--filter=error', '--filter=rate', 'nbd', 'hostname=127.0.0.1',
             f'port={port}', 'dynamic-export=true', f'logfile={self.log}', f'rate={rate}',
             'error-extents-rate=100%', f'error-extents-file={self._trigger}'],
            stdin=subprocess.DEVNULL)
        until(self._listens, 'nbdkit')

    def _listens(self):
        with socket.socket() as connection:
            return connection.connect_ex(('127.0.0.1', self.port)) == 0

    def reads(self, kind):
        """Return offset and length of each read of an export of this kind."""
        exports, found = {}, []
        with open(self.log) as stream:
            for number, verb, rest in _LINE.findall(stream.read()):
                if verb == 'Connect':
                    name = re.search(r'export="?([\w-]*)', rest)
                    exports[number] = name.group(1) if name else ''
                elif exports.get(number, '').startswith(kind) and 'offset=' in rest:
                    found.append(tuple(int(value, 16) for value in re.search(
                        r'offset=0x(\w+) count=0x(\w+)', rest).groups()))
        return found

    def pieces(self, kind):
        """Return how many reads there were of more than is read to try the way."""
        return sum(length > 4096 for _offset, length in self.reads(kind))

    @contextlib.contextmanager
    def telling_nothing_of_what_is_allocated(self):
        with open(self._trigger, 'x'):
            yield
        os.unlink(self._trigger)

    def unread_bytes(self):
        """Return the bytes that hosts have sent and that it has not read."""
        with open('/proc/net/tcp') as stream:
            rows = [line.split() for line in stream][1:]
        return sum(int(row[4].split(':')[1], 16) for row in rows
                   if int(row[1].split(':')[1], 16) == self.port)

    def end(self):
        # By SIGTERM it would wait for its connections.
        self.process.kill()
        self.process.wait()


@pytest.fixture
def way(request, node, directory, monkeypatch):
    """A way by which a cache image takes two seconds, or more; worth not to be waited for."""
    monkeypatch.setattr(arrivingimage, 'WORTH_BYTES', 0)
    node.build(*SET)
    made = Way(directory, node.conf.export_port, getattr(request, 'param', 8_000_000))
    yield made
    made.end()


@pytest.fixture
def host(hosts, way):
    made = hosts()
    made.service.extra = {'server': ['127.0.0.1', way.port]}
    yield made
    assert made.arrivals.wait(IMAGE, 60)


def read(host, offset, length, image=IMAGE):
    return read_base(host, image, offset, length)


def nodes(host, *kinds):
    return {naming.node_name(kind, IMAGE) for kind in kinds}


@pytest.fixture
def go(monkeypatch):
    """What arrives does not begin to before this is set, but for what servers ask for."""
    event, real = threading.Event(), arrivingimage.bring
    monkeypatch.setattr(arrivingimage, 'bring', lambda *what: event.wait(60) and real(*what))
    yield event
    event.set()


def test_servers_do_not_read_from_what_nobody_has_verified(host, node, go, directory):
    """The storage node has not read the file since it began to serve it, or it was changed."""
    go.set()
    host.service.extra = {'verified': False}
    assert boot(host, f'{directory}/disk') is True
    assert not host.needs.is_arriving(IMAGE)
    assert host.cache.entry(IMAGE).cache_image == node.manifest.made.cache_image
    compare(f'{directory}/disk', node)


def test_a_server_boots_while_its_cache_image_arrives(host, node, way, go, directory):
    data = content(node)
    assert boot(host, f'{directory}/disk') is True
    # It is on its way, and what would come last is read at once.
    assert host.needs.is_arriving(IMAGE) and host.cache.entry(IMAGE).cache_image is None
    assert read(host, LAST, 4096) == data[LAST:LAST + 4096]
    # Nor does another one wait for it.
    assert boot(host, f'{directory}/second') is True
    assert host.needs.is_arriving(IMAGE)
    go.set()
    assert host.arrivals.wait(IMAGE, 60)
    info = node.manifest.made.cache_image
    assert host.cache.entry(IMAGE).cache_image == info
    # All of it crossed the wire, and each byte once, but for reads of 4 KiB that try the way.
    taken = sorted(way.reads('cache-'))
    tried = [one for one in taken if one[1] == 4096 and any(
        one is not other and other[0] <= one[0] and one[0] + 4096 <= other[0] + other[1]
        for other in taken)]
    taken = [one for one in taken if one not in tried]
    assert sum(length for _offset, length in taken) == info.bytes
    assert all(one[0] + one[1] <= other[0] for one, other in itertools.pairwise(taken))
    # What servers of that time read comes from this host from now on, the rest from the base.
    assert host.gateway.daemon.nodes() == nodes(host, 'g', 'l', 'n')
    assert not any(name.endswith('.partial') for name in os.listdir(host.cache.directory))
    before = way.pieces('cache-'), way.pieces('base-')
    for extent in SET:
        assert read(host, extent.offset, extent.length) == data[extent.offset:extent.end]
    assert (way.pieces('cache-'), way.pieces('base-')) == before
    assert read(host, 4 * MIB, 8192) == data[4 * MIB:4 * MIB + 8192]
    assert way.pieces('base-') > before[1]
    for disk in ('disk', 'second'):
        compare(f'{directory}/{disk}', node)


def test_the_next_server_uses_what_has_arrived(host, node, way, directory):
    boot(host, f'{directory}/first')
    host.arrivals.wait(IMAGE, 60)
    count = way.pieces('cache-')
    assert boot(host, f'{directory}/next') is True
    compare(f'{directory}/next', node)
    assert way.pieces('cache-') == count


def test_the_gateway_lets_go_of_it_with_the_base(host, directory):
    boot(host, f'{directory}/disk')
    assert host.below.stop_serving(IMAGE) is False, 'it is in the making, and on its way'
    host.arrivals.wait(IMAGE, 60)
    assert host.gateway.remove_base(IMAGE) is True
    assert host.gateway.daemon.nodes() == set() and host.gateway.daemon.exports() == {}


def test_one_that_is_damaged_is_not_kept(host, node, way, directory):
    with open(node.cache_path, 'r+b') as stream:
        stream.seek(-4096, os.SEEK_END)
        stream.write(b'\xa5' * 4096)
    assert boot(host, f'{directory}/disk') is True
    assert host.arrivals.wait(IMAGE, 60)
    assert host.cache.entry(IMAGE).cache_image is None
    # Servers read the base from now on.
    assert host.gateway.daemon.nodes() == nodes(host, 'g', 'n')
    compare(f'{directory}/disk', node)


def test_the_gateway_dies_in_the_midst(host, node, directory):
    boot(host, f'{directory}/disk')
    assert host.needs.is_arriving(IMAGE)
    os.kill(host.gateway.daemon.pid(), signal.SIGKILL)
    assert host.arrivals.wait(IMAGE, 60)
    host.upkeep.once()
    compare(f'{directory}/disk', node)
    # Upkeep, which sees an empty one, has fetched it anew.
    assert host.cache.entry(IMAGE).cache_image is not None


@pytest.mark.parametrize('way', [2_000_000], indirect=True, ids=['slow'])
def test_the_driver_restarts_in_the_midst(host, hosts, node, directory, monkeypatch):
    # What is asked for at this moment takes two seconds at this rate, and the job as long to end.
    monkeypatch.setattr(below, '_TIDY_SECONDS', 10)
    boot(host, f'{directory}/disk')
    assert host.needs.is_arriving(IMAGE)
    again = hosts()
    assert again.gateway.daemon.nodes() == nodes(again, 'g', 'n')
    compare(f'{directory}/disk', node)
    # In one process the earlier host's thread is still there, and sees that it is over.
    assert host.arrivals.wait(IMAGE, 60)
    assert boot(again, f'{directory}/next') is True
    assert again.arrivals.wait(IMAGE, 60)
    assert again.cache.entry(IMAGE).cache_image is not None
    compare(f'{directory}/next', node)


@pytest.mark.parametrize('way', [2_000_000], indirect=True, ids=['slow'])
def test_the_storage_node_goes_away_in_the_midst(host, way, node, directory, monkeypatch):
    monkeypatch.setattr(fetches, 'GRACE_SECONDS', 3)
    host.service.freeze()
    boot(host, f'{directory}/disk')
    way.end()
    until(lambda: not host.needs.is_arriving(IMAGE), 'the end of the arrival')
    assert host.cache.entry(IMAGE).cache_image is None
    host.service.extra = {'server': ['127.0.0.1', node.conf.export_port]}
    reached(host, IMAGE)
    until(lambda: host.gateway.daemon.nodes() == nodes(host, 'g', 'n') or host.upkeep.once(),
          'that the gateway has let go of it')
    compare(f'{directory}/disk', node)


@pytest.mark.parametrize('way', [2_000_000], indirect=True, ids=['slow'])
def test_bytes_are_right_where_nobody_can_tell_what_is_allocated(host, way, node, directory):
    boot(host, f'{directory}/disk')
    job = graph.arrival_job(IMAGE)
    until(lambda: daemonjobs.look(host.gateway.daemon, job), 'that it comes')
    with way.telling_nothing_of_what_is_allocated(), contextlib.suppress(nbd.Error):
        # A connector looks for holes in what it is asked for, as any NBD server of QEMU's.
        assert read(host, LAST, 4096) == content(node)[LAST:LAST + 4096]
    host.arrivals.wait(IMAGE, 60)
    compare(f'{directory}/disk', node)


@pytest.mark.parametrize('way', [2_000_000], indirect=True, ids=['slow'])
def test_what_can_come_no_more_is_an_error_and_never_other_bytes(host, way, directory):
    """Also of a read that waits while the job runs by which it comes: a guest is paused."""
    boot(host, f'{directory}/disk')
    job = graph.arrival_job(IMAGE)
    until(lambda: daemonjobs.look(host.gateway.daemon, job), 'that it comes')
    os.kill(way.process.pid, signal.SIGSTOP)
    before = way.unread_bytes()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, host, LAST, 4096)
        until(lambda: way.unread_bytes() > before, 'that it has been asked for')
        way.end()
        with pytest.raises(nbd.Error):
            reading.result(60)


@pytest.mark.parametrize('way', [2_000_000], indirect=True, ids=['slow'])
def test_the_storage_node_hangs_in_the_midst(host, way, node, directory, monkeypatch):
    """What cannot be taken out of the gateway at once ends when its reads have failed, and goes
    when the base can be read again."""
    monkeypatch.setattr(fetches, 'GRACE_SECONDS', 2)
    monkeypatch.setattr(fetches, '_SLOWEST', 1 << 30)
    monkeypatch.setattr(daemonjobs, '_ENDING_SECONDS', 1)
    host.service.freeze()
    boot(host, f'{directory}/disk')
    # Before that there is nothing that could hang.
    job = graph.arrival_job(IMAGE)
    until(lambda: daemonjobs.look(host.gateway.daemon, job), 'that it comes')
    os.kill(way.process.pid, signal.SIGSTOP)
    try:
        until(lambda: not host.needs.is_arriving(IMAGE), 'the end of the arrival')
        until(lambda: not daemonjobs.is_there(host.gateway.daemon, job) or host.upkeep.once(),
              'that the job is gone')
    finally:
        os.kill(way.process.pid, signal.SIGCONT)
    host.upkeep.once()
    until(lambda: host.gateway.daemon.nodes() == nodes(host, 'g', 'n') or host.upkeep.once(),
          'that the gateway has let go of it')
    compare(f'{directory}/disk', node)


@pytest.mark.parametrize('way', [2_000_000], indirect=True, ids=['slow'])
@pytest.mark.parametrize('by_upkeep', [False, True], ids=['by itself', 'by upkeep'])
def test_nobody_waits_while_one_that_hangs_is_ended(hosts, way, node, directory, make_base,
                                                    monkeypatch, by_upkeep):
    """Neither a chain of another image, nor the growing store below it, which has its limit."""
    other = Manifest(OTHER, Standing.DONE, made=Made(
        image_format='raw', virtual_bytes=SIZE, base_export=f'base-{OTHER}',
        base_path=make_base(f'{directory}/store/other', SIZE, [(0, SIZE, 'data')])))
    node.exporter.ensure(other, None)
    host = hosts(store_quota='2MiB')
    host.service.extra = {'server': ['127.0.0.1', way.port]}
    host.service.freeze()
    host.service.others[OTHER] = node.exporter.describe(other)
    monkeypatch.setattr(fetches, 'GRACE_SECONDS', 2)
    monkeypatch.setattr(fetches, '_SLOWEST', 1 << 30)
    monkeypatch.setattr(daemonjobs, '_ENDING_SECONDS', 1 if by_upkeep else 100)
    monkeypatch.setattr(below, '_TIDY_SECONDS', 100)
    job, end, begun = graph.arrival_job(IMAGE), daemonjobs.end, threading.Event()

    def note_end(daemon, ended, seconds=None):
        if ended == job:
            begun.set()
        end(daemon, ended, seconds)

    def reconcile():
        # It may have given up by now, if this takes longer than a hundred seconds.
        with contextlib.suppress(exception.BootcacheError):
            host.reconcile()

    boot(host, f'{directory}/disk')
    until(lambda: daemonjobs.look(host.gateway.daemon, job), 'that it comes')
    os.kill(way.process.pid, signal.SIGSTOP)
    tidies = threading.Thread(target=reconcile)
    try:
        if by_upkeep:
            until(lambda: not host.needs.is_arriving(IMAGE), 'the end of the arrival')
        monkeypatch.setattr(daemonjobs, 'end', note_end)
        if by_upkeep:
            tidies.start()
        assert begun.wait(60)
        other_server = dataclasses.replace(SERVER, image_id=OTHER)
        if QEMU_MAJOR >= 10:
            # It adds no node while a request waits, of whatever node: the server waits for the end,
            # or goes the stock way.
            if boot(host, f'{directory}/other', server=other_server):
                assert len(read(host, 0, 4 * MIB, OTHER)) == 4 * MIB
            return
        assert boot(host, f'{directory}/other', server=other_server)
        store = host.below.stores.get(OTHER)
        assert store.grows
        assert len(read(host, 0, 4 * MIB, OTHER)) == 4 * MIB
        until(lambda: not store.grows, 'that the growing store has its limit')
        is_at_work = tidies.is_alive() if by_upkeep else host.needs.is_arriving(IMAGE)
        assert is_at_work, 'it is still ended'
    finally:
        os.kill(way.process.pid, signal.SIGCONT)
        if by_upkeep:
            tidies.join()
    assert host.arrivals.wait(IMAGE, 60)


def test_without_room_for_tables_it_is_fetched_first(hosts, way, node, directory):
    size = node.manifest.made.cache_image.bytes
    made = hosts(compute_disk_quota=str(arrivingimage.room(size) - 4096), store_quota='1MiB')
    assert boot(made, f'{directory}/disk') is True
    assert not made.needs.is_arriving(IMAGE)
    assert made.cache.entry(IMAGE).cache_image is not None


def test_a_boot_that_is_watched_waits_for_it(host, directory):
    host.service.watch = {'quota': 64 * MIB, 'linger': 1, 'silence': 60, 'timeout': 100,
                          'marker': 'login:'}
    boot(host, f'{directory}/disk')
    assert not host.needs.is_arriving(IMAGE) and host.cache.entry(IMAGE).cache_image is not None
    assert host.below.stores.get(IMAGE) is not None


def test_servers_that_come_while_it_lands_go_no_other_way(host, directory, monkeypatch):
    """An entry is replaced, and a server of that moment looks at it."""
    stock = []
    monkeypatch.setattr(host.fetches, 'fetch_offered', lambda *_: stock.append(1))
    assert boot(host, f'{directory}/0') is True
    number = 1
    while host.needs.is_arriving(IMAGE):
        assert boot(host, f'{directory}/{number}') is True
        number += 1
    assert boot(host, f'{directory}/{number}') is True
    assert not stock
