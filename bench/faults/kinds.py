"""What can go wrong: the kinds of faults. Pure."""

import dataclasses
import enum


class Act(enum.StrEnum):
    """What is done to something."""

    KILL = 'kill'        # kill -9
    FREEZE = 'freeze'    # SIGSTOP, for a while
    LINK = 'link'        # the storage node's link is down, for a while
    SLOW = 'slow'        # that link carries so many bits a second, for a while
    FULL = 'full'        # a machine's file system is full, for a while
    CORRUPT = 'corrupt'  # a byte of the file that the step is about is another
    BUS = 'bus'          # the message bus is away, or frozen, for a while
    GLANCE = 'glance'    # Glance refuses, or does not answer, for a while
    DELETE = 'delete'    # the image is deleted in Glance, which tells of it
    CLOCK = 'clock'      # a machine's clock is set, and stays so
    CEPH = 'ceph'        # Ceph is away, frozen, lacks its OSD, or takes the host's key away
    NBDKIT = 'nbdkit'    # nbdkit's filters make the exporter's answers ill, for a while


HOST, STORAGE, GATEWAY, EXPORTER, READER = 'host', 'storage', 'gateway', 'exporter', 'reader'
# The connector in Ceph: the host's, and the storage node's.
CLONES, NODES_CLONES = 'clones', 'node\'s clones'
# The machine of whoever comes to the step, or its process.
SELF = 'self'
_SECONDS = 3.0
_HOUR = 3600


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    :ivar name: for people.
    :ivar act: what is done.
    :ivar on: to what: process or machine names, SELF, a state of the bus, of Glance or of Ceph, or
        nothing.
    :ivar seconds: after which what passes by itself has passed.
    :ivar amount: of CLOCK, seconds; of SLOW, bits a second; of FULL, bytes that stay free.
    :ivar filters: of NBDKIT, its arguments.
    """

    name: str
    act: Act
    on: tuple[str, ...] = ()
    seconds: float = 0.0
    amount: int = 0
    filters: tuple[str, ...] = ()


# Where several go wrong in one life.
SEVERAL = 'several'

FAULTS = {fault.name: fault for fault in (
    Fault('kill', Act.KILL, (SELF,)),
    Fault('kill-gateway', Act.KILL, (GATEWAY,)),
    Fault('kill-exporter', Act.KILL, (EXPORTER,)),
    Fault('kill-reader', Act.KILL, (READER,)),
    Fault('kill-host', Act.KILL, (HOST, GATEWAY, READER)),
    Fault('kill-node', Act.KILL, (STORAGE, EXPORTER)),
    Fault('kill-all', Act.KILL, (HOST, GATEWAY, READER, STORAGE, EXPORTER)),
    Fault('kill-clones', Act.KILL, (CLONES,)),
    Fault('kill-node-clones', Act.KILL, (NODES_CLONES,)),
    Fault('freeze-clones', Act.FREEZE, (CLONES,), _SECONDS),
    Fault('freeze-exporter', Act.FREEZE, (EXPORTER,), _SECONDS),
    Fault('freeze-gateway', Act.FREEZE, (GATEWAY,), _SECONDS),
    Fault('link-down', Act.LINK, (), _SECONDS),
    # A megabyte a second.
    Fault('link-slow', Act.SLOW, (), 2 * _SECONDS, 8_000_000),
    Fault('disk-full', Act.FULL, (SELF,), _SECONDS, 64 << 10),
    # Not even a file of some bytes.
    Fault('disk-all-full', Act.FULL, (SELF,), _SECONDS),
    Fault('node-full', Act.FULL, (STORAGE,), _SECONDS),
    Fault('corrupt', Act.CORRUPT, (SELF,)),
    Fault('bus-away', Act.BUS, ('away',), _SECONDS),
    Fault('bus-frozen', Act.BUS, ('frozen',), _SECONDS),
    Fault('glance-away', Act.GLANCE, ('away',), _SECONDS),
    Fault('token-expired', Act.GLANCE, ('refuses',), _SECONDS),
    Fault('image-deleted', Act.DELETE),
    Fault('ceph-away', Act.CEPH, ('away',), 2 * _SECONDS),
    Fault('ceph-frozen', Act.CEPH, ('frozen',), 2 * _SECONDS),
    Fault('osd-killed', Act.CEPH, ('osd killed',), _SECONDS),
    Fault('key-taken', Act.CEPH, ('key taken',), 2 * _SECONDS),
    Fault('clock-forward', Act.CLOCK, (SELF,), 0.0, _HOUR),
    Fault('clock-back', Act.CLOCK, (SELF,), 0.0, -_HOUR),
    Fault('read-errors', Act.NBDKIT, (), _SECONDS, 0, (
        '--filter=error', 'error=EIO', 'error-pread-rate=100%')),
    # As of a disk that is about to fail: some reads work.
    Fault('some-read-errors', Act.NBDKIT, (), _SECONDS, 0, (
        '--filter=error', 'error=EIO', 'error-pread-rate=20%')),
    Fault('reads-late', Act.NBDKIT, (), 2 * _SECONDS, 0, ('--filter=delay', 'rdelay=500ms')),
    # nbdkit is killed and started again every so often, and with it all connections.
    Fault('closed-again', Act.NBDKIT, (), _SECONDS),
)}

# Longer than the product's own limits: 10 s for an answer, 30 s for a daemon, a minute for Nova's
# messages. Of what is no way to a base.
LONG_SECONDS = 35.0, 200.0
_LONG = ('bus-away', 'bus-frozen', 'glance-away', 'token-expired', 'disk-full', 'node-full',
         'freeze-gateway', 'freeze-host', 'freeze-service')
FAULTS['freeze-host'] = Fault('freeze-host', Act.FREEZE, (HOST,), _SECONDS)
FAULTS['freeze-service'] = Fault('freeze-service', Act.FREEZE, (STORAGE,), _SECONDS)
LONG = {f'{name}-{seconds:.0f}s': dataclasses.replace(
    FAULTS[name], name=f'{name}-{seconds:.0f}s', seconds=seconds)
    for name in _LONG for seconds in LONG_SECONDS}
FAULTS.update(LONG)

# Those that pass by themselves.
PASSING = (Act.FREEZE, Act.LINK, Act.SLOW, Act.FULL, Act.BUS, Act.GLANCE, Act.NBDKIT,
           Act.CEPH)
