"""Storage nodes on one MariaDB, in the place of the cloud's own one, and without a tap."""

import contextlib
import functools
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.cloud import config
from tools.cloud.bootcache import UNITS, BootcacheCloud, daemon_pid
from tools.cloud.layout import GLANCE, VENV
from tools.cloud.processes import kill_all
from tools.cloud.records import queue_served
from tools.cloud.services import confined
from tools.cloud.tenant import Tenant, guest_image, wait_until
from tools.databases import MariaDB, made

FIRST_PORT = 10840


class StorageNode:
    """A storage node: its service, with a state directory, an exporter and certificates of its own.

    :param name: ``[DEFAULT]host``, which its service, certificates and directories have as well.
    :param port: of its exporter.
    :param url: of the database of all nodes, with its tables.
    """

    def __init__(self, cloud: BootcacheCloud, name: str, port: int, url: str) -> None:
        self.cloud, self.name, self.port = cloud, name, port
        layout = cloud.layout
        self.state_directory = layout.home / name
        self.run_directory = layout.run / name
        self.log_file = layout.log / f"{name}.log"
        self.config_file = layout.etc / name / "bootcache.conf"
        for path in (self.state_directory, self.run_directory, self.config_file.parent):
            path.mkdir(parents=True, exist_ok=True)
        for path in (self.state_directory, self.run_directory):
            shutil.chown(path, GLANCE, GLANCE)
        config.for_group(self.config_file.parent, GLANCE)
        self.log_file.touch()
        shutil.chown(self.log_file, GLANCE)
        cloud.make_certificates({name: GLANCE})
        config.put(self.config_file, config.render({
            "DEFAULT": {"transport_url": cloud.transport_url, "debug": "true", "host": name,
                        "log_file": self.log_file},
            "database": {"connection": url},
            "bootcache": {"gateway_socket": cloud.run_directory / "gateway.sock",
                          "state_dir": self.state_directory, "run_dir": self.run_directory,
                          "export_port": port, "tls_directory": cloud.certificates / name,
                          "glance_store_dirs": str(layout.images), "profile_boots": "false",
                          "poll_interval": 5, "show_state_after": 0, "deletion_delay": 5},
            "service_auth": config.service_user(layout),
        }))  # fmt: skip
        cloud.add_service(
            name,
            [*confined(layout, unit=UNITS / "glance-bootcache.service"),
             str(VENV / "bin" / "glance-bootcache"), "--config-file", str(self.config_file)],
            {"HOME": str(layout.user_home(GLANCE))},
            ready=functools.partial(queue_served, layout, f"bootcache.{name}"), port=port,
        )  # fmt: skip

    def start(self) -> None:
        """Start its service, and with it its exporter."""
        self.cloud.start(self.name)

    def kill(self) -> None:
        """End all of its processes at once, as the loss of its power does."""
        kill_all(self.cloud.daemons.leftovers(self.name), terminate=False)
        for pid in self._daemons():
            os.kill(pid, signal.SIGKILL)
        self.cloud.stop(self.name)

    def remove(self) -> None:
        """End it, and remove its files."""
        self.kill()
        for path in (self.state_directory, self.run_directory, self.config_file.parent):
            shutil.rmtree(path)

    def _daemons(self) -> list[int]:
        return [pid for file in self.run_directory.rglob("*.pid") if (pid := daemon_pid(file))]


@contextlib.contextmanager
def storage_nodes(cloud: BootcacheCloud, names: Sequence[str]) -> Iterator[list[StorageNode]]:
    """Storage nodes serve in the place of the cloud's own one, which does not run meanwhile.

    :param names: of the nodes.
    """
    # The services see the cloud's directory, and not this machine's /tmp.
    database, nodes = MariaDB(str(cloud.home)), []
    with contextlib.ExitStack() as stack:
        stack.callback(database.remove)
        for path in (cloud.home, Path(database.home)):
            path.chmod(0o755)
        url = database.database()
        made(url).close()
        stack.enter_context(cloud.storage_service_down())
        for number, name in enumerate(names):
            nodes.append(StorageNode(cloud, name, FIRST_PORT + number, url))
            stack.callback(nodes[-1].remove)
            nodes[-1].start()
        yield nodes


def register_at(tenant: Tenant, home: StorageNode, others: Sequence[StorageNode]) -> str:
    """Register an image that a node is to work on, as the others are drained; its id."""
    bootcache, config_file = tenant.openstack.bootcache, home.config_file

    def states(*names: str) -> set[str]:
        # They answer in turn, as each of them sees it.
        return {row["state"] for _turn in range(2 * len(others) + 2)
                for row in bootcache(config_file, "node", "list")
                if not names or row["node"] in names}

    wait_until(lambda: states() == {"up"}, "all storage nodes")
    names = [node.name for node in others]
    bootcache(config_file, "node", "drain", *names)
    wait_until(lambda: states(*names) == {"drained"}, "drained storage nodes")
    image = tenant.image(guest_image("small"), bootcache_quota="1MiB")
    tenant.wait_state(image, "served")
    bootcache(config_file, "node", "resume", *names)
    return image
