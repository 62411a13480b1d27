"""A user of the cloud: registers images, boots and moves servers, and talks to small guests."""

import contextlib
import functools
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.cloud.bootcache import BootcacheCloud
from tools.cloud.client import ClientError, OpenStack
from tools.cloud.layout import TOOLS, Host


def must(holds: object, what: object) -> None:
    """Tell what is not as it has to be.

    :raises ClientError: if it does not hold.
    """
    if not holds:
        raise ClientError(str(what))


def wait_until(condition: Callable[[], Any], what: str, timeout: float = 240) -> Any:
    """Poll until a condition gives something true, and return that.

    :raises ClientError: if it does not come to that.
    """
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() >= deadline:
            raise ClientError(f"{what}: not within {timeout} s")
        time.sleep(0.3)
    return found


@functools.cache
def storage_client(config_file: Path) -> Any:
    """The storage service's client; a process has one configuration."""
    from oslo_config import cfg
    from oslo_log import log

    from bootcache.rpc.client import StorageClient
    from glance_bootcache import conf as glance_conf

    log.register_options(cfg.CONF)
    glance_conf.register_opts(cfg.CONF)
    cfg.CONF([], default_config_files=[str(config_file)])
    return StorageClient(cfg.CONF)


def guest_image(kind: str) -> Path:
    """Make one of the guests of tools/images unless it is there; its file."""
    done = subprocess.run([str(TOOLS.parent / "images" / "make.sh"), kind], check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


class Tenant:
    """What a user does with the cloud; everything that it made is deleted at its end.

    :ivar storage_client: the storage service's client.
    """

    def __init__(self, cloud: BootcacheCloud) -> None:
        self.cloud = cloud
        # Nobody measures here, and several clouds share the processors.
        self.openstack = OpenStack(cloud, pause=0.6)
        self.storage_client = storage_client(cloud.config_file)
        self._images: list[str] = []
        self._servers: list[str] = []

    def image(self, file: Path, *, by_import: bool = False, disk_format: str = "qcow2",
              **properties: str) -> str:
        """Register an image under a name of its own; its id.

        Its servers are not settled unless the properties say so.
        """
        ask = self.openstack.image_api
        image: str = ask("POST", json={
            "name": f"e2e-{uuid.uuid4().hex[:8]}", "disk_format": disk_format,
            "container_format": "bare", "bootcache_settle": "no", **properties})["id"]
        self._images.append(image)
        with open(file, "rb") as stream:
            ask("PUT", f"/{image}/" + ("stage" if by_import else "file"), data=stream,
                headers={"Content-Type": "application/octet-stream"})
        if by_import:
            ask("POST", f"/{image}/import", json={"method": {"name": "glance-direct"}})
        return image

    def delete_image(self, image: str) -> None:
        """Delete an image in Glance."""
        self.openstack.image_api("DELETE", f"/{image}")
        self._images.remove(image)

    def property(self, image: str, name: str) -> str | None:
        """A property of an image, as Glance has it."""
        found: str | None = self.openstack.image_api("GET", f"/{image}").get(name)
        return found

    def wait_property(self, image: str, name: str, value: str) -> None:
        """Wait until what an image's owner sees in a property has something in it."""
        wait_until(lambda: value in (self.property(image, name) or ""), f"{name} of {image}")

    def wait_state(self, image: str, state: str, timeout: float = 600) -> dict[str, Any]:
        """Wait for an image's state in the storage service."""
        def reached() -> dict[str, Any] | None:
            found = self.show(image)
            if found is None:
                return None
            must(found["state"] in (state, "pending", "recording", "building", "served")
                 or found["in_hand"], found)
            return found if found["state"] == state else None
        found: dict[str, Any] = wait_until(reached, f"image {image} {state}", timeout)
        return found

    def show(self, image: str) -> dict[str, Any] | None:
        """What the storage service knows of an image."""
        from bootcache.rpc.messages import GetImage

        found: dict[str, Any] | None = self.storage_client.send(GetImage(image))
        return found

    def server(self, image: str, flavor: str = "m1.tiny", *more: str,
               host: Host | None = None) -> str:
        """Boot a server, on the first host unless told otherwise, and wait until it is ACTIVE."""
        server = self.ask(image, flavor, *more, host=host)
        self.openstack.wait_active(server)
        return server

    def ask(self, image: str, flavor: str = "m1.tiny", *more: str,
            host: Host | None = None) -> str:
        """Ask for a server, on the first host unless told otherwise; its id."""
        name, hostname = f"e2e-{uuid.uuid4().hex[:8]}", (host or self.cloud.hosts[0]).hostname
        if more:
            server = self.openstack.create_server(name, image, flavor, "--host", hostname, *more)
        else:
            nova = self.openstack.nova
            server = nova.servers.create(name, image, nova.flavors.find(name=flavor), nics="none",
                                         host=hostname).id
        self._servers.append(server)
        return server

    def login(self, server: str) -> str:
        """Wait for the small guest's prompt, check its word on its data; the console."""
        console = self.openstack.wait_console(server, "small login:", 120)
        must("bootcache-check: ok" in console, console)
        return console

    def command(self, server: str, line: str, answer: str = "ok", timeout: float = 60) -> None:
        """Type a command of the small guest, and check what it answers."""
        name = line.split()[0]
        # The prompt comes before it on the line, if the command came before the prompt.
        text = self.openstack.type(server, line, f".*{name}: .*", timeout)
        must(text.rstrip().endswith(f"{name}: {answer}"), text)

    def check(self, server: str) -> None:
        """The guest's own data and its image's are right."""
        self.command(server, "verify")
        self.command(server, "check-all")

    def check_after_boot(self, server: str) -> None:
        """The guest has booted again, from the disk that it had."""
        console = self.login(server)
        must("mark: ok" in console, console)
        self.check(server)

    def host_of(self, server: str) -> Host:
        """The host that a server is on."""
        return self.openstack.host_of(server)

    def live_migrate(self, server: str, host: Host) -> None:
        """Move a running server with its disks; its console begins anew on the other host.

        It need not be paused: TCG guests came through all of 43 such moves with their data right,
        27 of which they wrote in, 13 of those with no core free.
        """
        self.openstack.nova.servers.live_migrate(server, host.hostname, "auto")
        self.openstack.wait_active(server)
        must(self.host_of(server) == host, self.openstack.nova.server_migrations.list(server))

    def migrate(self, server: str, host: Host) -> None:
        """Move a server while it is off; it has to be confirmed or reverted."""
        self.openstack.nova.servers.migrate(server, host=host.hostname)
        self.openstack.wait_status(server, "VERIFY_RESIZE")
        must(self.host_of(server) == host, f"server {server} is not on {host.hostname}")

    def resize(self, server: str, flavor: str, host: Host) -> None:
        """Give a server another flavor on a host; it has to be confirmed or reverted."""
        with self.only(host):
            nova = self.openstack.nova
            nova.servers.resize(server, nova.flavors.find(name=flavor))
            self.openstack.wait_status(server, "VERIFY_RESIZE")
        must(self.host_of(server) == host, f"server {server} is not on {host.hostname}")

    def confirm(self, server: str) -> None:
        """Keep what migrate() or resize() did."""
        self.openstack.nova.servers.confirm_resize(server)
        self.openstack.wait_active(server)

    def revert(self, server: str) -> None:
        """Undo what migrate() or resize() did."""
        self.openstack.nova.servers.revert_resize(server)
        self.openstack.wait_active(server)

    @contextlib.contextmanager
    def only(self, host: Host) -> Iterator[None]:
        """The scheduler takes no other host."""
        services = self.openstack.nova.services
        others = [service.id for service in services.list(binary="nova-compute")
                  if service.host != host.hostname]
        for service in others:
            services.disable(service)
        try:
            yield
        finally:
            for service in others:
                services.enable(service)

    @contextlib.contextmanager
    def failed(self, host: Host) -> Iterator[None]:
        """A host loses its power and Nova knows; afterwards it is on again, and Nova knows that."""
        services = self.openstack.nova.services
        service, = services.list(host=host.hostname, binary="nova-compute")
        self.cloud.power_off(host)
        services.force_down(service.id, True)
        try:
            yield
        finally:
            self.cloud.power_on(host)
            services.force_down(service.id, False)

    def evacuate(self, server: str, host: Host) -> None:
        """Build a server of a failed host anew on another one, and start it there."""
        # With the plain client's microversion, see below.
        self.openstack.run("server", "evacuate", "--host", host.hostname, server)
        # It may have been seen to be off before its host was lost: SHUTOFF alone says nothing.
        wait_until(lambda: self.host_of(server) == host, f"{server} on {host.hostname}", 180)
        # Nova stops it again since microversion 2.95, after it has run for a moment.
        self.openstack.wait_status(server, "SHUTOFF")
        self.openstack.nova.servers.start(server)
        self.openstack.wait_active(server)

    def hard_reboot(self, server: str) -> None:
        """Reboot a server, whatever it is in; Nova may be at work on it, and is asked again then.

        After its host was down, Nova sees by itself now and then that the server is off, and stops
        it (``sync_power_state_interval``); if it begins that while it is asked, it says 500.
        """
        from novaclient.exceptions import ClientException

        def is_taken() -> bool:
            try:
                self.openstack.nova.servers.reboot(server, "HARD")
            except ClientException as error:
                if error.code == 409 or "UnexpectedTaskStateError" in str(error):
                    return False
                raise
            return True
        wait_until(is_taken, f"Nova takes the reboot of {server}", 60)

    def delete_server(self, server: str, times: int = 1) -> None:
        """Delete a server, and wait until it is gone.

        :param times: that Nova is asked at most, as by a user where the message bus has lost it.
        """
        for left in reversed(range(times)):
            self.openstack.nova.servers.delete(server)
            try:
                self.openstack.wait_gone(server)
                break
            except ClientError:
                if not left:
                    raise
        self._servers.remove(server)

    def backing(self, server: str) -> list[str]:
        """The files of a server's chain, top first, read from their headers."""
        command = self.cloud.inside(
            self.host_of(server), "qemu-img", "info", "-U", "--backing-chain", "--output=json",
            str(self.openstack.disk(server)))
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [layer["filename"] for layer in json.loads(out)]

    def storm(self, image: str, count: int) -> list[Host]:
        """Boot servers by one request, where Nova's scheduler wants them; their hosts."""
        nova = self.openstack.nova
        name = f"e2e-{uuid.uuid4().hex[:8]}"
        nova.servers.create(name, image, nova.flavors.find(name="m1.tiny"), nics="none",
                            min_count=count, max_count=count)
        servers = [server.id for server in nova.servers.list(search_opts={"name": name})]
        must(len(servers) == count, f"{len(servers)} servers, not {count}")
        self._servers += servers
        for server in servers:
            self.openstack.wait_active(server)
        return [self.host_of(server) for server in servers]

    @contextlib.contextmanager
    def aggregate(self, *hosts: Host, **metadata: str) -> Iterator[str]:
        """An aggregate of hosts; its name."""
        with self.openstack.aggregate(f"e2e-{uuid.uuid4().hex[:8]}", hosts, metadata) as name:
            yield name

    def clean_servers(self) -> None:
        """Delete all servers that it made."""
        for server in self._servers:
            self.openstack.nova.servers.delete(server)
        while self._servers:
            self.openstack.wait_gone(self._servers[-1])
            self._servers.pop()

    def clean(self) -> None:
        """Delete all that it made."""
        self.clean_servers()
        for image in list(self._images):
            self.delete_image(image)


class Log:
    """The lines that a service adds to its log during a test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = path.stat().st_size if path.exists() else 0

    def text(self) -> str:
        """What was written since."""
        return self._path.read_bytes()[self._begin:].decode(errors="replace")

    def wait(self, text: str, timeout: float = 60) -> None:
        """Wait until a text is there."""
        wait_until(lambda: text in self.text(), f"{text!r} in {self._path.name}", timeout)
