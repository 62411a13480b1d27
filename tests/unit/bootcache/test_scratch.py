"""Directories of one piece of work: those of processes that are gone are removed, and no others."""

import os
import subprocess
import sys
import tempfile

import pytest

from bootcache import scratch

PREFIX = scratch.PREFIX
KILLED = '''
import os
from bootcache import scratch
with scratch.directory() as path:
    open(os.path.join(path, 'file'), 'w').close()
    os.kill(os.getpid(), 9)
'''


@pytest.fixture(autouse=True)
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    return tmp_path


def test_a_directory_goes_with_its_block(parent):
    with scratch.directory() as path:
        assert os.listdir(parent) == [os.path.basename(path)]
    assert os.listdir(parent) == []


def test_that_of_a_process_that_was_killed_is_removed(parent):
    subprocess.run([sys.executable, '-c', KILLED], check=False,
                   env={**os.environ, 'TMPDIR': str(parent)})
    assert len(os.listdir(parent)) == 1
    scratch.end_left_over()
    assert os.listdir(parent) == []


def test_one_in_which_somebody_works_stays(parent):
    with scratch.directory() as path:
        scratch.end_left_over()
        assert os.path.isdir(path)


def test_what_is_not_a_directory_of_ours_stays(parent, monkeypatch):
    (parent / f'{PREFIX}file').touch()
    (parent / 'other').mkdir()
    (parent / f'{PREFIX}link').symlink_to(parent / 'other')
    (parent / f'{PREFIX}theirs').mkdir()
    (parent / f'{PREFIX}mine').mkdir()
    scratch.end_left_over()
    there = {f'{PREFIX}file', 'other', f'{PREFIX}link'}
    assert set(os.listdir(parent)) == there
    (parent / f'{PREFIX}theirs').mkdir()
    monkeypatch.setattr(os, 'geteuid', lambda: 12345)
    scratch.end_left_over()
    assert set(os.listdir(parent)) == {*there, f'{PREFIX}theirs'}
