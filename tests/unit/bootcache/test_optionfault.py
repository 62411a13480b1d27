"""What is said of a value that an option cannot have: which, where, and the cure."""

import pytest
from oslo_config import cfg

from bootcache import optionfault
from glance_bootcache import conf as glance_conf


@pytest.fixture
def fault(tmp_path):
    """Reads a line of a configuration file, and returns what oslo.config raises and the file."""
    def read(line):
        path = tmp_path / 'bootcache.conf'
        path.write_text(f'[bootcache]\n{line}\n')
        conf = cfg.ConfigOpts()
        glance_conf.register_opts(conf)
        with pytest.raises(ValueError) as caught:
            conf(['--config-file', str(path)], project='bootcache')
            for name in conf.bootcache:
                conf.bootcache[name]
        return optionfault.told(caught.value, conf), path
    return read


@pytest.mark.parametrize('line, why', [
    ('export_port = hello', 'export_port in {}: \'hello\' is no whole number'),
    ('poll_interval = -3', 'poll_interval in {}: Should be greater than or equal to 1'),
    ('compression = lzma', 'compression in {}: Valid values are [zstd, none], but found \'lzma\''),
    ('allow_plain_nbd = maybe', 'allow_plain_nbd in {}: Unexpected boolean value \'maybe\'')])
def test_an_option_is_named_with_its_file_and_the_cure(fault, line, why):
    said, path = fault(line)
    assert said == f'[bootcache]{why.format(path)}; correct it, or take it out for its default'


def test_all_else_is_told_as_it_is():
    conf = cfg.ConfigOpts()
    for error in (ValueError('no'), OSError('Value for option a is not valid: b'),
                  cfg.Error('other')):
        assert optionfault.told(error, conf) == str(error)
    assert optionfault.told(cfg.ConfigFileValueError('Value for option a is not valid: b'), conf) \
        == 'option a: b; correct it, or take it out for its default'
