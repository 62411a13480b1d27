"""A compute host's tiers: what makes no sense is refused at start-up, by the option's name."""

import errno
import os
import tempfile
import types

import pytest
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_config import cfg

from bootcache import tier
from bootcache.exception import ConfigurationError
from bootcache.tier import TierLimits
from nova_bootcache import conf as nova_conf
from nova_bootcache.novadriver import driver

GIB = 1 << 30


@pytest.fixture
def conf():
    """Nova's configuration with the driver's options."""
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    return conf


@pytest.fixture
def tmpfs(tmp_path, monkeypatch):
    """A directory that stands for a tmpfs of 2 GiB on which O_DIRECT works."""
    directory = tmp_path / 'memory'
    directory.mkdir()
    monkeypatch.setattr(tier, 'is_memory', lambda path: path == str(directory))
    monkeypatch.setattr(tier, 'direct_io_works', lambda path: True)
    # As statvfs tells of it: blocks of 4 KiB.
    real = os.statvfs
    monkeypatch.setattr(os, 'statvfs', lambda path: types.SimpleNamespace(
        f_blocks=2 * GIB // 4096, f_frsize=4096) if path == str(directory) else real(path))
    return str(directory)


def tiers(conf, tmp_path, direct_io=True, **options):
    for name, value in options.items():
        conf.set_override(name, value, 'bootcache')
    return nova_conf.tiers(conf, str(tmp_path / 'cache'), direct_io)


def refused(conf, tmp_path, **options):
    with pytest.raises(ConfigurationError) as caught:
        tiers(conf, tmp_path, **options)
    return str(caught.value)


def test_the_defaults_can_be_used(conf, tmp_path):
    found = tiers(conf, tmp_path)
    assert found.disk == TierLimits.from_percent(10 * GIB, 95, 85)
    assert (found.memory_directory, found.memory) == (None, None)
    assert found.store_limit == 512 << 20
    assert (tmp_path / 'cache').is_dir() and os.listdir(tmp_path / 'cache') == []


def test_a_memory_tier(conf, tmp_path, tmpfs):
    found = tiers(conf, tmp_path, compute_memory_directory=tmpfs, compute_memory_quota='2GiB',
                  high_watermark=50, low_watermark=25)
    assert (found.memory_directory, found.memory) == (tmpfs, TierLimits(2 * GIB, GIB, GIB // 2))
    assert found.disk == TierLimits(10 * GIB, 5 * GIB, 5 * GIB // 2)


@pytest.mark.parametrize('option, value, reason', [
    ('compute_disk_quota', 'much', 'is not a size'), ('compute_disk_quota', '', 'is not a size'),
    ('compute_disk_quota', '-1GiB', 'is below'), ('compute_disk_quota', '0', 'is below'),
    ('compute_disk_quota', '1048575', 'is below'),
    ('store_quota', 'much', 'is not a size'), ('store_quota', '0', 'is below'),
    ('store_quota', '1023KiB', 'is below'),
    ('low_watermark', 95, 'is not below high_watermark=95'),
    ('low_watermark', 99, 'is not below high_watermark=95')])
def test_quotas_that_make_no_sense(conf, tmp_path, option, value, reason):
    message = refused(conf, tmp_path, **{option: value})
    assert message.startswith(f'[bootcache]{option}={value}: ') and reason in message


@pytest.mark.parametrize('value', ['much', '0', '1048575', ''])
def test_a_memory_quota_that_makes_no_sense(conf, tmp_path, tmpfs, value):
    message = refused(conf, tmp_path, compute_memory_directory=tmpfs, compute_memory_quota=value)
    assert message.startswith(f'[bootcache]compute_memory_quota={value}: ')


def test_a_memory_quota_does_not_matter_without_its_tier(conf, tmp_path):
    assert tiers(conf, tmp_path, compute_memory_quota='much').memory is None


def test_a_tmpfs_that_is_smaller_than_its_quota(conf, tmp_path, tmpfs):
    message = refused(conf, tmp_path, compute_memory_directory=tmpfs,
                      compute_memory_quota=str(2 * GIB + 1))
    assert message.startswith('[bootcache]compute_memory_quota=') and tmpfs in message


def test_a_memory_directory_that_is_no_tmpfs(conf, tmp_path, tmpfs):
    (tmp_path / 'disk').mkdir()
    message = refused(conf, tmp_path, compute_memory_directory=str(tmp_path / 'disk'))
    assert message.startswith('[bootcache]compute_memory_directory=')
    assert 'does not lie in memory' in message


@pytest.mark.parametrize('path, reason', [
    ('{tmp}/missing', 'does not exist'), ('relative', 'absolute'), ('', 'absolute'),
    ('{tmp}/file', 'not a directory')])
def test_a_memory_directory_that_cannot_be_used(conf, tmp_path, path, reason):
    (tmp_path / 'file').touch()
    path = path.format(tmp=tmp_path)
    message = refused(conf, tmp_path, compute_memory_directory=path)
    assert message.startswith(f'[bootcache]compute_memory_directory={path}: ')
    assert reason in message
    assert not (tmp_path / 'missing').exists()


@pytest.mark.parametrize('path, reason', [
    ('relative', 'absolute'), ('{tmp}/file', 'not a directory'),
    ('{tmp}/file/below', 'cannot be written')])
def test_a_cache_directory_that_cannot_be_used(conf, tmp_path, path, reason):
    (tmp_path / 'file').touch()
    path = path.format(tmp=tmp_path)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        nova_conf.tiers(conf, path)
    assert str(caught.value).startswith(f'[bootcache]cache_directory={path}: ')
    assert not os.path.exists('relative')


@pytest.mark.parametrize('option', ['cache_directory', 'compute_memory_directory'])
def test_a_directory_that_is_read_only(conf, tmp_path, tmpfs, monkeypatch, option):
    # Root, as whom tests may run, can write everywhere but to a file system that is read-only.
    locked = {'cache_directory': str(tmp_path / 'cache'), 'compute_memory_directory': tmpfs}[option]
    real = tempfile.TemporaryFile

    def make(*arguments, dir=None, **named):
        if dir == locked:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(*arguments, dir=dir, **named)

    monkeypatch.setattr(tempfile, 'TemporaryFile', make)
    message = refused(conf, tmp_path, compute_memory_directory=tmpfs)
    assert message.startswith(f'[bootcache]{option}={locked}: ') and 'Read-only' in message


@pytest.mark.parametrize('place', ['cache', 'cache/below', 'link', '.'])
def test_tiers_that_overlap(conf, tmp_path, place):
    (tmp_path / 'cache' / 'below').mkdir(parents=True)
    (tmp_path / 'link').symlink_to('cache')
    message = refused(conf, tmp_path, compute_memory_directory=str(tmp_path / place))
    assert '[bootcache]compute_memory_directory=' in message
    assert f'[bootcache]cache_directory={tmp_path}/cache' in message


# Kernels before 6.6 refuse O_DIRECT on a tmpfs; where tests run there may be no such kernel.

def test_a_memory_tier_without_direct_io_leaves_the_disk_tier(conf, tmp_path, tmpfs, monkeypatch,
                                                              caplog):
    monkeypatch.setattr(tier, 'direct_io_works', lambda path: False)
    found = tiers(conf, tmp_path, compute_memory_directory=tmpfs)
    assert (found.memory_directory, found.memory) == (None, None)
    assert found.disk.quota == 10 * GIB
    warnings = [record.getMessage() for record in caplog.records
                if record.levelname == 'WARNING']
    assert len(warnings) == 1 and 'O_DIRECT' in warnings[0]
    assert f'[bootcache]compute_memory_directory={tmpfs}' in warnings[0]
    assert 'disk_cachemodes' in warnings[0]


def test_direct_io_does_not_matter_to_servers_that_do_not_use_it(conf, tmp_path, tmpfs,
                                                                 monkeypatch, caplog):
    monkeypatch.setattr(tier, 'direct_io_works', lambda path: False)
    found = tiers(conf, tmp_path, direct_io=False, compute_memory_directory=tmpfs)
    assert found.memory_directory == tmpfs
    assert not [record for record in caplog.records if record.levelname == 'WARNING']


# Settling.

@pytest.mark.parametrize('text, bandwidth', [
    ('0', 0), (' 0 ', 0), ('50MiB', 50 << 20), ('65536', 65536), ('1G', GIB)])
def test_a_bandwidth(conf, text, bandwidth):
    conf.set_override('settle_bandwidth', text, 'bootcache')
    assert nova_conf.bandwidth(conf, 'settle_bandwidth') == bandwidth


@pytest.mark.parametrize('text', ['', 'much', '-1', '65535', '1', '50MiB/s'])
def test_a_bandwidth_that_makes_no_sense(conf, text):
    conf.set_override('settle_bandwidth', text, 'bootcache')
    with pytest.raises(ConfigurationError) as caught:
        nova_conf.bandwidth(conf, 'settle_bandwidth')
    assert str(caught.value).startswith(f'[bootcache]settle_bandwidth={text}: ')


def test_the_default_bandwidth(conf):
    assert nova_conf.bandwidth(conf, 'settle_bandwidth') == 50 << 20


def test_the_default_rate_of_warming(conf):
    assert nova_conf.bandwidth(conf, 'warm_bandwidth') == 0


def test_a_rate_of_warming_that_makes_no_sense(conf):
    conf.set_override('warm_bandwidth', 'fast', 'bootcache')
    with pytest.raises(ConfigurationError, match=r'^\[bootcache\]warm_bandwidth=fast: '):
        nova_conf.bandwidth(conf, 'warm_bandwidth')


@pytest.mark.parametrize('line, why', [
    ('enabled = perhaps', 'Unexpected boolean value'), ('cold_wait = long', "'long' is no whole"),
    ('cold_wait = 1.5', "'1.5' is no whole number"), ('cold_wait = -1', 'greater than or equal'),
    ('require_download_policy = x', 'Unexpected boolean'), ('rpc_timeout = 1000', 'less than'),
    ('base_access = ceph', 'Valid values are'), ('gateway_socket = gw.sock', 'absolute path'),
    ('exchange_socket = /' + 107 * 'x', 'at most 107 bytes'), ('gateway_run_dir = gw', 'absolute'),
    ('gateway_run_dir = /' + 59 * 'x', 'at most 59 bytes'),
    ('exchange_address = host', 'is no address'),
    ('transport_url = http://user:secret@bus/', 'begins with http://'),
    ('transport_url = rabbit://user:se$cret@bus:5672/', 'write "$$"'),
    ('transport_url = rabbit://user:secret@bus:port/', 'is no URL')])
def test_the_driver_does_not_start_with_a_value_that_cannot_be(monkeypatch, tmp_path, line, why):
    """Whether it is read then, or not before a server's first boot."""
    path = tmp_path / 'nova.conf'
    path.write_text(f'[DEFAULT]\ninstances_path = {tmp_path}\n[bootcache]\n{line}\n')

    def stock(self, virtapi, read_only):
        self.image_backend, self._host = imagebackend.Backend(True), None

    monkeypatch.setattr(libvirt_driver.LibvirtDriver, '__init__', stock)
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)], project='nova')
    monkeypatch.setattr(driver.CONF, '_namespace', conf._namespace)
    driver.CONF.clear_default('instances_path')  # And what was read before.
    with pytest.raises(ConfigurationError) as caught:
        driver.BootCacheLibvirtDriver(None)
    option, said = line.partition(' ')[0], str(caught.value)
    assert said.startswith(f'[bootcache]{option}') and why in said and ';' in said
    assert 'secret' not in said


def test_a_quota_that_is_set_without_its_directory_is_told(conf, caplog, tmp_path):
    path = tmp_path / 'nova.conf'
    path.write_text('[bootcache]\ncompute_memory_quota = 1GiB\n')
    nova_conf.check(conf)
    assert not caplog.records
    conf(['--config-file', str(path)], project='nova')
    nova_conf.check(conf)
    said, = caplog.records
    assert said.levelname == 'WARNING'
    assert said.message.startswith('[bootcache]compute_memory_quota is set and does nothing')
