"""Boots while the gateway hangs: SIGSTOP stands for a change of a chain that does not end."""

import os
import signal
import threading

import pytest
from compute_host import boot, compare
from functional_tools import PATIENCE, frozen, until
from storage_node import IMAGE, MIB

from bootcache.workingset import Extent
from nova_bootcache.gateway import daemon

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


@pytest.fixture
def host(hosts, node, directory, monkeypatch):
    """A host that holds an image's cache image, and soon loses patience with its gateway."""
    monkeypatch.setattr(daemon, '_ANSWER_SECONDS', 1)
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/first') is True
    return host


def reasons(caplog):
    return [text.partition('stock way: ')[2] for record in caplog.records
            if 'goes the stock way: ' in (text := record.getMessage())]


def test_boots_go_stock(host, node, directory, caplog):
    caplog.set_level('INFO')
    made = []
    with frozen(host.gateway.daemon.pid()):
        threads = [threading.Thread(target=lambda path: made.append(boot(host, path)),
                                    args=(f'{directory}/{number}',)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert made == [False] * 4
        said = reasons(caplog)
        assert len(said) == 4 and all('StorageDaemonBusy' in reason for reason in said), said
    until(host.gateway.daemon.answers, 'an answer of the gateway')
    assert boot(host, f'{directory}/last') is True
    compare(f'{directory}/last', node)


def test_nothing_is_fetched_for_a_boot_that_goes_stock(host, node, directory):
    host.cache.remove(IMAGE)
    with frozen(host.gateway.daemon.pid()):
        assert boot(host, f'{directory}/disk') is False
    assert host.cache.known(IMAGE) is None


def test_one_that_hung_and_was_ended_is_started_again_at_once(host, node, directory):
    with frozen(host.gateway.daemon.pid()):
        assert boot(host, f'{directory}/one') is False
        os.kill(host.gateway.daemon.pid(), signal.SIGKILL)
        until(lambda: host.gateway.daemon.pid() is None, 'its end')
        assert boot(host, f'{directory}/two') is True
    compare(f'{directory}/two', node)
