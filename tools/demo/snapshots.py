"""Snapshots of the demo's servers: what of them crosses the network, and what is stored."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.cloud.client import POLL, ClientError, OpenStack
from tools.cloud.wire import Wire
from tools.demo.stores import Store

STOCK, BOOTCACHE = "stock", "bootcache"
_SECONDS = 600
# Of what stock Nova sends and stores; what a server writes while it boots differs.
_SHARE = 4


@dataclass(frozen=True)
class Snapshot:
    """One of them.

    :ivar way: STOCK, or BOOTCACHE: by what the server's host makes it.
    :ivar seconds: from the request until Glance has all of it.
    :ivar network_bytes: that the host sent: uploaded to Glance, or written to the exporter.
    :ivar stored_bytes: that it takes in the store, beside its base.
    :ivar identical: whether its content is that of the server's disk, which is paused meanwhile.
    """

    way: str
    seconds: float
    network_bytes: int
    stored_bytes: int
    identical: bool


def take(openstack: OpenStack, store: Store, wire: Wire, server: str, way: str) -> Snapshot:
    """Take a snapshot of a server that runs, and remove it.

    :param way: which the server's host is to make it.
    :raises ClientError: if there is none.
    """
    openstack.run("server", "pause", server)
    openstack.wait_status(server, "PAUSED")
    begin, began = wire.position(), time.monotonic()
    image = openstack.nova.servers.create_image(server, f"demo-snapshot-{way}")
    found = _wait_active(openstack, image)
    seconds = time.monotonic() - began
    written = wire.written(begin, wire.position())
    node = {"driver": found["disk_format"], "file": store.node(image)}
    snapshot = Snapshot(
        way, round(seconds, 1),
        # What was not sent as what differs was uploaded, as a whole.
        found["size"] if way == STOCK else written, store.stored(image),
        _is_same(node, str(openstack.disk(server))),
    )  # fmt: skip
    if way == BOOTCACHE and not written:
        raise ClientError(f"snapshot {image} was made in stock Nova's way; nova-compute's log says"
                          " why")  # fmt: skip
    openstack.run("image", "delete", image)
    openstack.run("server", "unpause", server)
    openstack.wait_status(server, "ACTIVE")
    return snapshot


def _wait_active(openstack: OpenStack, image: str) -> dict[str, Any]:
    deadline = time.monotonic() + _SECONDS
    while True:
        found: dict[str, Any] = openstack.image_api("GET", f"/{image}")
        if found["status"] == "active":
            return found
        if found["status"] not in ("queued", "saving", "importing") or time.monotonic() > deadline:
            raise ClientError(f"snapshot {image} is {found['status']}, not active")
        time.sleep(POLL)


def _is_same(node: dict[str, object], disk: str) -> bool:
    done = subprocess.run(["qemu-img", "compare", "-U", "-F", "qcow2", "json:" + json.dumps(node),
                           disk], check=False, capture_output=True, text=True)  # fmt: skip
    if done.returncode > 1:
        raise ClientError(f"a snapshot cannot be compared with {disk}: {done.stderr.strip()}")
    return done.returncode == 0


def lines(snapshots: Sequence[Snapshot]) -> list[str]:
    """What people are shown, a line each."""
    return [f"snapshot, {one.way}: {one.seconds:.1f} s, {one.network_bytes / 1e6:.1f} MB sent,"
            f" {one.stored_bytes / 1e6:.1f} MB stored" for one in snapshots]  # fmt: skip


def to_json(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """For report.json."""
    return [asdict(one) for one in snapshots]


def broken_promises(snapshots: Sequence[Snapshot]) -> list[str]:
    """What does not hold, in bytes."""
    broken = [f"the content of the snapshot by {one.way} is not its server's"
              for one in snapshots if not one.identical]  # fmt: skip
    by_way = {one.way: one for one in snapshots}
    if STOCK in by_way and BOOTCACHE in by_way:
        stock, ours = by_way[STOCK], by_way[BOOTCACHE]
        for what, less, more in (("sent", ours.network_bytes, stock.network_bytes),
                                 ("stored", ours.stored_bytes, stock.stored_bytes)):  # fmt: skip
            if less * _SHARE > more:
                broken.append(f"of a snapshot {less} bytes were {what}, of stock Nova's {more}")
    return broken
