"""The storage side's options: a wrong value is named before the service starts."""

import pytest

from bootcache import conf as bootcache_conf
from glance_bootcache import conf as glance_conf


def test_the_defaults_are_right(storage_conf):
    glance_conf.check(storage_conf)


@pytest.mark.parametrize('values, named', [
    ({'default_quota': 'much'}, ['default_quota', 'much']),
    ({'max_quota': 'much'}, ['max_quota', 'much']),
    ({'max_virtual_size': '0'}, ['max_virtual_size=0', 'raise it']),
    ({'storage_disk_quota': '1GiB'}, ['storage_disk_quota=1GiB', 'max_quota=2GiB']),
    ({'default_quota': ''}, ['default_quota']),
    ({'default_quota': '1023KiB'}, ['default_quota', '1048576']),
    ({'default_quota': '3GiB'}, ['default_quota', 'max_quota', '3GiB', '2GiB']),
    ({'max_quota': '1MiB'}, ['default_quota', 'max_quota']),
    ({'default_quota': '10XB'}, ['default_quota=10XB: is not a size', '4GiB']),
    ({'boot_marker': '('}, ['boot_marker', '(', '; give a regular expression']),
    ({'gateway_socket': 'gw.sock'}, ['gateway_socket=gw.sock', 'absolute']),
    ({'exchange_address': '192.0.2.1', 'exchange_networks': ['foo']}, ['exchange_networks', 'foo']),
    ({'boot_marker': ''}, ['boot_marker'])])
def test_a_wrong_value_names_its_option(storage_conf, values, named):
    for name, value in values.items():
        storage_conf.set_override(name, value, bootcache_conf.GROUP)
    with pytest.raises(ValueError) as caught:
        glance_conf.check(storage_conf)
    for word in named:
        assert word in str(caught.value)
    assert '[bootcache]' in str(caught.value)


@pytest.mark.parametrize('pool, most', [('', 88), ('bootcache', 59)])
def test_a_run_dir_that_is_too_long_for_its_sockets(storage_conf, pool, most):
    storage_conf.set_override('rbd_store_pool', pool, bootcache_conf.GROUP)
    storage_conf.set_override('run_dir', '/' + (most - 1) * 'x', bootcache_conf.GROUP)
    glance_conf.check_run_dir(storage_conf)
    storage_conf.set_override('run_dir', '/' + most * 'x', bootcache_conf.GROUP)
    with pytest.raises(ValueError, match=rf'\[bootcache\]run_dir=.* at most {most} bytes'):
        glance_conf.check_run_dir(storage_conf)


def test_every_option_has_help_and_comes_once():
    from nova_bootcache import conf as nova_conf
    storage = {option.name for group, options in glance_conf.list_opts() for option in options
               if group == bootcache_conf.GROUP}
    compute = {option.name for _group, options in nova_conf.list_opts() for option in options}
    shared = {option.name for _group, options in bootcache_conf.list_opts() for option in options}
    assert not storage & compute and not storage & shared and not compute & shared
    for options in (*glance_conf.list_opts()[:1], *nova_conf.list_opts(),
                    *bootcache_conf.list_opts()):
        for option in options[1]:
            assert option.help and option.help.strip(), option.name


@pytest.mark.parametrize('text, names', [
    ('', []), ('none', []), ('racks', ['racks']), ('racks, edge,racks', ['racks', 'edge']),
    ('nonesuch', ['nonesuch'])])
def test_aggregates_that_are_warmed_at_registration(storage_conf, tmp_path, text, names):
    (tmp_path / 'bootcache.conf').write_text(f'[bootcache]\nwarm_on_register = {text}\n')
    storage_conf([], project='bootcache', default_config_files=[str(tmp_path / 'bootcache.conf')])
    assert glance_conf.aggregates(storage_conf) == names
    glance_conf.check(storage_conf)


@pytest.mark.parametrize('names', [['none', 'racks'], ['racks', 'none'], ['racks', ''],
                                   ['x' * 256]])
def test_aggregates_that_cannot_be(storage_conf, names):
    storage_conf.set_override('warm_on_register', names, bootcache_conf.GROUP)
    with pytest.raises(ValueError, match=r'\[bootcache\]warm_on_register'):
        glance_conf.check(storage_conf)


@pytest.mark.parametrize('name, value', [
    ('warm_concurrency', 0), ('warm_concurrency', 65), ('warm_timeout', 0), ('warm_attempts', 0),
    ('warm_attempts', 101)])
def test_bounds_of_warming(storage_conf, name, value):
    with pytest.raises(ValueError, match='Should be'):
        storage_conf.set_override(name, value, bootcache_conf.GROUP)
