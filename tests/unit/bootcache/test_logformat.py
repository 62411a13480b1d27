"""What processes of ours write into their logs, as oslo.log has it."""

import subprocess
import sys

SAYS = '''
from oslo_config import cfg
from oslo_log import log
from bootcache import exception, logformat
conf = cfg.ConfigOpts()
log.register_options(conf)
conf([], default_config_files=[], default_config_dirs=[])
conf.set_override('use_stderr', True)
logformat.setup(conf, 'bootcache')
LOG = log.getLogger('bootcache')
try:
    raise exception.StorageDaemonError('exporter: no answer within 100% of 10 s')
except exception.BootcacheError as error:
    LOG.warning('it is tried again: %s', error)
    LOG.warning('it is tried again')
    LOG.warning('with all of it: %s', error, exc_info=True)
'''


def test_an_error_is_said_once():
    said = subprocess.run([sys.executable, '-W', 'ignore', '-c', SAYS], check=True,
                          capture_output=True, text=True).stderr
    # Earlier releases of oslo.log end the colour of lines that have none.
    said = said.replace('\x1b[00m', '').splitlines()
    assert said[0].endswith('] it is tried again: exporter: no answer within 100% of 10 s')
    # Where the line does not say it, it is said which one it was.
    assert said[1].endswith('StorageDaemonError: exporter: no answer within 100% of 10 s')
    assert 'Traceback' in '\n'.join(said[2:])
