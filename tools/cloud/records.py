"""What is recorded once in the running cloud: catalog, users, flavors; and Nova's own records."""

import contextlib
import json
import shutil
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tools.cloud.layout import REGION, Host, Layout

FLAVORS = (
    # name, MB of memory, GB of disk, virtual CPUs
    ("m1.tiny", 192, 1, 1),
    ("m1.small", 512, 5, 1),
    ("m1.medium", 1024, 10, 1),
)
HEARTBEAT_AGE = timedelta(seconds=45)


class Identity:
    """Keystone's API and Nova's, as the administrator."""

    def __init__(self, layout: Layout) -> None:
        from keystoneauth1.identity import v3
        from keystoneauth1.session import Session

        self.layout = layout
        names = {"user_domain_name": "Default", "project_domain_name": "Default"}
        self.session = Session(
            v3.Password(
                layout.auth_url,
                username="admin",
                password=layout.password,
                project_name="admin",
                **names,
            )
        )

    def create_catalog(self) -> None:
        """Services with their endpoints, the users `svc` and `demo` with their projects."""
        ports = self.layout.ports
        for name, kind, url in (
            ("placement", "placement", self.layout.url(ports.placement)),
            ("glance", "image", self.layout.url(ports.glance)),
            ("nova", "compute", self.layout.url(ports.nova_api, "/v2.1")),
            ("network-stub", "network", self.layout.url(ports.network)),
        ):
            service = self._ensure("service", {"name": name}, {"type": kind})
            for interface in ("public", "internal", "admin"):
                key = {"service_id": service, "interface": interface, "region_id": REGION}
                self._ensure("endpoint", key, {"url": url})
        self._user("svc", "service", ("admin", "service"))
        self._user("demo", "demo", ("member",))

    def create_flavors(self) -> None:
        """The flavors of the demo."""
        api = self.layout.url(self.layout.ports.nova_api, "/v2.1")
        known = {flavor["name"] for flavor in self._call("GET", f"{api}/flavors")["flavors"]}
        for name, ram, disk, cpus in FLAVORS:
            if name not in known:
                body = {"name": name, "id": name, "ram": ram, "disk": disk, "vcpus": cpus}
                self._call("POST", f"{api}/flavors", {"flavor": body})

    def _user(self, name: str, project: str, roles: tuple[str, ...]) -> None:
        project_id = self._ensure("project", {"name": project}, {"domain_id": "default"})
        settings = {"domain_id": "default", "default_project_id": project_id}
        user = self._ensure("user", {"name": name}, {**settings, "password": self.layout.password})
        for role in roles:
            found = self._call("GET", self._identity(f"roles?name={role}"))["roles"][0]["id"]
            path = f"projects/{project_id}/users/{user}/roles/{found}"
            self._call("PUT", self._identity(path))

    def _ensure(self, kind: str, key: dict[str, str], settings: dict[str, str]) -> str:
        """The id of the record with this key, created if need be."""
        query = "&".join(f"{name}={value}" for name, value in key.items())
        found = self._call("GET", self._identity(f"{kind}s?{query}"))[f"{kind}s"]
        if not found:
            body = {kind: {**key, **settings}}
            found = [self._call("POST", self._identity(f"{kind}s"), body)[kind]]
        return str(found[0]["id"])

    def _identity(self, path: str) -> str:
        return f"{self.layout.auth_url}/{path}"

    def _call(self, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        response = self.session.request(url, method, json=body)
        return dict(response.json()) if response.content else {}


def _query(database: Path, statement: str, *arguments: str) -> tuple[Any, ...] | None:
    """The first row that a query finds; None also while the table does not exist.

    A file that no service has open is read as it is: SQLite's files beside it would be made by root
    here, and be read-only for a service that opens them before they are given to its user.
    """
    is_open = database.with_name(f"{database.name}-wal").exists()
    how = "mode=ro" if is_open else "mode=ro&immutable=1"
    with contextlib.suppress(sqlite3.DatabaseError):
        connection = sqlite3.connect(f"file:{database}?{how}", uri=True, timeout=10)
        with contextlib.closing(connection):
            row: tuple[Any, ...] | None = connection.execute(statement, arguments).fetchone()
            return row
    return None


def compute_registered(layout: Layout, host: Host, since: float) -> bool:
    """Whether the nova-compute started at `since` has reported and takes servers."""
    # Times are kept in whole seconds. What was noted in the second of the start is of the one
    # before it; servers asked for before this one looks for stuck ones go to ERROR.
    started = datetime.fromtimestamp(int(since) + 1, UTC)
    oldest = datetime.now(UTC) - HEARTBEAT_AGE
    cell = layout.database("nova_cell1")
    return bool(
        _query(
            cell,
            "SELECT 1 FROM compute_nodes WHERE deleted = 0 AND host = ?"
            " AND COALESCE(updated_at, created_at) >= ?",
            host.hostname, _stamp(started),
        )
        and _query(
            cell,
            "SELECT 1 FROM services WHERE deleted = 0 AND binary = 'nova-compute' AND host = ?"
            " AND COALESCE(last_seen_up, created_at) >= ?",
            host.hostname, _stamp(oldest),
        )
        and _query(
            layout.database("nova_api"),
            "SELECT 1 FROM host_mappings WHERE host = ?",
            host.hostname,
        )
    )  # fmt: skip


def statistics(layout: Layout, host: Host) -> dict[str, str]:
    """What a host's nova-compute published last in the statistics that Nova keeps of it."""
    found = _query(layout.database("nova_cell1"),
                   "SELECT stats FROM compute_nodes WHERE deleted = 0 AND host = ?",
                   host.hostname)  # fmt: skip
    return dict(json.loads(found[0] or "{}")) if found else {}


def snapshots_under_way(state: Path) -> bool:
    """Whether the storage service that has this state directory has rows of snapshots.

    It may be one of another mount namespace, below /proc/PID/root, where SQLite, which resolves
    that link, finds nothing: a copy is read.

    :raises sqlite3.DatabaseError: if that cannot be read.
    """
    with tempfile.TemporaryDirectory() as copy:
        for name in ("bootcache.sqlite", "bootcache.sqlite-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(state / name, copy)
        with contextlib.closing(sqlite3.connect(f"{copy}/bootcache.sqlite")) as connection:
            return bool(connection.execute("SELECT snapshot_id FROM snapshots").fetchone())


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def queue_served(layout: Layout, queue: str) -> bool:
    """Whether some process consumes this queue of the broker."""
    from kombu.connection import Connection
    from kombu.exceptions import KombuError

    url = layout.transport_url.replace("rabbit:", "pyamqp:")
    with Connection(url, connect_timeout=5) as broker:  # type: ignore[no-untyped-call]
        errors = (KombuError, OSError, *broker.channel_errors, *broker.connection_errors)
        try:
            declared = broker.channel().queue_declare(queue, passive=True)
        except errors:
            return False
        return bool(declared.consumer_count)
