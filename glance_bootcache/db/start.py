"""The database at the start of the storage service: it is waited for, and has its tables."""

import time

from oslo_config import cfg
from oslo_log import log as logging

from bootcache.exception import DatabaseAway, DatabaseUnusable
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database

LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0


def wait_for(conf: cfg.ConfigOpts) -> Database:
    """Return the database, when it answers and has the tables that this release needs.

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
            throttle.warning('', '%s; bases are served, and all else waits for it', error)
        time.sleep(_AGAIN_SECONDS)
