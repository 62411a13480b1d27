"""What becomes of the cache images in compute memory when its option is unset, or names another."""

import os

import pytest
from test_hostfiles import IMAGE, OTHER, place

from bootcache import naming
from nova_bootcache.cache.cachefiles import CacheFiles


@pytest.fixture
def make(tmp_path):
    """Makes the host's cache with a memory tier in a directory, or without one."""
    def make(memory=None):
        cache = CacheFiles(str(tmp_path / '_bootcache'), memory and str(tmp_path / memory))
        cache.prepare()
        return cache

    return make


def place_in_memory(cache, image, memory):
    place(cache, image)
    name = os.path.basename(cache.path(image))
    os.rename(cache.path(image), memory / name)
    os.symlink(memory / name, cache.path(image))
    assert cache.entry(image) is not None


@pytest.mark.parametrize('now', [None, 'other'])
def test_the_old_directory_is_emptied_of_what_was_ours(make, tmp_path, now):
    cache = make('memory')
    memory = tmp_path / 'memory'
    for image in (IMAGE, OTHER):
        place_in_memory(cache, image, memory)
    (memory / 'of-somebody-else').touch()
    with open(memory / naming.cache_file_name(IMAGE), 'rb') as reader:
        again = make(now)
        # Who has it open reads on.
        assert len(reader.read()) == 512
    assert os.listdir(memory) == ['of-somebody-else']
    # It is fetched again when it is asked for.
    assert again.entry(IMAGE) is None and again.known(IMAGE) is not None
    assert not os.path.lexists(again.path(IMAGE))


def test_the_same_directory_stays_as_it_is(make, tmp_path):
    place_in_memory(make('memory'), IMAGE, tmp_path / 'memory')
    assert make('memory').entry(IMAGE) is not None


def test_a_directory_that_is_gone_is_no_error(make, tmp_path):
    place_in_memory(make('memory'), IMAGE, tmp_path / 'memory')
    os.rename(tmp_path / 'memory', tmp_path / 'moved')
    assert make().entry(IMAGE) is None
    assert os.listdir(tmp_path / 'moved') == [naming.cache_file_name(IMAGE)]


@pytest.mark.parametrize('name, target', [
    (naming.cache_file_name(IMAGE), 'precious'), ('precious', 'precious')])
def test_a_link_that_is_not_ours_loses_no_file(make, tmp_path, name, target):
    cache = make()
    (tmp_path / target).write_text('data')
    os.symlink(tmp_path / target, os.path.join(cache.directory, name))
    make()
    assert (tmp_path / target).read_text() == 'data'
