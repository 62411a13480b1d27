"""A gateway without the rest of a compute host."""

import os

from bootcache.ceph.rights import RbdAccess
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.starter import Starter
from nova_bootcache.gateway.connections import BaseConnections
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.storagenode import PLAIN


def bare_gateway(directory, socket_path):
    """Return a gateway that reads from exporters, without TLS; kill its connectors after it.

    :param directory: of its files, and of the connectors'; made.
    """
    os.makedirs(directory, exist_ok=True)
    clones = HostClones(RbdAccess('', '', '', '', '', '', '', '', ''), is_on=False)
    starter = Starter(directory)
    starter.listen()
    return Gateway(directory, socket_path,
                   BaseConnections(Connectors(directory, starter.do), PLAIN, clones))
