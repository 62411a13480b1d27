"""Atomic files: a crash at any step leaves the old content or the new, and never a left-over."""

import hashlib
import json
import os
import stat

import pytest

from bootcache import savefile


class Crash(BaseException):
    """The process ends here; nothing catches it as an error."""


@pytest.fixture
def old(tmp_path):
    path = tmp_path / 'state.json'
    path.write_text('{"old": 1}')
    return path


def crash_at(monkeypatch, name, call, error):
    """Let the given call (1 is the first) of an os function fail."""
    real = getattr(os, name)
    calls = []

    def wrapper(*arguments, **named):
        calls.append(name)
        if len(calls) == call:
            raise error
        return real(*arguments, **named)

    monkeypatch.setattr(os, name, wrapper)


def test_it_replaces_the_content(old):
    savefile.write_json(str(old), {'new': [1, 2]})
    assert json.loads(old.read_text()) == {'new': [1, 2]}
    assert [entry.name for entry in old.parent.iterdir()] == ['state.json']
    assert stat.S_IMODE(old.stat().st_mode) == 0o644


@pytest.mark.parametrize('error', [OSError('disk full'), Crash()], ids=['error', 'crash'])
@pytest.mark.parametrize('name, call', [('fsync', 1), ('rename', 1), ('chmod', 1), ('fdopen', 1)])
def test_before_the_rename_the_old_file_stays(old, monkeypatch, name, call, error):
    crash_at(monkeypatch, name, call, error)
    with pytest.raises(type(error)):
        savefile.write_json(str(old), {'new': 1})
    assert old.read_text() == '{"old": 1}'
    assert [entry.name for entry in old.parent.iterdir()] == ['state.json']


@pytest.mark.parametrize('error', [OSError('disk full'), Crash()], ids=['error', 'crash'])
def test_after_the_rename_the_new_file_is_whole(old, monkeypatch, error):
    crash_at(monkeypatch, 'fsync', 2, error)
    with pytest.raises(type(error)):
        savefile.write_json(str(old), {'new': 1})
    assert json.loads(old.read_text()) == {'new': 1}
    assert [entry.name for entry in old.parent.iterdir()] == ['state.json']


def test_what_json_cannot_say_changes_nothing(old):
    with pytest.raises(TypeError):
        savefile.write_json(str(old), {'new': object()})
    assert old.read_text() == '{"old": 1}'
    assert [entry.name for entry in old.parent.iterdir()] == ['state.json']


def test_the_data_is_synced_before_the_rename_and_the_directory_after(old, monkeypatch):
    steps = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd):
        steps.append('directory' if stat.S_ISDIR(os.fstat(fd).st_mode) else 'file')
        real_fsync(fd)

    def rename(source, target):
        steps.append('rename')
        real_rename(source, target)

    monkeypatch.setattr(os, 'fsync', fsync)
    monkeypatch.setattr(os, 'rename', rename)
    savefile.write_json(str(old), {'new': 1})
    assert steps == ['file', 'rename', 'directory']


def test_commit_leaves_both_files_if_the_rename_fails(old, monkeypatch):
    partial = old.with_name('partial')
    partial.write_text('new')
    crash_at(monkeypatch, 'rename', 1, OSError('no'))
    with pytest.raises(OSError):
        savefile.commit(str(partial), str(old))
    assert old.read_text() == '{"old": 1}' and partial.read_text() == 'new'


@pytest.mark.parametrize('algorithm', ['sha256', 'sha512', 'md5'])
def test_digest(tmp_path, algorithm):
    path = tmp_path / 'file'
    content = b'0123456789' * 300000
    path.write_bytes(content)
    assert savefile.file_digest(str(path), algorithm) == hashlib.new(algorithm, content).hexdigest()


def test_digest_of_an_unknown_algorithm(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes(b'')
    with pytest.raises(ValueError):
        savefile.file_digest(str(path), 'crc-of-my-own')


def test_a_document_that_is_not_there_is_none(tmp_path):
    assert savefile.read_json(str(tmp_path / 'none'), 1, lambda document: document) is None


@pytest.mark.parametrize('content', [
    '', '[]', '5', '{}', '{"version": 2, "entries": {}}', '{"version": 1}',
    '{"version": 1, "entries": 5}', '{"version": 1, "entries": {"a": "x"}}', '\x00'])
def test_a_document_that_cannot_be_used(tmp_path, content):
    path = tmp_path / 'state.json'
    path.write_text(content)

    def parse(document):
        return {key: float(value) for key, value in document['entries'].items()}

    with pytest.raises(ValueError):
        savefile.read_json(str(path), 1, parse)
    path.write_text('{"version": 1, "entries": {"a": 5}}')
    assert savefile.read_json(str(path), 1, parse) == {'a': 5.0}
