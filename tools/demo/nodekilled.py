"""The demo's storage nodes: the one that servers read from is killed, and does not come back."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cloud.bootcache import BootcacheCloud
from tools.cloud.client import ClientError
from tools.cloud.storagenodes import StorageNode, register_at, storage_nodes
from tools.cloud.tenant import Tenant

SERVERS = 8
# Of the looks at each server; for which servers are looked at before and afterwards.
_LOOK_SECONDS, _AROUND_SECONDS = 0.25, 15.0
_MOST_SECONDS = 240.0
_READS = "check-all"


@dataclasses.dataclass(frozen=True)
class Look:
    """What a server was seen to do.

    :ivar at: seconds since the node was killed, negative before that; monotonic ones while looking.
    :ivar read: bytes that it had read from its root disk.
    :ivar is_paused: whether its guest was paused by an I/O error.
    """

    at: float
    read: int
    is_paused: bool


@dataclasses.dataclass(frozen=True)
class NodeKilled:
    """What servers saw of it.

    :ivar waited_seconds: of each: the longest time after the kill in which it read nothing.
    :ivar paused_seconds: of each: for which it was paused by then.
    """

    waited_seconds: tuple[float, ...]
    paused_seconds: tuple[float, ...]

    def __str__(self) -> str:
        least, most = min(self.waited_seconds), max(self.waited_seconds)
        return (f"the storage node of {len(self.waited_seconds)} servers that read was killed: they"
                f" read nothing for {least:.1f} to {most:.1f} s, and then all of their disks,"
                " without an error")  # fmt: skip


def longest_wait(looks: Sequence[Look]) -> float:
    """The longest time in which a server read nothing, in seconds, from the kill on. Pure."""
    moved = [after.at for before, after in itertools.pairwise(looks)
             if after.at >= 0 and after.read > before.read]  # fmt: skip
    moments = [0.0, *moved, *([looks[-1].at] if looks else [])]
    return max(after - before for before, after in itertools.pairwise(moments)) \
        if len(moments) > 1 else 0.0


def paused(looks: Sequence[Look]) -> list[tuple[float, float]]:
    """The times in which a server was paused: begin and length, in seconds. Pure."""
    found: list[tuple[float, float]] = []
    for before, after in itertools.pairwise(looks):
        if not before.is_paused:
            continue
        length = after.at - before.at
        if found and found[-1][0] + found[-1][1] == before.at:
            found[-1] = found[-1][0], after.at - found[-1][0]
        else:
            found.append((before.at, length))
    return found


def kill_the_node(cloud: BootcacheCloud, count: int, picture: Path) -> NodeKilled:
    """Kill one of some storage nodes, while servers read from it, and draw what they did.

    :param count: of storage nodes.
    :raises ClientError: if a server sees an error, or does not go on.
    """
    tenant = Tenant(cloud)
    with storage_nodes(cloud, [f"storage-{number}" for number in range(1, count + 1)]) as nodes:
        try:
            home, *others = nodes
            image = register_at(tenant, home, others)
            servers = [tenant.ask(image) for _number in range(SERVERS)]
            for server in servers:
                tenant.openstack.wait_active(server)
            with ThreadPoolExecutor(SERVERS) as pool:
                list(pool.map(tenant.login, servers))
            looks = _while_they_read(tenant, servers, home)
        finally:
            tenant.clean()
    draw(picture, looks)
    return NodeKilled(
        tuple(round(longest_wait(one), 1) for one in looks),
        tuple(round(sum(length for _begin, length in paused(one)), 1) for one in looks))


def _while_they_read(tenant: Tenant, servers: Sequence[str], home: StorageNode
                     ) -> list[list[Look]]:  # fmt: skip
    is_over = threading.Event()

    def read(server: str) -> None:
        while not is_over.is_set():
            # Of each byte it knows what it has to be.
            tenant.command(server, _READS, timeout=_MOST_SECONDS)

    looks: list[list[Look]] = [[] for _server in servers]
    began, killed = time.monotonic(), float("inf")
    with ThreadPoolExecutor(len(servers)) as pool:
        readers = [pool.submit(read, server) for server in servers]
        try:
            while not all(_goes_on(own, killed) for own in looks):
                now = time.monotonic()
                if killed > now + _AROUND_SECONDS and now > began + _AROUND_SECONDS:
                    home.kill()
                    killed = time.monotonic()
                for server, own in zip(servers, looks, strict=True):
                    own.append(_look(tenant, server))
                if any(reader.done() for reader in readers):
                    break
                if now > killed + _MOST_SECONDS:
                    raise ClientError(f"servers do not read {_MOST_SECONDS:.0f} s after the kill")
                time.sleep(_LOOK_SECONDS)
        finally:
            is_over.set()
        for reader in readers:
            reader.result()
    return [[dataclasses.replace(one, at=one.at - killed) for one in own] for own in looks]


def _goes_on(looks: Sequence[Look], killed: float) -> bool:
    """Whether a server has read for a while after the kill."""
    moved = [after.at for before, after in itertools.pairwise(looks)
             if before.at >= killed and after.read > before.read]  # fmt: skip
    return bool(moved) and looks[-1].at > moved[0] + _AROUND_SECONDS


def _look(tenant: Tenant, server: str) -> Look:
    import libvirt

    with tenant.openstack.domain(server) as domain:
        state = tuple(domain.state(0))
        read = int(domain.blockStats("vda")[1])
    return Look(time.monotonic(), read, state == (
        libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR))  # fmt: skip


def draw(path: Path, looks: Sequence[Sequence[Look]]) -> None:
    """Draw for each server when it read, and when it was paused."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.4 * len(looks) + 2), dpi=120)
    for row, own in enumerate(looks):
        reads = [(before.at, after.at - before.at) for before, after in itertools.pairwise(own)
                 if after.read > before.read]  # fmt: skip
        axes.broken_barh(reads, (row - 0.3, 0.6), color="#0072b2",
                         label="reads" if row == 0 else None)  # fmt: skip
        axes.broken_barh(paused(own), (row - 0.3, 0.6), color="#d55e00",
                         label="is paused" if row == 0 else None)  # fmt: skip
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(looks)), [f"server {number}" for number in range(1, len(looks) + 1)])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the storage node that they read from was killed")
    axes.set_title("A storage node dies for good below servers that read")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
