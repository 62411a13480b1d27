"""The databases of the cloud: files of SQLite."""

import contextlib
import shutil
import sqlite3
import subprocess

from tools.cloud.layout import REGION, SERVICE_TAG, TOOLS, VENV, Layout, database_user
from tools.cloud.processes import Daemons, ServiceError, kill_all
from tools.cloud.services import confined

DATABASES = ("keystone", "placement", "glance", "nova_api", "nova_cell0", "nova_cell1")


def make(layout: Layout, daemons: Daemons, project: str) -> None:
    """Make the databases of one project: keystone, placement, glance or nova."""
    name = f"database-{project}"
    # What an interrupted attempt left cannot be continued.
    kill_all(daemons.leftovers(name))
    user = database_user(project)
    for database_name in DATABASES:
        if database_name.startswith(project):
            file = layout.database(database_name)
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.chown(file.parent, user)
            for suffix in ("", "-wal", "-shm"):
                file.with_name(file.name + suffix).unlink(missing_ok=True)
            # Write-ahead logging is a property of the file.
            with contextlib.closing(sqlite3.connect(file)) as database:
                database.execute("PRAGMA journal_mode=WAL")
            shutil.chown(file, user)
    arguments = {
        "keystone": ["keystone.conf", layout.password, layout.auth_url, REGION],
        "placement": ["placement.conf"],
        "glance": ["glance-api.conf"],
        "nova": ["databases.conf", *map(layout.database_url, ("nova_cell0", "nova_cell1")),
                 layout.transport_url],
    }[project]  # fmt: skip
    arguments[0] = str(layout.etc / project / arguments[0])
    command = [str(VENV / "bin" / "python"), "-P", str(TOOLS / "database_setup.py")]
    with daemons.log_file(name).open("w") as log:
        done = subprocess.run(
            [*confined(layout, user), *command, project, *arguments],
            env={**layout.openstack_process_environment(), SERVICE_TAG: name},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
        )  # fmt: skip
    if done.returncode:
        raise ServiceError(f"{name} failed; the end of its log:\n{daemons.tail(name)}")
