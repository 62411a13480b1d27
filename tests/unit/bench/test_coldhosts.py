"""The figures of hosts that boot cold at once, as the demo shows them."""

import json

from bench.replay import coldhosts
from bench.replay.cluster import Run
from bench.replay.coldhosts import Bar
from bench.replay.host import Boot
from bench.replay.tap import Traffic


def _boot(seconds):
    return Boot(seconds, 0.1, 0.0, 0.0, 0.0, 0, 0, [], [])


def _bars(stock=8000, cold=900, warm=0):
    return [Bar('full copy', 8, 10.0, 60.0, stock), Bar('bootcache cold', 8, 10.0, 12.0, cold),
            Bar('bootcache warm', 8, 9.0, 10.0, warm)]


def test_a_run_is_told_in_the_time_that_it_stands_for():
    run = Run('full copy', [_boot(20.0), _boot(30.0)], {'base': Traffic(2, 500)}, 7000, 0.5)
    assert coldhosts.bar(run, 2.0) == Bar('full copy', 2, 10.0, 15.0, 7500)


def test_what_holds_is_not_broken():
    assert coldhosts.broken_promises(_bars()) == []


def test_bytes_are_judged():
    assert 'over half' in coldhosts.broken_promises(_bars(cold=4001))[0]
    # Ten seconds of two each: the watch reads each base at most nine times.
    assert coldhosts.broken_promises(_bars(warm=8 * 9 * 4096)) == []
    assert 'warm hosts were sent 294913 bytes, lacked 0, and read 294912' \
        in coldhosts.broken_promises(_bars(warm=8 * 9 * 4096 + 1))[0]


def test_warm_hosts_are_sent_what_the_cache_image_lacks_and_no_byte_more():
    watched = 8 * 9 * 4096
    assert coldhosts.broken_promises(_bars(warm=watched + 16), missing=2) == []
    assert f'were sent {watched + 17} bytes' in coldhosts.broken_promises(
        _bars(warm=watched + 17), missing=2)[0]


def test_a_way_that_was_not_measured_is_told():
    assert 'bootcache cold only' in coldhosts.broken_promises(_bars()[1:2])[0]
    assert 'nothing only' in coldhosts.broken_promises([])[0]


def test_figures_and_picture_are_written(tmp_path):
    coldhosts.write(tmp_path / 'report', _bars())
    document = json.loads((tmp_path / 'report' / coldhosts.REPORT).read_text())
    assert [one['way'] for one in document['ways']] == [one.way for one in _bars()]
    assert (tmp_path / 'report' / coldhosts.PICTURE).read_bytes().startswith(b'\x89PNG')
