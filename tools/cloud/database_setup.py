"""Make the databases of one OpenStack project; run as a program of its own.

The projects' own management commands do this too, but each of their steps is a process that first
imports the whole project for seconds. Here one process does all the steps of a project.
"""

import argparse
import sys
from collections.abc import Callable


def keystone(config_file: str, password: str, url: str, region: str) -> None:
    """Schema, keys, and the administrator with Keystone's own catalog entry."""
    from keystone.cmd import cli
    from oslo_config import cfg

    def run(*command: str) -> None:
        cli.main(["keystone-manage", "--config-file", config_file, *command])
        cfg.CONF.clear()

    keys = ("--keystone-user", "root", "--keystone-group", "root")
    run("db_sync")
    run("fernet_setup", *keys)
    run("credential_setup", *keys)
    urls = [part for kind in ("admin", "internal", "public")
            for part in (f"--bootstrap-{kind}-url", url)]  # fmt: skip
    run("bootstrap", "--bootstrap-password", password, "--bootstrap-region-id", region, *urls)


def placement(config_file: str) -> None:
    """Schema."""
    from placement.cmd import manage

    sys.argv = ["placement-manage", "--config-file", config_file, "db", "sync"]
    if manage.main():
        raise SystemExit("placement-manage db sync failed")


def glance(config_file: str) -> None:
    """Schema."""
    from glance.cmd import manage

    sys.argv = ["glance-manage", "--config-file", config_file, "db_sync"]
    if manage.main():
        raise SystemExit("glance-manage db_sync failed")


def nova(config_file: str, cell0: str, cell1: str, transport_url: str) -> None:
    """Schemas, and the two cells."""
    from nova import config, objects
    from nova.cmd import manage

    config.parse_args(["nova-manage", "--config-file", config_file])
    objects.register_all()
    manage.ApiDbCommands().sync()
    cells = manage.CellV2Commands()
    if cells.map_cell0(cell0):
        raise SystemExit("mapping cell0 failed")
    # 2 means that it exists already.
    if cells.create_cell("cell1", cell1, transport_url) not in (None, 0, 2):
        raise SystemExit("creating cell1 failed")
    manage.DbCommands().sync()


PROJECTS: dict[str, Callable[..., None]] = {
    "keystone": keystone,
    "placement": placement,
    "glance": glance,
    "nova": nova,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", choices=PROJECTS)
    parser.add_argument("arguments", nargs="+", metavar="ARGUMENT")
    options = parser.parse_args()
    sys.argv = sys.argv[:1]
    PROJECTS[options.project](*options.arguments)


if __name__ == "__main__":
    main()
