"""Reads of a storage node that says nothing any more: SIGSTOP stands for whatever keeps it silent.

Its kernel acknowledges what is sent, so that no limit of TCP's ends the connection.
"""

import threading

import nbd
import pytest
from compute_host import boot
from functional_tools import frozen, read_base
from storage_node import IMAGE, MIB

from bootcache.workingset import Extent

# SCSI guests give a request up after 30 s.
MOST_SECONDS = 25
SET = Extent(4 * MIB, 300_000), Extent(0, 4096)
# Data that no boot has read.
ELSEWHERE = 5 * MIB


@pytest.mark.xfail(strict=True, reason='A base is reached through a connector')
def test_a_read_has_its_answer_or_its_guest_is_paused(hosts, node, directory):
    """The gateway's read fails, at which QEMU pauses a guest."""
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    ended = []

    def read():
        try:
            ended.append(read_base(host, IMAGE, ELSEWHERE, 4096))
        except nbd.Error as error:
            ended.append(error)

    with frozen(node.exporter.common._daemon.pid()):
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(MOST_SECONDS)
        in_time = bool(ended)
    reader.join()
    assert in_time
