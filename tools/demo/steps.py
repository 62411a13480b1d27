"""The demo's steps: baseline, registration, boots from the cache image, comparison."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bootcache.workingset import Extent, WorkingSet, uncovered
from glance_bootcache.cli import plot
from tools.cloud.bootcache import DRIVER, STOCK_DRIVER, BootcacheCloud
from tools.cloud.client import ClientError, OpenStack
from tools.cloud.wire import Position, Wire
from tools.demo import killed, snapshots
from tools.demo.report import Boot
from tools.demo.stores import BaseReads, Store

FLAVOR = "m1.small"
LOGIN = "login:"


class Demo:
    """Runs the steps on a cloud that is up.

    :param cloud: the cloud.
    :param store: where its Glance keeps images.
    :param image_file: a qcow2 of a distribution.
    :param report_directory: where pictures go.
    :param tell: tells people what happens.
    """

    def __init__(self, cloud: BootcacheCloud, store: Store, image_file: Path,
                 report_directory: Path, tell: Callable[[str], None]) -> None:  # fmt: skip
        self._cloud = cloud
        self._store = store
        self._image_file = image_file
        self._directory = report_directory
        self._tell = tell
        self.openstack = OpenStack(cloud, tell)
        self._wire = Wire(cloud.tap_log, cloud.access_log)
        self.boots: list[Boot] = []
        self.snapshots: list[snapshots.Snapshot] = []

    def baseline(self, repeat: int) -> None:
        """Boot the image under stock Nova: first on this host, and again."""
        self._cloud.use_driver(STOCK_DRIVER)
        image = self._create_image("--property", "bootcache_mode=off", "demo-stock")
        self.openstack.delete_server(self._boot("stock-first", image))
        for number in range(repeat):
            server = self._boot("stock-second", image)
            if number == repeat - 1:
                self.snapshot(server, snapshots.STOCK)
            self.openstack.delete_server(server)
        self.openstack.run("image", "delete", image)
        self._cloud.use_driver(DRIVER)

    def _create_image(self, *more: str) -> str:
        disk_format = self._store.disk_format
        with self._store.upload(self._image_file) as file:
            image: str = self.openstack.json(
                "image", "create", "--disk-format", disk_format, "--container-format", "bare",
                "--min-ram", "512", "--file", str(file), *more)["id"]  # fmt: skip
        return image

    def register(self) -> dict[str, Any]:
        """Import the image again with bootcache on, and wait until its cache image is ready.

        :raises ClientError: if the hook did not announce it or the image does not become ready.
        """
        log = self._cloud.layout.log / "glance-bootcache.log"
        before = log.stat().st_size
        image = self._create_image("--import", "demo-bootcache")
        found = self.openstack.bootcache(self._cloud.config_file, "image", "show", image, "--wait",
                                         show_progress=True)  # fmt: skip
        if found["state"] != "ready":
            raise ClientError(f"the image is {found['state']}: {found['reason']}")
        if f"image {image}: announced by the Glance hook" not in log.read_text()[before:]:
            raise ClientError("the image became ready, but the Glance hook did not announce it")
        leftover = self.openstack.json("server", "list", "--all-projects")
        if leftover:
            raise ClientError(f"the profile boot's server is still there: {leftover}")
        result: dict[str, Any] = found
        return result

    def boot_with_bootcache(self, image: str, repeat: int) -> str:
        """Boot servers on the registered image: the first fetches the cache image.

        :returns: the last server, which is still there: the host serves a base while it has one.
        """
        kinds = ["bootcache-first", *["bootcache-again"] * repeat]
        for kind in kinds[:-1]:
            self.openstack.delete_server(self._boot(kind, image))
        return self._boot(kinds[-1], image)

    def _boot(self, kind: str, image: str) -> str:
        begin, read = self._wire.position(), self._in_ceph()
        began = time.monotonic()
        server = self.openstack.create_server(kind, image, FLAVOR)
        self.openstack.wait_active(server)
        active = time.monotonic()
        self.openstack.wait_console(server, LOGIN)
        login = time.monotonic()
        guest = self.openstack.bytes_read(server)
        end = self._wire.position()
        if kind.startswith("bootcache"):
            self._check_chain(server)
        requests = self._wire.requests(begin, end)
        base = self._base_reads(begin, end, read)
        boot = Boot(
            kind, round(active - began, 2), round(login - active, 2),
            self._wire.downloaded(begin, end, image) + base.from_ceph
            + sum(request.length for request in requests),
            guest, base.from_exporter + base.from_ceph, base.requests,
        )  # fmt: skip
        self.boots.append(boot)
        self._tell(f"{kind}: ACTIVE after {boot.spawn_seconds:.1f} s,"
                   f" login {boot.login_seconds:.1f} s later,"
                   f" {boot.bytes_to_host / 1e6:.1f} MB to the host,"
                   f" {boot.requests_to_base} requests to the base")  # fmt: skip
        return server

    def _in_ceph(self) -> tuple[int, int]:
        return self._store.read_by_host(self._cloud.layout.hosts[0])

    def _base_reads(self, begin: Position, end: Position, before: tuple[int, int]) -> BaseReads:
        """What was read of bases in a window, by the tap and since librbd counted that much."""
        found = [request.length for request in self._wire.requests(begin, end)
                 if request.export.startswith("base-")]  # fmt: skip
        now = self._in_ceph()
        # A daemon that was started anew, or has opened a clone anew, counts from 0.
        count, reads = (after - then if now >= before else after
                        for after, then in zip(now, before, strict=True))  # fmt: skip
        return BaseReads(sum(found), count, len(found) + reads)

    def kill_the_gateway(self, image: str) -> killed.Killed:
        """Kill the host's gateway below a server that reads all of its image's files."""
        user_data = killed.write_user_data(self._cloud.run_directory)
        server = self.openstack.create_server("gateway-killed", image, FLAVOR, "--user-data",
                                              str(user_data))  # fmt: skip
        self.openstack.wait_active(server)
        found = killed.kill_the_gateway(self._cloud, self.openstack, server)
        self._tell(str(found))
        self.openstack.delete_server(server)
        user_data.unlink()
        return found

    def snapshot(self, server: str, way: str) -> None:
        """Take a snapshot of a server, where the store's share with their base what they can."""
        if not self._store.shares_snapshots:
            return
        found = snapshots.take(self.openstack, self._store, self._wire, server, way)
        self.snapshots.append(found)
        self._tell(*snapshots.lines([found]))

    def _check_chain(self, server: str) -> None:
        layers = json.loads(_qemu_img("info", "-U", "--backing-chain", "--output=json",
                                      str(self.openstack.disk(server))))  # fmt: skip
        names = [layer["filename"] for layer in layers]
        cache = self._cloud.layout.hosts[0].instances / "_bootcache"
        if len(names) != 3 or not names[1].startswith(f"{cache}/") \
                or str(self._cloud.run_directory) not in names[2]:  # fmt: skip
            raise ClientError(f"server {server} does not run from overlay, cache image and gateway,"
                            f" but from {names}")  # fmt: skip

    def compare(self, image: str) -> tuple[bool, BaseReads]:
        """Whether a fresh overlay's chain, by the gateway, equals the image; and what that read."""
        overlay = self._fresh_overlay(image)
        begin, read = self._wire.position(), self._in_ceph()
        done = subprocess.run(
            ["qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", str(overlay),
             str(self._image_file)], check=False, capture_output=True, text=True,
        )  # fmt: skip
        overlay.unlink()
        self._tell(f"qemu-img compare of the chain and the image: {done.stdout.strip()}")
        return done.returncode == 0, self._base_reads(begin, self._wire.position(), read)

    def _fresh_overlay(self, image: str) -> Path:
        from bootcache.naming import cache_file_name

        cache = self._cloud.layout.hosts[0].instances / "_bootcache" / cache_file_name(image)
        overlay = self._cloud.run_directory / "compare.qcow2"
        _qemu_img("create", "-q", "-f", "qcow2", "-b", str(cache), "-F", "qcow2", str(overlay))
        return overlay

    def draw_pattern(self, image: str) -> None:
        """Draw what the profile boot read, coloured by the layer that serves it on the host."""
        file = self._directory / "read-pattern.png"
        document = self._working_set(image)
        overlay = self._fresh_overlay(image)
        layers = json.loads(_qemu_img("map", "-U", "--output=json", str(overlay)))
        overlay.unlink()
        held = [Extent(entry["start"], entry["length"]) for entry in layers if entry["depth"] == 1]

        def served_by(extent: Extent) -> str:
            return "base" if uncovered([extent], held) else "cache image"

        plot.read_pattern(
            str(file), WorkingSet.from_json(document), served_by=served_by,
            title=f"What one boot reads: {document['bytes'] / 1e6:.0f} MB of"
            f" {document['virtual_bytes'] / 1e6:.0f} MB, and what serves it afterwards",
        )  # fmt: skip

    def _working_set(self, image: str) -> dict[str, Any]:
        shown, extents = (self.openstack.bootcache(self._cloud.config_file, *what, "show", image)
                          for what in (("image",), ("working-set",)))  # fmt: skip
        # The finest granularity there is leaves extents as they were recorded.
        document: dict[str, Any] = {
            "version": 1, "image_id": image, "image_hash": shown["image_hash"],
            "virtual_bytes": shown["virtual_bytes"], "granularity": 512, "extents": [
                [extent["offset"], extent["length"], extent["seconds"]] for extent in extents],
        }  # fmt: skip
        (self._directory / "working-set.json").write_text(json.dumps(document, indent=1) + "\n")
        document["bytes"] = sum(extent[1] for extent in document["extents"])
        return document


def _qemu_img(*arguments: str) -> str:
    done = subprocess.run(["qemu-img", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ClientError(f"qemu-img {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
