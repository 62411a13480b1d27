"""A stopped disk that libvirt has given to another user is given back before it is changed."""

import os

import nova.privsep.path
import pytest

from bootcache import exception
from nova_bootcache.novadriver.novaservers import make_writable


@pytest.fixture
def given(monkeypatch):
    """What Nova's privsep helper was asked for; it runs in this process, which may be root."""
    asked = []
    monkeypatch.setattr(nova.privsep.path, 'chown',
                        lambda path, **owner: asked.append((path, owner)))
    return asked


def test_a_disk_that_is_novas_needs_no_helper(given, tmp_path):
    (tmp_path / 'disk').touch()
    make_writable(str(tmp_path / 'disk'))
    assert given == []


def test_one_that_is_not_is_given_to_novas_user(given, monkeypatch, tmp_path):
    path = tmp_path / 'disk'
    path.touch()
    monkeypatch.setattr(os, 'access', lambda path, mode: mode != os.W_OK)
    make_writable(str(path))
    assert given == [(str(path), {'uid': os.getuid()})]


def test_a_helper_that_does_not_work_is_told_of_with_the_disk(monkeypatch, tmp_path):
    def fails(path, uid):
        raise OSError('sudo: a password is required')

    (tmp_path / 'disk').touch()
    monkeypatch.setattr(os, 'access', lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(nova.privsep.path, 'chown', fails)
    with pytest.raises(exception.BootcacheError, match=r'disk belongs to user .* a password is'):
        make_writable(str(tmp_path / 'disk'))
