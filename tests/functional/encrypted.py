"""What the tests of TLS share: a storage node with certificates, and who reads of it."""

import contextlib
import json

import nbd
import pytest
from functional_tools import until
from storage_node import IMAGE, MIB, SIZE

from bootcache import exception, qemuimg, tls
from nova_bootcache.storagenode import nbd_node


@pytest.fixture
def storage_conf(storage_conf, ca):
    """With certificates; node and hosts are made with it."""
    storage_conf.set_override('tls_directory', ca.issue('storage-1', ['127.0.0.1']), 'bootcache')
    return storage_conf


def read(handle, size=SIZE):
    return b''.join(handle.pread(min(MIB, size - offset), offset)
                    for offset in range(0, size, MIB))


def through_gateway(host, export):
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_unix(host.gateway.socket_path)
    return handle


def look(node):
    """Open a block node as qemu-img does."""
    qemuimg._run('info', *qemuimg._objects(node), 'json:' + json.dumps(
        {'driver': 'raw', 'read-only': True, 'file': node}), timeout=30)


def check_opens(node):
    """Open a block node, or raise why it is refused.

    That qemu-img was not done in its time, as on a busy machine, is no refusal.
    """
    def is_answered():
        with contextlib.suppress(exception.Interrupted):
            look(node)
            return True

    until(is_answered, 'an answer')


def opens(node, directory):
    """Open the base as a host with a directory of certificates does."""
    check_opens(nbd_node(
        '127.0.0.1', node.conf.export_port, f'base-{IMAGE}',
        tls.credentials_id(directory, tls.Endpoint.CLIENT)))
