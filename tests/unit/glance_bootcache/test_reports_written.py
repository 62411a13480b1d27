"""Reports of servers' boots while the storage service's disk is full."""

import os

import pytest
from test_reports import IMAGE, ask, report
from test_reports import cold as cold  # the fixture

from bootcache import savefile


def test_a_report_that_cannot_be_written_is_taken_when_it_comes_again(cold, monkeypatch):
    """Its host sends it again: the disk was full."""
    def refuse(path, document):
        raise OSError(28, 'No space left on device')

    ask(cold)
    with monkeypatch.context() as patch:
        patch.setattr(savefile, 'write_json', refuse)
        for _again in range(2):
            with pytest.raises(OSError, match='No space left'):
                report(cold, [[0, 65536]])
    assert report(cold, [[0, 65536]]) == 1
    assert report(cold, [[0, 65536], [131072, 65536]]) == 1, 'it counts once'


def test_a_report_that_is_sent_again_leaves_no_file_of_each_time(cold, monkeypatch):
    write = savefile.write_json

    def refuse(path, document):
        if path.endswith('manifest.json'):
            raise OSError(28, 'No space left on device')
        write(path, document)

    ask(cold)
    with monkeypatch.context() as patch:
        patch.setattr(savefile, 'write_json', refuse)
        for _again in range(2):
            with pytest.raises(OSError, match='No space left'):
                report(cold, [[0, 65536]])
    assert not [name for name in os.listdir(cold.store.directory(IMAGE)) if 'working' in name]
