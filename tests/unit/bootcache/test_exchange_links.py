"""Open files by paths that libtorrent can open them by."""

import os

import pytest

from bootcache.exchange.links import Links, is_in_the_way


@pytest.fixture
def file(tmp_path):
    path = tmp_path / 'file'
    path.write_text('content')
    return path


def make(links, path):
    with open(path, 'r+') as stream:
        return links.make(stream.fileno())


def test_a_file_is_reached_whatever_becomes_of_its_name(tmp_path, file):
    link = make(Links(str(tmp_path / 'links')), file)
    os.rename(file, tmp_path / 'other')
    os.unlink(tmp_path / 'other')
    with open(link.path, 'r+') as stream:
        assert stream.read() == 'content'
    link.close()
    assert not os.path.exists(link.path)
    with pytest.raises(OSError):
        os.fstat(link.descriptor)


def test_a_name_is_not_used_again(tmp_path, file):
    links = Links(str(tmp_path / 'links'))
    first = make(links, file)
    first.close()
    second = make(links, file)
    # The descriptor's number may be the same: who opens the first one now must not get this file.
    assert second.path != first.path
    second.close()


def test_what_a_process_left_is_removed(tmp_path, file):
    make(Links(str(tmp_path / 'links')), file)
    Links(str(tmp_path / 'links'))
    assert not os.listdir(tmp_path / 'links') and file.read_text() == 'content'


def test_where_somebody_removed_the_link_no_descriptor_is_left(tmp_path, file):
    link = make(Links(str(tmp_path / 'links')), file)
    os.unlink(link.path)
    link.close()
    with pytest.raises(OSError):
        os.fstat(link.descriptor)


def test_where_no_link_can_be_made_no_descriptor_is_left(tmp_path, file):
    links = Links(str(tmp_path / 'links'))
    os.rmdir(tmp_path / 'links')
    before = len(os.listdir('/proc/self/fd'))
    with pytest.raises(FileNotFoundError):
        make(links, file)
    assert len(os.listdir('/proc/self/fd')) == before


@pytest.mark.parametrize('is_named, free, found', [
    (True, 0, False), (False, 99, True), (False, 100, False), (False, 1000, False)])
def test_only_what_lost_its_name_is_in_the_way_where_there_is_little_space(is_named, free, found):
    assert is_in_the_way(is_named, free, 1000) is found
