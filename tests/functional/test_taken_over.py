"""What a guest that took over its QEMU gets of the host's gateway, and does not get.

The page of security says both: what it can do is tried as well."""

import nbd
import pytest
from compute_host import boot
from storage_node import IMAGE, MIB, content

from bootcache import naming
from bootcache.workingset import Extent


@pytest.fixture
def served(hosts, node, directory):
    """A warm host with a server that boots; gives what it would connect to."""
    node.build(Extent(0, MIB))
    host = hosts()
    assert boot(host, f'{directory}/disk')
    return host


def connected(host, export):
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_unix(host.gateway.socket_path)
    return handle


def refuses_to_be_changed(handle):
    assert handle.is_read_only()
    # Without the client's own look at that.
    handle.set_strict_mode(0)
    for change in (lambda: handle.pwrite(b'x' * 512, 0), lambda: handle.trim(512, 0),
                   lambda: handle.zero(512, 0)):
        with pytest.raises(nbd.Error):
            change()


def test_it_reads_the_bases_that_the_gateway_serves_and_changes_none(served, node):
    export = naming.export_name(naming.EXPORT_BASE, IMAGE)
    handle = connected(served, export)
    assert bytes(handle.pread(MIB, 0)) == content(node)[:MIB]
    refuses_to_be_changed(handle)
    assert content(node)[:512] == bytes(connected(served, export).pread(512, 0))


def test_it_reads_nothing_that_the_gateway_does_not_serve(served):
    for export in ('', 'base-' + IMAGE[::-1], '/etc/passwd', '../' + IMAGE):
        with pytest.raises(nbd.Error):
            connected(served, export)
