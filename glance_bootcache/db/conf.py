"""The options of the database: oslo.db's, as far as they are used here."""

import copy
import pathlib

from oslo_config import cfg
from oslo_db import options

from bootcache import conf as shared

GROUP = 'database'
FILE = 'bootcache.sqlite'
# What ``Database`` passes on to oslo.db.
ENGINE = ('mysql_sql_mode', 'mysql_wsrep_sync_wait', 'connection_recycle_time', 'max_pool_size',
          'max_overflow', 'pool_timeout', 'connection_parameters')
_CONNECTION = f"""
The storage service's database, as SQLAlchemy has it: the same one of all
storage nodes of a cloud, and of no other cloud's.

Possible values:

* Nothing: SQLite in the file {FILE} of ``state_dir``, which the
  service makes and upgrades itself. It is for one storage node, and has to be
  on a disk of this machine.
* mysql+pymysql://USER:PASSWORD@HOST/DATABASE?charset=utf8mb4, or
  postgresql+psycopg2://USER:PASSWORD@HOST/DATABASE. Its tables are made and
  upgraded by ``bootcache-manage db sync``.
"""


def opts() -> list[cfg.Opt]:
    """Return the options, with what is the default here."""
    found = [copy.deepcopy(opt) for opt in options.database_opts
             if opt.dest in ('connection', *ENGINE)]
    for opt in found:
        if opt.dest == 'connection':
            opt.help, opt.sample_default = _CONNECTION, f'sqlite:////var/lib/bootcache/{FILE}'
    return found


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, opts())]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the database."""
    conf.register_opts(opts(), group=GROUP)


def default_file(conf: cfg.ConfigOpts) -> str | None:
    """Return the path of the default SQLite database; None if another one is configured."""
    if conf[GROUP].connection:
        return None
    return str(pathlib.Path(conf[shared.GROUP].state_dir, FILE))
