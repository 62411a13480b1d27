"""Whose a file is that the storage service puts into Glance's directory, by who the service is."""

import os
import stat
import subprocess
import sys

import pytest
from command import TOP

OWNER, GROUP, SERVICE = 4141, 4343, 4242
# Who it is it becomes when all is imported: the packages may be in a directory of root's own.
SCRIPT = '''
import os, sys
from glance_bootcache.filestore import placing
directory, user, *groups = sys.argv[1:]
if user != '0':
    os.setgroups([int(group) for group in groups])
    os.setgid(int(user))
    os.setuid(int(user))
work = placing.work_directory(directory) + '/image'
open(work, 'x').write('content')
placing.hand_over(work, directory)
placing.place(work, directory + '/image')
'''


@pytest.fixture
def store(tmp_path):
    """A directory of glance-api's, within one that everybody may enter."""
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    path = tmp_path / 'store'
    path.mkdir()
    os.chown(path, OWNER, GROUP)
    path.chmod(0o770)
    return path


def put(store, *who):
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', SCRIPT, str(store), *map(str, who)], cwd=TOP,
        check=False, capture_output=True, text=True)


def test_of_root_it_becomes_the_owners(store):
    assert put(store, 0).returncode == 0
    status = (store / 'image').stat()
    assert (status.st_uid, status.st_gid, status.st_nlink) == (OWNER, GROUP, 1)
    assert stat.S_IMODE(status.st_mode) == 0o640


def test_of_a_user_in_the_group_it_becomes_the_groups(store):
    done = put(store, SERVICE, GROUP)
    assert done.returncode == 0, done.stderr
    status = (store / 'image').stat()
    assert (status.st_uid, status.st_gid) == (SERVICE, GROUP)
    assert stat.S_IMODE(status.st_mode) == 0o640


def test_of_anybody_else_it_becomes_nothing(store):
    assert 'PermissionError' in put(store, SERVICE).stderr
    # Who may write there, and cannot give it to Glance.
    store.chmod(0o777)
    assert 'PermissionError' in put(store, SERVICE).stderr
    assert os.listdir(store) == ['.bootcache']
