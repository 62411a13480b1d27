"""Files that are pushed to many hosts, on paper."""

import numpy
import pytest

from bench.cluster import exchange, exchangereport
from bench.cluster.exchange import Push, Swarm


def swarm(hosts, pieces=40, delay=0, sends=1, racks=None, seed=1):
    return Swarm(numpy.zeros(hosts, int) if racks is None else racks, pieces, delay, sends,
                 numpy.random.default_rng(seed))


def test_connections_are_those_of_the_product():
    """The first two have the storage node, which comes after all hosts."""
    known = exchange.connections(numpy.array([0, 0, 1, 0]))
    assert [set(others) for others in known] == [{4, 1, 2, 3}, {0, 4, 2, 3}, {0, 1}, {0, 1}]


def test_one_host_takes_one_copy():
    alone = swarm(1)
    assert exchange.spread(alone) == 40
    assert alone.sent.tolist() == [0, 40]


@pytest.mark.parametrize('delay', [0, 3])
def test_all_get_each_piece_once(delay):
    many = swarm(20, delay=delay)
    rounds = exchange.spread(many)
    assert many.sent.sum() == 20 * 40
    assert many.sent.max() <= rounds
    assert 40 <= many.sent[-1] < 60


def test_what_comes_can_be_sent_on_after_a_while():
    """Two hosts of one line: what the second gets of the first is later by the delay."""
    assert exchange.spread(swarm(10, delay=30)) > exchange.spread(swarm(10, delay=0)) + 30


def test_of_another_rack_little_comes():
    racks = numpy.arange(80) % 2
    two = swarm(80, racks=racks)
    exchange.spread(two)
    assert 40 <= two.crossed < 4 * 40


def test_a_push_and_its_report(tmp_path):
    done = exchange.push((Push('cache image', 40), 1))
    assert done['racks'] == 1 and done['pieces'] == 861
    assert done['copied_time'] == 4.0
    assert 1 < done['time'] < done['copied_time']
    assert exchange.push((Push('cache image', 40), 1)) == done
    compared = exchange.compare(1)
    exchangereport.write([done], compared, tmp_path)
    _head, line = (tmp_path / 'cluster-exchange.csv').read_text().splitlines()
    assert line.startswith('cache image,40,1,5,') and len(line.split(',')) == 9
    assert len((tmp_path / 'cluster-exchanged.csv').read_text().splitlines()) == 3
    assert 'exchanged' in (tmp_path / 'cluster-exchange.svg').read_text()


def test_the_model_is_near_what_was_measured():
    for one in exchange.compare(1):
        assert abs(one.time / one.measured_time - 1) < 0.25
        assert abs(one.copies / one.measured_copies - 1) < 0.25
