"""The database at the start of the storage service: it is waited for, and has its tables."""

import time
from collections.abc import Callable
from typing import TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from bootcache.exception import BootcacheError, DatabaseAway, DatabaseUnusable
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database

LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0
Result = TypeVar('Result')


def wait_for(conf: cfg.ConfigOpts,
             keep_serving: Callable[[], None] = lambda: None) -> Database:
    """Return the database, when it answers and has the tables that this release needs.

    :param keep_serving: as of ``until_it_answers``.
    :raises ConfigurationError: if the option cannot be used.
    :raises DatabaseUnusable: if somebody has to act; the message has the cure.
    """
    database = Database(conf)
    database.check_writable()
    until_it_answers(lambda: (schema.sync if database.is_default else schema.check)(database),
                     keep_serving)
    return database


def until_it_answers(work: Callable[[], Result], keep_serving: Callable[[], None]) -> Result:
    """Return what work on the database returns, when the database answers.

    :param keep_serving: is called again and again meanwhile; its errors are logged.
    :raises DatabaseUnusable: if somebody has to act; the message has the cure.
    """
    throttle = LogThrottle(LOG)
    while True:
        try:
            result = work()
            throttle.recovered('', 'the database answers')
            return result
        except DatabaseUnusable:
            raise
        except DatabaseAway as error:
            throttle.warning('', '%s; exporters that run serve, and all else waits for it', error)
        time.sleep(_AGAIN_SECONDS)
        try:
            keep_serving()
            throttle.recovered('exporter', 'bases are served again')
        except (BootcacheError, OSError) as error:
            throttle.warning('exporter', 'bases are not served: %s', error)
