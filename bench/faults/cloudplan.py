"""What is run in a real cloud: which fault at which moment of a server's life. Pure.

At ``ASKED`` nothing is tried that stock Nova does not bear: it sets a server to ERROR whose
nova-compute or libvirtd ends while it is built, and loses what RabbitMQ had not passed on.
"""

import dataclasses
import enum
from collections.abc import Sequence


class Moment(enum.StrEnum):
    """When the fault comes."""

    ASKED = 'asked'      # a server on a cold image has been asked for
    BOOTS = 'boots'      # it has begun to read
    RUNS = 'runs'        # it is on a cache image, and reads all of its disk
    SETTLES = 'settles'  # the host completes its full base
    MOVES = 'moves'      # the running server is put onto its full base


GATEWAY, EXPORTER, LINK = 'gateway', 'exporter', 'nbd-tap'
COMPUTE, STORAGE, LIBVIRT = 'compute', 'glance-bootcache', 'libvirtd'
BUS, GLANCE = 'rabbit', 'glance'
# What is cut, or does not answer, is so for that long.
SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class CloudFault:
    """Something that goes wrong.

    :ivar name: for people.
    :ivar kill: the services that are killed (``kill -9``), and started again in this order, and
        again if they end, as systemd does; the gateway and the exporter start by themselves.
    :ivar apart: seconds between two that are started.
    :ivar away: the service that is stopped for SECONDS.
    :ivar freeze: the service that is frozen for SECONDS.
    :ivar deletes_image: whether the server's image is deleted in Glance.
    """

    name: str
    kill: tuple[str, ...] = ()
    apart: float = 0.0
    away: str = ''
    freeze: str = ''
    deletes_image: bool = False


FAULTS = {fault.name: fault for fault in (
    CloudFault('kill-gateway', kill=(GATEWAY,)),
    CloudFault('kill-exporter', kill=(EXPORTER,)),
    CloudFault('kill-nova-compute', kill=(COMPUTE,)),
    CloudFault('kill-storage-service', kill=(STORAGE,)),
    CloudFault('kill-libvirtd', kill=(LIBVIRT,)),
    CloudFault('kill-rabbitmq', kill=(BUS,)),
    CloudFault('kill-glance', kill=(GLANCE,)),
    CloudFault('kill-all', kill=(COMPUTE, STORAGE, GATEWAY, EXPORTER)),
    *(CloudFault(f'restart-{number}', kill=(GATEWAY, EXPORTER, *order), apart=4.0)
      for number, order in enumerate((
          (BUS, GLANCE, STORAGE, LIBVIRT, COMPUTE), (COMPUTE, LIBVIRT, STORAGE, GLANCE, BUS),
          (STORAGE, COMPUTE, BUS, LIBVIRT, GLANCE), (LIBVIRT, COMPUTE, GLANCE, BUS, STORAGE)), 1)),
    CloudFault('link-down', away=LINK),
    CloudFault('link-stalled', freeze=LINK),
    CloudFault('freeze-rabbitmq', freeze=BUS),
    CloudFault('delete-image', deletes_image=True),
)}

_AT = {
    Moment.ASKED: ('kill-gateway', 'kill-exporter', 'kill-storage-service', 'kill-glance',
                   'link-down', 'link-stalled', 'freeze-rabbitmq'),
    Moment.BOOTS: ('kill-gateway', 'kill-exporter', 'kill-nova-compute', 'kill-storage-service',
                   'kill-libvirtd', 'kill-rabbitmq', 'kill-all', 'link-down', 'link-stalled',
                   'freeze-rabbitmq', 'delete-image', 'restart-1', 'restart-2'),
    Moment.RUNS: ('kill-gateway', 'kill-exporter', 'kill-nova-compute', 'kill-storage-service',
                  'kill-all', 'link-down', 'link-stalled', 'restart-3', 'restart-4'),
    Moment.SETTLES: ('kill-gateway', 'kill-exporter', 'kill-nova-compute', 'kill-all',
                     'link-down', 'delete-image'),
    Moment.MOVES: ('kill-gateway', 'kill-nova-compute', 'kill-libvirtd', 'kill-all'),
}


@dataclasses.dataclass(frozen=True)
class CloudRow:
    """A fault at a moment."""

    moment: Moment
    fault: CloudFault

    @property
    def name(self) -> str:
        """By which another program is asked for it."""
        return f'{self.moment.value}/{self.fault.name}'

    @property
    def settles(self) -> bool:
        """Whether the server is settled."""
        return self.moment in (Moment.SETTLES, Moment.MOVES)


ROWS = tuple(CloudRow(moment, FAULTS[name]) for moment, names in _AT.items() for name in names)
BY_NAME = {row.name: row for row in ROWS}


def chosen(names: Sequence[str]) -> list[CloudRow]:
    """Return the rows that are asked for: of these moments, with these faults; all without names.

    :raises ValueError: if there is no such name; it tells which there are.
    """
    moments, faults = [str(moment) for moment in Moment], list(FAULTS)
    for name in names:
        if name not in moments and name not in faults:
            raise ValueError(f'{name}: neither a moment ({", ".join(moments)}) nor a fault'
                             f' ({", ".join(faults)})')
    return [row for row in ROWS
            if (not set(names) & set(moments) or row.moment in names)
            and (not set(names) & set(faults) or row.fault.name in names)]
