"""The plain openstack client, as a user would type it, and a session to wait with."""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.cloud.cloud import Cloud
from tools.cloud.layout import VENV, Host

POLL = 0.2


class ClientError(Exception):
    """A step did not really happen; the message says which and why."""


class OpenStack:
    """Runs commands of the openstack client, and watches servers.

    :param cloud: the running cloud.
    :param say: shows a command to people, or None.
    :param pause: seconds between two questions to Nova, each of which costs it and Keystone some
        hundredths of a processor's second.
    """

    def __init__(self, cloud: Cloud, say: Callable[[str], None] | None = None,
                 pause: float = POLL) -> None:  # fmt: skip
        self._cloud = cloud
        self._pause = pause
        self._say = say or (lambda text: None)
        self._nova: Any = None

    def run(self, *arguments: str) -> str:
        """Run ``openstack ARGUMENTS`` as the administrator.

        :returns: its standard output.
        :raises ClientError: if it fails.
        """
        self._say("$ openstack " + " ".join(arguments))
        return self._program("openstack", *arguments)

    def json(self, *arguments: str) -> Any:
        """Run a command of the openstack client and read its answer."""
        return json.loads(self.run(*arguments, "-f", "json"))

    def bootcache(self, config_file: Path, *arguments: str, show_progress: bool = False) -> Any:
        """Run ``bootcache ARGUMENTS -f json`` and read its answer."""
        self._say("$ bootcache " + " ".join(arguments))
        text = self._program("bootcache", "--config-file", str(config_file), *arguments,
                             "-f", "json", pass_errors=show_progress)
        return json.loads(text)

    def _program(self, program: str, *arguments: str, pass_errors: bool = False) -> str:
        environment = {**self._cloud.layout.environment(), **self._cloud.env("admin")}
        # With standard input a pipe or a file the client would upload it.
        done = subprocess.run(
            [str(VENV / "bin" / program), *arguments], env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=None if pass_errors else subprocess.PIPE, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ClientError(f"{program} {' '.join(arguments)} failed:\n"
                            f"{done.stdout}{done.stderr or ''}")  # fmt: skip
        return done.stdout

    @property
    def nova(self) -> Any:
        """novaclient, as starting the openstack client for each look takes a second."""
        if self._nova is None:
            from keystoneauth1.identity import v3
            from keystoneauth1.session import Session
            from novaclient import client

            layout = self._cloud.layout
            session = Session(v3.Password(
                layout.auth_url, username="admin", password=layout.password, project_name="admin",
                user_domain_name="Default", project_domain_name="Default"))  # fmt: skip
            # A server closes a connection that nobody used for a while, also as it is used again.
            self._nova = client.Client("2.79", session=session, connect_retries=3)
        return self._nova

    def create_server(self, name: str, image: str, flavor: str, *more: str) -> str:
        """Ask for a server; its id."""
        server: str = self.json("server", "create", "--image", image, "--flavor", flavor,
                                "--nic", "none", *more, name)["id"]  # fmt: skip
        return server

    def wait_active(self, server: str, timeout: float = 300) -> None:
        """Wait until a server is ACTIVE.

        :raises ClientError: if it goes to ERROR or takes too long.
        """
        self.wait_status(server, "ACTIVE", timeout)

    def wait_status(self, server: str, status: str, timeout: float = 300) -> None:
        """Wait until a server has a status and Nova does nothing more with it.

        :raises ClientError: if it goes to ERROR or takes too long.
        """
        deadline = time.monotonic() + timeout
        while (found := self.nova.servers.get(server)).status != status or (
            getattr(found, "OS-EXT-STS:task_state") is not None
        ):
            if found.status == "ERROR":
                fault = getattr(found, "fault", {}).get("message", "no reason given")
                raise ClientError(f"server {server} went to ERROR: {fault}")
            if time.monotonic() > deadline:
                raise ClientError(f"server {server} is {found.status}, not {status}, after"
                                f" {timeout:.0f} s")  # fmt: skip
            time.sleep(self._pause)

    def image_api(self, method: str, path: str = "", **more: Any) -> Any:
        """One request to Glance, as starting the openstack client takes seconds of a CPU.

        :param path: below /v2/images.
        :param more: as keystoneauth1.session.Session.request() takes it.
        :returns: the answer's JSON document, or None.
        :raises ClientError: if it fails.
        """
        from keystoneauth1.exceptions import ClientException

        try:
            answer = self.nova.client.session.request(
                f"/v2/images{path}", method, endpoint_filter={"service_type": "image"}, **more)
        except ClientException as error:
            raise ClientError(f"{method} /v2/images{path} failed: {error}") from error
        return answer.json() if answer.content else None

    def delete_server(self, server: str, timeout: float = 120) -> None:
        """Delete a server and wait until it is gone.

        :raises ClientError: if it stays.
        """
        self.run("server", "delete", server)
        self.wait_gone(server, timeout)

    def wait_gone(self, server: str, timeout: float = 120) -> None:
        """Wait until a server that is deleted is gone.

        :raises ClientError: if it stays.
        """
        from novaclient import exceptions

        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                self.nova.servers.get(server)
            except exceptions.NotFound:
                return
            time.sleep(self._pause)
        raise ClientError(f"server {server} is still there {timeout:.0f} s after its deletion")

    def host_of(self, server: str) -> Host:
        """The host that a server is on, by Nova's word.

        :raises ClientError: if it is on none.
        """
        name = getattr(self.nova.servers.get(server), "OS-EXT-SRV-ATTR:host")
        for host in self._cloud.hosts:
            if host.hostname == name:
                return host
        raise ClientError(f"server {server} is on no host of the cloud: {name}")

    def _directory(self, server: str) -> Path:
        """A server's directory, from outside; that of a deleted server does not exist."""
        directories = [host.instances / server for host in self._cloud.hosts]
        present = [directory for directory in directories if directory.exists()]
        # While it migrates, or was evacuated from a host that is still off, both have one.
        if len(present) > 1:
            return self.host_of(server).instances / server
        return (present or directories)[0]

    def console(self, server: str) -> str:
        """What a server wrote to its console so far, on the host where it is now."""
        file = self._directory(server) / "console.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_console(self, server: str, text: str, timeout: float = 400) -> str:
        """Wait until a text is on a server's console; the whole console.

        :raises ClientError: if it does not come.
        """
        deadline = time.monotonic() + timeout
        while text not in (console := self.console(server)):
            if time.monotonic() > deadline:
                raise ClientError(f"{text!r} is not on the console of {server} after"
                                f" {timeout:.0f} s; it ends with:\n{console[-1500:]}")  # fmt: skip
            time.sleep(POLL)
        return console

    def type(self, server: str, line: str, answer: str, timeout: float = 60) -> str:
        """Type a line on a server's serial console; what it wrote until the answer's line ended.

        :param answer: a regular expression for the answer's line, without its end.
        :raises ClientError: if no such line comes.
        """
        # With its end: the console's file may have no more than the beginning of a line yet.
        pattern = re.compile(rf"^{answer}\r?\n", re.MULTILINE)
        begin = len(self.console(server))
        deadline = time.monotonic() + timeout
        with self.domain(server) as domain:
            import libvirt

            stream = domain.connect().newStream(0)
            domain.openConsole(None, stream, libvirt.VIR_DOMAIN_CONSOLE_FORCE)
            stream.send(f"{line}\n".encode())
            # QEMU reads what was typed only while somebody has the terminal open.
            while not (found := pattern.search(written := self.console(server)[begin:])):
                if time.monotonic() > deadline:
                    raise ClientError(f"{server} did not answer to {line!r} within {timeout:.0f} s:"
                                    f" {written!r}")  # fmt: skip
                time.sleep(POLL)
            with contextlib.suppress(libvirt.libvirtError):
                # libvirtd may be another one by now.
                stream.abort()
        return written[: found.end()]

    def disk(self, server: str) -> Path:
        """The file of a server's root disk."""
        return self._directory(server) / "disk"

    def bytes_read(self, server: str) -> int:
        """Bytes that a guest has read from its root disk, counted by QEMU."""
        with self.domain(server) as domain:
            return int(domain.blockStats("vda")[1])

    def inventory(self, host: Host) -> dict[str, Any]:
        """What Placement knows of a host's resources, by resource class."""
        session = self.nova.client.session
        placement = {"service_type": "placement"}
        found = session.get(f"/resource_providers?name={host.hostname}", endpoint_filter=placement)
        provider = found.json()["resource_providers"][0]["uuid"]
        answer = session.get(f"/resource_providers/{provider}/inventories",
                             endpoint_filter=placement)  # fmt: skip
        return dict(answer.json()["inventories"])

    def traits(self, host: Host) -> list[str]:
        """The traits that a host has in Placement."""
        session = self.nova.client.session
        placement = {"service_type": "placement"}
        version = {"OpenStack-API-Version": "placement 1.6"}
        found = session.get(f"/resource_providers?name={host.hostname}", endpoint_filter=placement)
        provider = found.json()["resource_providers"][0]["uuid"]
        answer = session.get(f"/resource_providers/{provider}/traits", headers=version,
                             endpoint_filter=placement)  # fmt: skip
        return list(answer.json()["traits"])

    @contextlib.contextmanager
    def aggregate(self, name: str, hosts: Iterable[Host],
                  metadata: dict[str, str]) -> Iterator[str]:  # fmt: skip
        """An aggregate of hosts, that is removed afterwards; its name."""
        aggregate = self.nova.aggregates.create(name, None)
        joined = []
        try:
            if metadata:
                aggregate.set_metadata(metadata)
            for host in hosts:
                aggregate.add_host(host.hostname)
                joined.append(host)
            yield name
        finally:
            for host in joined:
                aggregate.remove_host(host.hostname)
            aggregate.delete()

    @contextlib.contextmanager
    def domain(self, server: str) -> Iterator[Any]:
        """libvirt's domain of a server."""
        import libvirt

        socket = self.host_of(server).libvirt_socket
        connection = libvirt.open(f"qemu+unix:///system?socket={socket}")
        try:
            yield connection.lookupByUUIDString(server)
        finally:
            connection.close()
