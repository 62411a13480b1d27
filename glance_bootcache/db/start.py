"""The database at the start of the storage service: it is waited for, and has its tables."""

import time
from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from bootcache.exception import BootcacheError, DatabaseAway, DatabaseUnusable
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database

LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0


def wait_for(conf: cfg.ConfigOpts,
             keep_serving: Callable[[], None] = lambda: None) -> Database:
    """Return the database, when it answers and has the tables that this release needs.

    :param keep_serving: is called again and again meanwhile; its errors are logged.
    :raises ConfigurationError: if the option cannot be used.
    :raises DatabaseUnusable: if somebody has to act; the message has the cure.
    """
    database, throttle = Database(conf), LogThrottle(LOG)
    database.check_writable()
    while True:
        try:
            if database.is_default:
                schema.sync(database)
            else:
                schema.check(database)
            throttle.recovered('', 'the database answers')
            return database
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
