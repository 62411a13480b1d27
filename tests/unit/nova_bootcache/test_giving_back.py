"""Growing stores that have stopped give back the space that they were to grow into.

The gateway is a stand-in; tests/functional/test_full_medium.py has a real one.
"""

import os

import pytest
from fakes_letting_go import IMAGE, MIB, OTHER, place
from fakes_letting_go import host as host  # the fixture

from bootcache import exception, growingstore
from bootcache.tier import Medium
from nova_bootcache.gateway import graph, sharedstore
from nova_bootcache.gateway.graph import Present
from nova_bootcache.gateway.sharedstore import SharedStore

STOPPED = frozenset((graph.TOP, graph.REMOTE, *graph.GROWING)) - {graph.FILTER}


def on_disk(path):
    return os.stat(path).st_blocks * 512


def make_store(path, ahead=8 * MIB):
    """A store's file, with space beyond its end."""
    with open(path, 'wb') as stream:
        stream.write(b'x' * MIB)
    assert sharedstore.hold(path, ahead) is True
    os.utime(path, (7, 9))
    return path


@pytest.fixture
def kinds(host, monkeypatch):
    """The nodes that the gateway has of images: stores that were stopped, of both."""
    kinds = {IMAGE: STOPPED, OTHER: STOPPED}
    monkeypatch.setattr(host.gateway, 'present', lambda images: {
        image: Present(kinds[image], True) for image in images if image in kinds})
    return kinds


@pytest.fixture
def space(host):
    """What gives it back, as upkeep does."""
    return host.below


@pytest.fixture
def written(monkeypatch):
    """The stores whose tables were written, with their space at that time."""
    written = []
    monkeypatch.setattr(growingstore.GrowingStore, 'write_tables',
                        lambda store: written.append((store.name, on_disk(store.path))))
    return written


@pytest.fixture
def paths(host):
    """The stores' files of two images."""
    for image in (IMAGE, OTHER):
        place(host, image)
    return [make_store(host.cache.store_path(image, Medium.DISK)) for image in (IMAGE, OTHER)]


def test_a_file_keeps_its_content_and_its_time(tmp_path):
    path = make_store(str(tmp_path / 'store'))
    assert sharedstore.has_ahead(path) and on_disk(path) == 8 * MIB
    sharedstore.give_back(path)
    assert not sharedstore.has_ahead(path) and on_disk(path) == MIB
    with open(path, 'rb') as stream:
        assert stream.read() == b'x' * MIB
    assert os.stat(path).st_mtime == 9, 'it is by that when it was used'
    assert not sharedstore.has_ahead(str(tmp_path / 'none'))


def test_it_is_given_back_when_the_tables_are_written(host, space, kinds, written, paths):
    """Those of an earlier process, too, as these are."""
    space.give_back_space()
    assert sorted(written) == sorted([(IMAGE, 8 * MIB), (OTHER, 8 * MIB)])
    assert [on_disk(path) for path in paths] == [MIB, MIB]
    space.give_back_space()
    assert len(written) == 2, 'nothing is to be done any more'


@pytest.mark.parametrize('what', ['grows here', 'grows there', 'is none'])
def test_what_may_be_written_to_keeps_it(host, space, kinds, written, paths, what):
    if what == 'grows here':
        store = SharedStore(host.gateway, IMAGE, MIB, paths[0], 64 * MIB)
        store.grows = True
        host.below.stores._stores[IMAGE] = store
    else:
        kinds[IMAGE] = STOPPED | {graph.FILTER} if what == 'grows there' else frozenset()
    space.give_back_space()
    assert [on_disk(path) for path in paths] == [8 * MIB, MIB]
    if what == 'grows here':
        # At once, whatever was looked at before.
        store.grows = False
        space.give_back_space()
        assert on_disk(paths[0]) == MIB
    host.below.stores._stores.clear()


def test_files_are_looked_for_once_and_then_those_of_stores_only(host, space, kinds, written, paths,
                                                                 monkeypatch):
    """A host has many cache images, and few stores."""
    looked, has_ahead = [], sharedstore.has_ahead
    monkeypatch.setattr(sharedstore, 'has_ahead',
                        lambda path: looked.append(path) or has_ahead(path))
    space.give_back_space()
    assert set(looked) >= set(paths) and len(written) == 2
    space.give_back_space()
    looked.clear()
    space.give_back_space()
    assert looked == []
    # One of this process's that has stopped.
    store = SharedStore(host.gateway, IMAGE, MIB, make_store(paths[0]), 64 * MIB)
    host.below.stores._stores[IMAGE] = store
    space.give_back_space()
    assert on_disk(paths[0]) == MIB and set(looked) == {paths[0]}
    host.below.stores._stores.clear()


def test_one_that_is_refused_keeps_no_other_from_it(host, space, kinds, paths, monkeypatch, caplog):
    caplog.set_level('INFO')

    def write(store):
        if store.name == OTHER:
            raise exception.StorageDaemonError('refused')

    monkeypatch.setattr(growingstore.GrowingStore, 'write_tables', write)
    space.give_back_space()
    assert [on_disk(path) for path in paths] == [MIB, 8 * MIB]
    space.give_back_space()
    assert caplog.text.count(f'image {OTHER}: its growing store keeps space') == 1
