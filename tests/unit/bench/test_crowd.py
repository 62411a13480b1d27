"""Many boots at the same time, played by one thread."""

import subprocess
import time

import pytest

from bench.replay.crowd import Crowd
from bench.replay.player import PlayError
from bench.replay.trace import Header, Request, Trace


@pytest.fixture
def socket(tmp_path):
    pytest.importorskip('nbd')
    path, ready = tmp_path / 'nbd', tmp_path / 'pid'
    try:
        process = subprocess.Popen(['nbdkit', '--foreground', '--unix', str(path), '--pidfile',
                                    str(ready), 'memory', '1M'])
    except FileNotFoundError:
        pytest.skip('nbdkit is not installed')
    # The socket is there before anyone listens on it; this file is written after that.
    while not ready.exists():
        time.sleep(0.01)
    yield str(path)
    process.kill()
    process.wait()


def a_boot(think, offset=0, tail=0.05):
    requests = tuple(Request('r', offset, 4096, index - 1, think, 0.0) for index in range(10))
    return Trace(Header('small', 'ab' * 32, 1 << 20, 10, 1.0, tail, {}), requests)


def test_boots_are_played_beside_each_other(socket):
    crowd = Crowd(1.0, True, 0.0)
    for index in range(4):
        crowd.add(index, socket, '', a_boot(0.02 * (index + 1)))
    begun = time.monotonic()
    found = crowd.run(4)
    assert time.monotonic() - begun < 0.02 * 10 * (1 + 2 + 3 + 4)
    for index, one in enumerate(found):
        assert one.end - one.began >= 0.2 * (index + 1) + 0.05
    assert len({one.digest for one in found}) == 1 and found[0].digest


def test_others_may_begin_when_one_has_ended(socket):
    crowd = Crowd(1.0, False, 0.0)
    crowd.add(0, socket, '', a_boot(0.001))

    def ended(index):
        if index == 0:
            crowd.add(1, socket, '', a_boot(0.001))

    first, second = crowd.run(2, ended)
    assert second.began >= first.end


def test_a_failure_ends_all(socket):
    crowd = Crowd(1.0, False, 0.0)
    crowd.add(0, socket, '', a_boot(10.0))
    crowd.fail(PlayError('no disk'))
    with pytest.raises(PlayError, match='no disk'):
        crowd.run(1)
    crowd.fail(PlayError('nobody listens'))
