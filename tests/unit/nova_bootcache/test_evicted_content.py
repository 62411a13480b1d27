"""A cache image that is evicted is not forgotten: disks of stopped servers stand on its content.

The gateway is a stand-in, as in test_letting_go.py.
"""

import dataclasses
import os
import threading
import time

import pytest
from fakes_letting_go import IMAGE, MIB, OTHER, evict, place
from fakes_letting_go import host as host  # the fixture

from bootcache import exception
from nova_bootcache.published.holdings import PublishedHoldings
from nova_bootcache.settling import settler
from nova_bootcache.upkeep import HostUpkeep

OLD, NEW = 'sha512:11', 'sha512:22'


class Service:
    """The storage service, which has an image of some content, at some place."""

    def __init__(self, image_hash):
        self.image_hash = image_hash

    def send(self, message):
        return {'action': 'cold', 'virtual_bytes': MIB, 'server': ['10.0.0.1', 10810],
                'base_export': f'base-{message.image_id}-{self.image_hash[-2:]}',
                'image_hash': self.image_hash}


@pytest.fixture
def evicted(host, monkeypatch):
    """A host whose cache image of an image of the old content was evicted."""
    place(host)
    entry = host.cache.known(IMAGE)
    dataclasses.replace(entry, remote=dataclasses.replace(entry.remote, image_hash=OLD)).save(
        f'{host.cache.path(IMAGE)}.json')
    os.utime(f'{host.cache.path(IMAGE)}.json', (1, 1))
    host.served = []
    monkeypatch.setattr(host.gateway, 'ensure_base', host.served.append)
    assert evict(host) == set() and not os.path.exists(host.cache.path(IMAGE))
    return host


def test_a_server_does_not_start_on_another_content_than_its_disk_was_written_on(evicted):
    evicted.storage._client = Service(NEW)
    with pytest.raises(exception.BootcacheError, match=f'another content now .*{NEW}.*{OLD}'):
        evicted.chains.keep_chain(IMAGE)
    assert evicted.served == [] and not os.path.exists(evicted.cache.path(IMAGE))


def test_it_starts_when_the_image_has_its_content_again(evicted):
    evicted.storage._client = Service(OLD)
    evicted.chains.keep_chain(IMAGE)
    (served,) = evicted.served
    assert served.image_hash == OLD and os.path.exists(evicted.cache.path(IMAGE))


def upkeep(host):
    return HostUpkeep(host, PublishedHoldings(host, host.cache.directory))


def test_it_is_forgotten_once_no_server_s_disk_stands_on_it(evicted):
    evicted.needs.note_unsettled([IMAGE])
    upkeep(evicted).forget_gone()
    assert evicted.cache.known(IMAGE).remote.image_hash == OLD
    evicted.needs.note_unsettled([])
    upkeep(evicted).forget_gone()
    assert evicted.cache.known(IMAGE) is None


def test_what_was_used_before_the_clock_was_set_back_grows_old(host):
    """An hour, as where a host's clock is put right."""
    host.needs.note_unsettled([])
    place(host)
    host.cache.remove_file(IMAGE)
    to_come = time.time() + 3600
    os.utime(f'{host.cache.path(IMAGE)}.json', (to_come, to_come))
    upkeep(host).forget_gone()
    assert 0 <= host.cache.age(IMAGE) < 3600 and host.cache.known(IMAGE) is not None


def test_what_is_here_or_was_used_of_late_is_not_forgotten(host):
    host.needs.note_unsettled([])
    place(host)
    place(host, OTHER)
    host.cache.remove_file(OTHER)
    host.cache.touch(OTHER)
    upkeep(host).forget_gone()
    assert {entry.remote.image_id for entry in host.cache.entries()} == {IMAGE, OTHER}
    assert host.cache.gone(0) == [OTHER] and host.cache.gone(settler.LONGEST_SECONDS) == []


def test_what_was_evicted_empty_is_not_replaced_by_a_whole_one(evicted):
    evicted.storage._client = Service(OLD)
    asked = []
    evicted.storage.ask = lambda *arguments: asked.append(arguments)
    upkeep(evicted).replace_empty()
    assert asked == []


def test_what_was_warmed_while_it_was_looked_for_is_not_forgotten(evicted, monkeypatch):
    """Its file comes between the look and the removal."""
    evicted.needs.note_unsettled([])
    gone = evicted.cache.gone

    def look(unused_seconds):
        found = gone(unused_seconds)
        place(evicted)
        return found

    monkeypatch.setattr(evicted.cache, 'gone', look)
    upkeep(evicted).forget_gone()
    assert evicted.cache.known(IMAGE) is not None and os.path.exists(evicted.cache.path(IMAGE))


def test_what_is_just_being_fetched_is_not_forgotten(evicted):
    evicted.needs.note_unsettled([])
    begun, over = threading.Event(), threading.Event()

    def fetch():
        with evicted.cache.placing(IMAGE):
            begun.set()
            over.wait(60)

    fetching = threading.Thread(target=fetch)
    fetching.start()
    assert begun.wait(60)
    upkeep(evicted).forget_gone()
    assert evicted.cache.known(IMAGE) is not None
    over.set()
    fetching.join()
    upkeep(evicted).forget_gone()
    assert evicted.cache.known(IMAGE) is None
