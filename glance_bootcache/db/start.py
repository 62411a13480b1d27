"""The database at the start of the storage service: it is waited for, and has its tables."""

import threading

from oslo_config import cfg
from oslo_log import log as logging

from bootcache.exception import Cancelled, DatabaseAway, DatabaseUnusable
from bootcache.news import News
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database

LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0


def wait_for(conf: cfg.ConfigOpts, stopping: threading.Event | None = None) -> Database:
    """Return the database, when it answers and has the tables that this release needs.

    :param stopping: ends the waiting.
    :raises ConfigurationError: if the option cannot be used.
    :raises DatabaseUnusable: if somebody has to act; the message has the cure.
    :raises Cancelled: if the service ends before it answers.
    """
    database, news = Database(conf), News(LOG)
    stopping = stopping or threading.Event()
    while not stopping.is_set():
        try:
            if database.is_default:
                schema.sync(database)
            else:
                schema.check(database)
            news.mended('', 'the database answers')
            return database
        except DatabaseUnusable:
            raise
        except DatabaseAway as error:
            news.bad('', '%s; bases are served, and all else waits for it', error)
        stopping.wait(_AGAIN_SECONDS)
    raise Cancelled('the storage service ends before its database answers')
