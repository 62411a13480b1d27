"""The key of a host that reads bases in Ceph, looked at before its first use; and which is its way.

In the place of Ceph's commands are scripts, which say what those say; functional/test_ceph_hosts.py
has a real Ceph.
"""

import dataclasses
import os

import pytest

from bootcache.ceph import rbd
from bootcache.ceph.places import RbdOrigin
from bootcache.ceph.rights import RbdAccess
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ORIGIN = RbdOrigin('f', 'images', IMAGE, 'snap', '1a', '4')
REMOTE = Remote(IMAGE, '10.0.0.1', 10810, 'base-x', rbd=ORIGIN)
NO_KEYRING = '2026-11-24T00:00:00.000+0000 7f auth: unable to find a keyring on /etc/ceph/x'
NO_USER = "2026-11-24T00:00:00.000+0000 7f monclient: authenticate NOTE: no keyring\n" \
    "couldn't connect to cluster: Operation not permitted"


class Commands:
    """Ceph's, as a directory of scripts that all do the same, and note that they were called."""

    def __init__(self, directory):
        self._directory, self._log = directory, directory / 'called'

    def do(self, what):
        """Have them do that from now on."""
        for name in ('rbd', 'rados', 'ceph'):
            script = self._directory / name
            script.write_text(f'#!/bin/sh\necho "$0 $*" >> {self._log}\n{what}\n')
            script.chmod(0o755)

    def fail(self, said):
        """Have them fail, and say something."""
        (self._directory / 'said').write_text(said + '\n')
        self.do(f'cat {self._directory}/said >&2; exit 1')

    def called(self):
        """Return what was called."""
        return self._log.read_text() if self._log.exists() else ''


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    return Commands(tmp_path)


@pytest.fixture
def clones(tmp_path, monkeypatch):
    monkeypatch.setattr(rbd, '_PAUSE_SECONDS', 0)
    return HostClones(RbdAccess('images', 'bootcache', 'host-1', 'host-1', str(tmp_path / 'conf'),
                                'base_access=rbd', 'base_rbd_user', 'base_rbd_ceph_conf', ''),
                      True)


@pytest.mark.parametrize('said', [NO_KEYRING, NO_USER])
def test_a_key_that_comes_later_is_looked_at(commands, clones, caplog, said):
    commands.fail(said)
    assert clones.way(REMOTE) is None
    # Whoever may delete what is not there is not told of it.
    commands.do('[ $(basename $0) = ceph ] && echo f; exit 0')
    assert clones.way(REMOTE) is None
    assert 'can delete what is in pool images' in caplog.text
    assert f'{commands._directory}/rbd' not in commands.called()


@pytest.mark.parametrize('said', ['', 'warning', '[]', '{}', '{"size": "x"}'])
def test_a_command_that_tells_nothing_of_use(commands, clones, caplog, said):
    clones._is_harmless = True
    commands.do(f"[ $(basename $0) = ceph ] && echo f || echo '{said}'; exit 0")
    assert clones.way(REMOTE) is None
    assert 'its base is read through the exporter, and not in Ceph: ' in caplog.text


def test_who_has_no_time_for_ceph_asks_nothing_of_it(commands, clones):
    """Of a clone that was there: whether it is still, opening it tells."""
    commands.fail('away')
    way = clones.way(REMOTE, makes=False)
    assert way.node['driver'] == 'rbd' and way.node['image'] == clones.clone(REMOTE, ORIGIN).name
    assert way.origin == clones.origin and commands.called() == ''


def test_a_clone_that_does_not_get_its_name_does_not_stay(commands, clones, caplog):
    """Another may have been made meanwhile, or the key not let it be renamed."""
    clones._is_harmless = True
    name = clones.clone(REMOTE, ORIGIN).name
    parent = '{"pool": "images", "id": "1a", "snapshot": "snap"}'
    commands.do(f'''case "$0 $* " in
*/ceph*) echo f ;;
*" info "*" {name} "*) echo "No such file or directory" >&2; exit 2 ;;
*" info "*) echo '{{"size": 1, "parent": {parent}}}' ;;
*" snap ls "*) echo '[{{"id": 4, "name": "snap"}}]' ;;
*" rename "*) echo "rbd: rename error: (17) File exists" >&2; exit 17 ;;
esac''')
    assert clones.way(REMOTE) is None and 'File exists' in caplog.text
    called = [line.split() for line in commands.called().splitlines()]
    made, removed = ([words for words in called if word in words] for word in ('clone', 'rm'))
    assert len(made) == len(removed) == 1
    assert made[0][-1].startswith(f'{name}.') and removed[0][-1] == made[0][-1]


@pytest.mark.parametrize('makes', [True, False])
def test_where_it_is_off_or_nobody_told_of_it_there_is_no_way(commands, clones, makes, caplog):
    assert clones.way(dataclasses.replace(REMOTE, rbd=None), makes) is None
    assert 'the storage service does not tell where in Ceph it is' in caplog.text
    clones.is_on = False
    assert clones.way(REMOTE, makes) is None and commands.called() == ''
