"""Hosts that exchange: who stalls, is slow, or hangs is left in time."""

import contextlib
import os
import signal

import pytest
from exchanging import MIB, fetch
from functional_tools import frozen

from bootcache import exception
from bootcache.exchange import client, patience
from bootcache.exchange.client import ExchangeClient


def test_who_stands_still_is_left_for_the_reserve(swarm):
    slow, source, one = swarm.source(), swarm.source(), swarm.host()
    with frozen(slow.process.pid):
        progress = fetch(swarm, one, slow, reserve=[source])
    assert one.content() == swarm.content() and source.address in progress.peers


def test_who_gives_a_block_now_and_then_alone_is_left(swarm):
    """All of it would take a minute."""
    source, one = swarm.source(exchange_upload_rate='64KiB'), swarm.host()
    with pytest.raises(exception.ExchangeStalled) as stalled:
        fetch(swarm, one, source)
    assert sum(length for _offset, length in stalled.value.missing) > 2 * MIB
    assert one.client.files()['files'] == {}


def test_who_is_slow_for_long_has_the_reserve_beside_it(swarm, monkeypatch):
    monkeypatch.setattr(patience, 'RESERVE_AFTER', 1.0)
    slow, source, one = swarm.source(exchange_upload_rate='512KiB'), swarm.source(), swarm.host()
    assert source.address in fetch(swarm, one, slow, reserve=[source]).peers


class Recorded(ExchangeClient):
    """Notes how long the exchange may take to answer.

    :ivar waited: seconds of each question that was not answered.
    """

    waited = []

    def with_timeout(self, seconds):
        return Recorded(self._path, seconds)

    def _ask(self, method, *arguments, **named):
        try:
            return super()._ask(method, *arguments, **named)
        except exception.ExchangeFailed:
            self.waited.append(self._seconds)
            raise


def test_a_process_that_hangs_is_left_in_less_than_five_seconds(swarm):
    source, one = swarm.source(exchange_upload_rate='1MiB'), swarm.host()
    asked, begun = Recorded(one.socket), []

    def hang(progress):
        if progress.done and not begun:
            begun.append(1)
            os.kill(one.process.pid, signal.SIGSTOP)

    with contextlib.ExitStack() as goes_on:
        goes_on.callback(os.kill, one.process.pid, signal.SIGCONT)
        with pytest.raises(exception.ExchangeFailed, match='does not answer'):
            client.fetch(asked, swarm.wanted(source), one.file, check=hang)
    assert begun and asked.waited and sum(asked.waited) <= 5


def test_what_may_still_be_written_to_is_not_gone_on_with(swarm):
    """It hangs when what did not come was told, and before it has let go of the file."""
    one = swarm.host()

    class Hangs(ExchangeClient):
        def with_timeout(self, seconds):
            return Hangs(self._path, seconds)

        def drop(self, name):
            os.kill(one.process.pid, signal.SIGSTOP)
            super().drop(name)

    with contextlib.ExitStack() as goes_on:
        goes_on.callback(os.kill, one.process.pid, signal.SIGCONT)
        with pytest.raises(exception.ExchangeFailed) as failed:
            client.fetch(Hangs(one.socket), swarm.wanted(), one.file)
    assert not isinstance(failed.value, exception.ExchangeStalled)
