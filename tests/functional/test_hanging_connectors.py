"""A connector that hangs below a real gateway, as it does while Ceph is away.

QEMU waits for Ceph in the thread that does everything else; here the process is stopped.
test_ceph_hosts.py has a real Ceph.
"""

import os
import threading

from compute_host import boot
from functional_tools import frozen, read_base, until
from storage_node import IMAGE, MIB, content

from bootcache.connectors import connector
from bootcache.workingset import Extent

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)
# Data that no boot has read.
ELSEWHERE = 5 * MIB


def test_boots_and_reads_go_on_past_it(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    connectors = host.connections._connectors
    name = connectors.name_of(node.remote().export)
    daemon = connector.daemon(f'{directory}/gateway/connectors', name)
    read, wanted = [], content(node)
    pid = daemon.pid()
    with frozen(pid):
        reader = threading.Thread(
            target=lambda: read.append(read_base(host, IMAGE, ELSEWHERE, 4096)))
        reader.start()
        assert boot(host, f'{directory}/other') is True
        reader.join()
        assert read == [wanted[ELSEWHERE:ELSEWHERE + 4096]]
        until(lambda: daemon.pid() != pid, 'the end of what hangs')
    assert os.path.exists(f'{directory}/other')
