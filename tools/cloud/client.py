"""The plain openstack client, as a user would type it, and a session to wait with."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.cloud.cloud import Cloud
from tools.cloud.layout import VENV

POLL = 0.2


class ClientError(Exception):
    """A step did not really happen; the message says which and why."""


class OpenStack:
    """Runs commands of the openstack client, and watches servers.

    :param cloud: the running cloud.
    :param say: shows a command to people, or None.
    """

    def __init__(self, cloud: Cloud, say: Callable[[str], None] | None = None) -> None:
        self._cloud = cloud
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
            self._nova = client.Client("2.79", session=session)
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
        deadline = time.monotonic() + timeout
        while (found := self.nova.servers.get(server)).status != "ACTIVE":
            if found.status == "ERROR":
                fault = getattr(found, "fault", {}).get("message", "no reason given")
                raise ClientError(f"server {server} went to ERROR: {fault}")
            if time.monotonic() > deadline:
                raise ClientError(f"server {server} is {found.status} after {timeout:.0f} s")
            time.sleep(POLL)

    def delete_server(self, server: str, timeout: float = 120) -> None:
        """Delete a server and wait until it is gone.

        :raises ClientError: if it stays.
        """
        from novaclient import exceptions

        self.run("server", "delete", server)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                self.nova.servers.get(server)
            except exceptions.NotFound:
                return
            time.sleep(POLL)
        raise ClientError(f"server {server} is still there {timeout:.0f} s after its deletion")

    def console(self, server: str) -> str:
        """What a server wrote to its console so far."""
        file = self._cloud.layout.hosts[0].instances / server / "console.log"
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

    def disk(self, server: str) -> Path:
        """The file of a server's root disk."""
        return self._cloud.layout.hosts[0].instances / server / "disk"

    def bytes_read(self, server: str) -> int:
        """Bytes that a guest has read from its root disk, counted by QEMU."""
        import libvirt

        uri = f"qemu+unix:///system?socket={self._cloud.layout.hosts[0].libvirt_socket}"
        connection = libvirt.open(uri)
        try:
            statistics = connection.lookupByUUIDString(server).blockStats("vda")
        finally:
            connection.close()
        return int(statistics[1])
