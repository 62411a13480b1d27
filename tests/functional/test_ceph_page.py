"""The commands of the pages about Ceph: what keys may, and how bootcache leaves a real one."""

import re
from pathlib import Path

import pytest

from bootcache.ceph import rights
from tools.ceph.cluster import CephError

INSTALL = Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'install.rst'
PAGE = INSTALL.with_name('ceph.rst')
# What the tests' own pool is called, which others use.
NAMES = {'--pool bootcache': '--pool leaving', 'bootcache/storage': 'leaving/storage',
         'rm bootcache bootcache': 'rm leaving leaving', 'client.bootcache': 'client.leaving'}


def test_nothing_is_left_in_ceph(glance_store, ceph_image):
    ceph = glance_store.ceph
    ceph.run('ceph', 'config', 'set', 'mon', 'mon_allow_pool_delete', 'true')
    ceph.run('ceph', 'osd', 'pool', 'create', 'leaving')
    ceph.run('rbd', 'pool', 'init', 'leaving')
    ceph.run('rbd', 'namespace', 'create', 'leaving/storage')
    ceph.run('ceph', 'auth', 'get-or-create', 'client.leaving', 'mon', 'allow r')
    ceph.run('rbd', 'clone', '--rbd-default-clone-format', '2',
             f'images/{ceph_image[1].image_id}@snap', 'leaving/storage/base-1')
    lines = INSTALL.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if '$(rbd ls' in line)
    commands = [line.strip() for line in lines[begin:begin + 4]]
    assert [line.split()[0] for line in commands] == ['for', 'rbd', 'ceph', 'ceph']
    for line in commands:
        for name, ours in NAMES.items():
            line = line.replace(name, ours)
        assert 'bootcache' not in line
        ceph.run('sh', '-ec', line)
    assert 'leaving' not in ceph.run('ceph', 'osd', 'pool', 'ls').split()
    with pytest.raises(CephError, match='ENOENT'):
        ceph.run('ceph', 'auth', 'get', 'client.leaving')


def test_no_key_shuts_others_out_of_ceph(glance_store):
    """By Ceph's own profiles for RBD whoever has a host's key could: Glance, or another host."""
    found = re.findall(r"auth get-or-create client\.(\S+) mon '(.*)' \\\n +osd '(.*)'",
                       PAGE.read_text())
    assert [name for name, _mon, _osd in found] == ['bootcache', 'bootcache.compute-1']
    assert {mon for _name, mon, _osd in found} == {rights.MON_CAPS}
    ceph, entry = glance_store.ceph, '192.0.2.7:0/12345'

    def shuts_out(name, mon, osd):
        ceph.make_user(name, osd, mon)
        keyring = f'{ceph.directory}/ceph.client.{name}.keyring'
        ceph.run('ceph', '--id', name, '--keyring', keyring, 'osd', 'blocklist', 'add', entry, '1')

    for name, mon, osd in found:
        with pytest.raises(CephError, match='EACCES'):
            shuts_out(f'tried-{name}', mon, osd)
    assert entry not in ceph.run('ceph', 'osd', 'blocklist', 'ls')
    for mon in ('profile rbd', 'profile rbd-read-only'):
        shuts_out('tried', mon, found[1][2])
