"""The locks of the storage service, the order in which they are taken, and for how long.

A thread that has one of them takes only those that stand below it here; it may take again what it
has. bootcache/locks.py tells whenever that is not so. From above, with what each makes one step:

``CLONES``, one for the service
    looking by which connector a clone in Ceph is read, having it read by another one, and starting
    and ending connectors. Who waits for it gives up after 30 s. Ceph was asked for the clone before
    that: what may wait for it then is ended after seconds, and for 10 s nobody tries again.

``MONITOR``, one for the exporter, of bootcache/monitor.py
    a group of QMP's commands: looking at what is served, and changing it. Who waits for it gives up
    after 10 s. The first command that is not answered within 30 s ends it, as does a monitor that
    is not reached within 10 s; for 10 s from then on all others end at once. Also the start of a
    daemon that has ended, which may take a minute.

``TIERS``, one for the service
    what is in the memory tier: steps in memory, and the removal of a file from there.

``LEAF``, many
    steps in memory: each is inside one class, which takes no other one meanwhile. They are plain
    locks. ``Orders``, ``WarmRequests`` and ``Records`` have another one each, which who adds an
    order or a request, or writes a record, holds over the database's transaction, and nobody else
    waits for: a call to a database that hangs ends after 30 s. ``Clients`` and ``Exporters`` have
    two: with the one that is taken first each writes a file of a megabyte. ``Running`` has a step
    submitted, and taken out, by ``Turns``.

So nobody who has the tiers' lock asks the exporter: that may take a minute, and every server that
boots takes it. ``ImageStore`` holds no lock over the database's transactions: who is overtaken
reads again. Nor does anybody who has one of all these ask Glance or Nova, or run a program; the
unit tests' stand-ins hold that.
"""

import enum

from bootcache import locks


class ServiceRank(enum.IntEnum):
    """A kind of lock; those with higher numbers are taken later."""

    CLONES = 80
    MONITOR = locks.MONITOR
    TIERS = 94
    LEAF = locks.LEAF
