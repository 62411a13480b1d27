"""The locks of a compute host, and the order in which they are taken.

A thread that has one of them takes only those that stand below it here, and of one kind only one
at a time; it may take again what it has. bootcache/locks.py tells whenever that is not so. From
above, with what each makes one step, and for how long it is held at most:

``SETTLING``, one a server
    beginning, finishing and giving up its move to a full base; libvirt's commands, of 5 s each at
    most, and 30 s for a block job to end. After the first one that is not answered no more are
    made. Nova's own lock of the server comes before it.

``STANDING``, one a server
    seeing that its guest is paused by an error only, and letting it go on, or pausing it for its
    user; libvirt's commands, and a question to Nova. Who lets guests go on does not wait for it,
    and has it for 10 s and that question at most.

``PLACING``, one an image
    bringing its cache image, or changing its entry; as long as a fetch may take, 30 s and a second
    for each 128 KiB. Only servers of this image wait for it, as they would for the fetch; upkeep
    does not.

``ARRIVAL``, one an image
    beginning to have its cache image arrive, and clearing up what one left: 10 s for a job that
    hangs with its storage node. Upkeep does not wait for it.

``DECIDING``, one an image
    finding that nobody needs something of it, and removing that; entering such a need. As below,
    and removing a file.

``STORE``, one a growing store
    a change of its nodes; as below. Who keeps the stores' limits does not wait for it.

``CONNECTION``, one a base
    looking by which connector it is read, opening it in another one, and exchanging its link: 60 s
    at most, and Ceph's commands, of 60 s each, where it is cloned. Who waits for longer than half a
    minute gives up.

``GATEWAY``, one an image
    looking at its nodes in the gateway, and changing them; as below. Who waits for longer than one
    command may take gives up.

``ROOM``, one for the host
    looking for room in a tier, and taking it: steps in memory, and a look into a directory.

``MONITOR``, one a daemon, of bootcache/monitor.py
    a group of QMP's commands. The first one that is not answered within 15 s ends it.

    A plain lock for each connector comes before that connector's, and is held while it is started
    or ended (bootcache/connectors/starter.py): a minute at most. No other one is taken under it.

``LEAF``, many
    steps in memory: each is inside one class, which takes no other one meanwhile. So are the plain
    locks of bootcache/util, bus.py and monitor.py.

What is to be removed for another image's room is removed before that image's locks are taken, but
for ``PLACING``: its own are taken below that.
"""

import enum

from bootcache import locks


class Rank(enum.IntEnum):
    """A kind of lock; those with higher numbers are taken later."""

    SETTLING = 5
    STANDING = 7
    PLACING = 10
    ARRIVAL = 20
    DECIDING = 30
    STORE = 40
    CONNECTION = 45
    GATEWAY = 50
    ROOM = 60
    MONITOR = locks.MONITOR
    LEAF = locks.LEAF
