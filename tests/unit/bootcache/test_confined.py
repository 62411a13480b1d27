"""What a confined process becomes, and what is told where there is no filter."""

import errno
import os

import pytest

from bootcache import confined, confining

NOBODY = (65534, 65533)


@pytest.mark.parametrize('mode, reader', [
    (0o100644, NOBODY), (0o100640, (65534, 42)), (0o100600, (7, 42)), (0o100604, NOBODY)])
def test_who_may_read_a_file_and_little_else(mode, reader):
    assert confining.readers(mode, 7, 42, NOBODY) == reader


@pytest.mark.parametrize('error', [errno.EPERM, errno.EINVAL])
def test_root_of_a_container_without_nobody_goes_on(monkeypatch, tmp_path, error):
    def refuse(*_arguments):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    monkeypatch.setattr(os, 'setgroups', lambda groups: None)
    for name in ('setresgid', 'setresuid'):
        monkeypatch.setattr(os, name, refuse)
    with open(tmp_path / 'image', 'w') as stream:
        confining._leave_root(stream.fileno())


@pytest.fixture
def anew():
    confined.filter_program.cache_clear()
    yield
    confined.filter_program.cache_clear()


@pytest.mark.parametrize('error', [ImportError('none'), RuntimeError('no libseccomp')])
def test_without_a_library_there_is_no_filter_and_that_is_told_once(anew, monkeypatch, caplog,
                                                                    error):
    def absent():
        raise error

    monkeypatch.setattr(confined, '_binding', absent)
    assert confined.command('/image', 'true')[-3:] == ['', '/image', 'true']
    assert confined.filter_program() == b''
    assert [record.message for record in caplog.records
            if 'without a filter of system calls' in record.message and 'pyseccomp'
            in record.message] == [caplog.records[0].message]


def test_the_filter_is_whole_instructions(anew):
    made = confined.filter_program()
    assert made and not len(made) % 8
