"""Reads of a storage node that says nothing any more, or that nobody hears: TCP waits for minutes.

SIGSTOP stands for whatever keeps the node itself silent: its kernel acknowledges what is sent, so
that no limit of TCP's ends the connection.
"""

import os
import signal
import threading

import nbd
import pytest
from compute_host import boot
from functional_tools import frozen, read_base, until
from storage_node import IMAGE, MIB
from way import STORAGE, Way

from bootcache.conf import GROUP
from bootcache.workingset import Extent

# SCSI guests give a request up after 30 s.
MOST_SECONDS = 25
SET = Extent(4 * MIB, 300_000), Extent(0, 4096)
# Data that no boot has read, and more of it.
ELSEWHERE, FURTHER = 5 * MIB, 4 * MIB + 500_000


class StillWaits(Exception):
    """A read has no answer when its guest gives it up."""


@pytest.fixture
def way(storage_conf):
    """Goes over a firewall from the host, where this test is, to the storage node."""
    for name, value in {'export_host': STORAGE, 'allow_plain_nbd': True}.items():
        storage_conf.set_override(name, value, GROUP)
    with Way() as way:
        yield way


@pytest.fixture
def far_host(way, node, hosts, directory):
    """A host beyond a firewall, with a server."""
    with way.at_storage():
        node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    return host


def read_in_time(host, offset):
    """Read a base as a guest does.

    :returns: whether an error was the answer, at which QEMU pauses the guest.
    :raises StillWaits: if there is none in time.
    """
    ended = []

    def read():
        try:
            read_base(host, IMAGE, offset, 4096)
            ended.append(False)
        except nbd.Error:
            ended.append(True)

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(MOST_SECONDS)
    in_time = bool(ended)
    if not in_time:
        # That ends the read, whatever the way to the node does.
        os.kill(host.gateway.daemon.pid(), signal.SIGKILL)
    reader.join()
    if not in_time:
        raise StillWaits(f'{offset} after {MOST_SECONDS} s')
    return ended[0]


def test_a_read_has_its_answer_or_its_guest_is_paused(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    with frozen(node.exporter.common._daemon.pid()):
        read_in_time(host, ELSEWHERE)


def test_a_firewall_forgets_a_connection_that_is_idle(way, far_host):
    """A new one passes, and has the data."""
    way.forget_soon()
    assert read_in_time(far_host, FURTHER) is False
    until(lambda: not way.known(), 'a connection that is forgotten')
    assert read_in_time(far_host, ELSEWHERE) is False


def test_what_is_too_long_for_a_link_goes_without_a_word(way, far_host):
    """No new connection helps there: the guest is paused."""
    assert read_in_time(far_host, FURTHER) is False
    way.narrow()
    assert read_in_time(far_host, ELSEWHERE) is True
