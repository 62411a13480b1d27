"""A storage node whose cache image is damaged: found before use, fetched again, and given up."""

import os

import pytest
from compute_host import boot, compare
from storage_node import IMAGE, MIB

from bootcache.workingset import Extent

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)
LONG = 10_000


@pytest.fixture
def host(node, hosts, caplog):
    """A host; ``host.later()`` lets a pause pass."""
    caplog.set_level('INFO')
    node.build(*SET)
    host = hosts()
    now = [0.0]

    def later(seconds):
        now[0] += seconds

    wrong = host.fetches._wrong
    for pauses in (wrong._again, wrong._given_up):
        pauses._clock = lambda: now[0]
    host.later = later
    return host


def damage(node):
    with open(node.cache_path, 'r+b') as stream:
        stream.seek(os.path.getsize(node.cache_path) - 100)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    # Opened again: the daemon may have what it read.
    node.kill()
    node.serve()


def holds(host):
    entry = host.cache.entry(IMAGE)
    return entry is not None and entry.cache_image is not None


def test_servers_read_the_base_meanwhile_and_go_stock_in_the_end(host, node, directory, caplog):
    damage(node)
    for number in range(3):
        # The first one fetches, the other one does not, within the pause.
        for one in ('first', 'second'):
            caplog.clear()
            assert boot(host, f'{directory}/{one}-{number}') is True
            compare(f'{directory}/{one}-{number}', node)
            assert ('came wrong from' in caplog.text) == (one == 'first')
        assert not holds(host)
        host.later(LONG)
    assert boot(host, f'{directory}/last') is True
    caplog.clear()
    assert boot(host, f'{directory}/stock') is False
    assert 'its cache image came wrong to this host, time and again' in caplog.text
    # It was seen to, and a day has passed.
    node.build(*SET)
    node.kill()
    node.serve()
    host.later(86400)
    assert boot(host, f'{directory}/again') is True
    assert holds(host)
    compare(f'{directory}/again', node)


def test_another_cache_image_is_taken_at_once(host, node, directory):
    damage(node)
    assert boot(host, f'{directory}/cold') is True and not holds(host)
    node.build(SET[0])
    assert boot(host, f'{directory}/warm') is True and holds(host)
    compare(f'{directory}/warm', node)


def test_a_node_that_is_away_is_no_reason_for_mistrust(host, node, directory):
    node.exporter.stop()
    boot(host, f'{directory}/stock')
    node.serve()
    assert boot(host, f'{directory}/warm') is True and holds(host)
