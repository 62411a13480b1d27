"""A compute host's tiers: growing stores that no tier can hold, and Nova's own directories."""

import os
import sys

import pytest
from test_compute_conf import GIB, refused, tiers
from test_compute_conf import conf as conf  # fixtures
from test_compute_conf import tmpfs as tmpfs

from bootcache.exception import ConfigurationError
from nova_bootcache import conf as nova_conf
from nova_bootcache.chains.computehost import ComputeHost


@pytest.mark.parametrize('options, quota, largest', [
    ({'compute_disk_quota': '1GiB', 'store_quota': '1025MiB'}, 1025 << 20, GIB),
    ({'compute_disk_quota': '1MiB'}, 512 << 20, 1 << 20),
    # A memory tier's quota does not matter where there is none.
    ({'compute_disk_quota': '1GiB', 'store_quota': '2GiB', 'compute_memory_quota': '4GiB'},
     2 * GIB, GIB)])
def test_a_store_that_no_tier_can_hold(conf, tmp_path, options, quota, largest):
    message = refused(conf, tmp_path, **options)
    assert message.startswith(f'[bootcache]store_quota is {quota} bytes, more than the {largest} ')
    assert 'lower it, or raise compute_disk_quota' in message


def test_a_store_that_the_memory_tier_cannot_hold_either(conf, tmp_path, tmpfs):
    options = {'compute_memory_directory': tmpfs, 'compute_memory_quota': '2GiB',
               'compute_disk_quota': '1GiB'}
    message = refused(conf, tmp_path, store_quota=str(2 * GIB + 1), **options)
    assert message.startswith(f'[bootcache]store_quota is {2 * GIB + 1} bytes, more than the'
                              f' {2 * GIB} ')
    assert tiers(conf, tmp_path, store_quota='2GiB', **options).store_limit == 2 * GIB


def test_a_store_as_large_as_the_disk_tier(conf, tmp_path):
    assert tiers(conf, tmp_path, compute_disk_quota='1GiB', store_quota='1GiB').store_limit == GIB


@pytest.mark.parametrize('place', ['{tmp}/_base', '{tmp}/./_base/', '{tmp}/link'])
def test_novas_own_directory_of_bases(conf, tmp_path, place):
    base = tmp_path / '_base'
    base.mkdir()
    (tmp_path / 'link').symlink_to('_base')
    place = place.format(tmp=tmp_path)
    with pytest.raises(ConfigurationError, match='have the same names; name another') as caught:
        nova_conf.tiers(conf, place, base_directory=str(base))
    assert str(caught.value).startswith(f'[bootcache]cache_directory={place} is Nova\'s own')
    assert os.listdir(base) == []


def test_novas_own_directory_of_bases_before_nova_has_made_it(conf, tmp_path):
    base = str(tmp_path / '_base')
    with pytest.raises(ConfigurationError, match='Nova\'s own'):
        nova_conf.tiers(conf, base, base_directory=base)
    assert not os.path.exists(base)


def test_a_memory_directory_that_is_not_mounted_is_not_made(conf, tmp_path):
    """Cache images would be on disk, in the place that a tmpfs is to have."""
    message = refused(conf, tmp_path, compute_memory_directory=str(tmp_path / 'memory'))
    assert message == (f'[bootcache]compute_memory_directory={tmp_path}/memory: does not exist;'
                       ' make the directory, and mount a tmpfs there')
    (tmp_path / 'memory').mkdir()
    assert 'mount a tmpfs there' in refused(conf, tmp_path)


def test_a_host_without_libnbd_does_not_start(conf, tmp_path, monkeypatch):
    """Its bases could be read by no way."""
    monkeypatch.setitem(sys.modules, 'nbd', None)
    with pytest.raises(ConfigurationError, match='install python3-libnbd'):
        ComputeHost(conf, str(tmp_path / 'cache'))


def test_the_host_refuses_before_anything_is_started(conf, tmp_path):
    base = str(tmp_path / '_base')
    with pytest.raises(ConfigurationError, match='Nova\'s own'):
        ComputeHost(conf, base, base_directory=base)
    conf.set_override('store_quota', '11GiB', 'bootcache')
    with pytest.raises(ConfigurationError, match='store_quota'):
        ComputeHost(conf, str(tmp_path / 'cache'))
