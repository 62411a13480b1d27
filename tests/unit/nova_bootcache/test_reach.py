"""Whether a storage node answers: what the network and its resolver may do meanwhile."""

import socket
import threading

import pytest

from bootcache import exception
from nova_bootcache import storagenode
from nova_bootcache.storagenode import Remote


def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, 'getaddrinfo', lambda *_arguments: over.wait())
    monkeypatch.setattr(storagenode, '_REACH_SECONDS', 0.05)
    try:
        with pytest.raises(exception.StorageNodeAway, match=r'storage-1:10809.* not resolved'):
            storagenode.check_reachable(Remote('an-id', 'storage-1', 10809, 'base-x'))
    finally:
        over.set()
