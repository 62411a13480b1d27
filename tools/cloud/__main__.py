"""Bring a real OpenStack up and down: python -m tools.cloud up|down|status|env|restart."""

import argparse
import sys

from tools.cloud.bootcache import DRIVER, STOCK_DRIVER, BootcacheCloud
from tools.cloud.cloud import print_progress
from tools.cloud.config import openrc
from tools.cloud.layout import MOST_HOSTS, default_home, recorded_hosts
from tools.cloud.processes import ServiceError


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.cloud",
        description="A real OpenStack on loopback, in $BOOTCACHE_HOME/cloud.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start what does not run yet")
    up.add_argument("--stock", action="store_true", help="nova-compute with Nova's own driver")
    up.add_argument("--hosts", type=int, choices=range(1, MOST_HOSTS + 1),
                    help="compute hosts (default: as many as it had, else 1)")  # fmt: skip
    down = commands.add_parser("down", help="stop everything, guests too")
    down.add_argument("--wipe", action="store_true", help="remove all files of the cloud")
    commands.add_parser("status", help="list the services and guests")
    env = commands.add_parser("env", help="print the environment of the openstack client")
    env.add_argument("--user", choices=("admin", "demo"), default="admin")
    restart = commands.add_parser("restart", help="stop and start one service")
    restart.add_argument("service")
    return parser.parse_args()


def status(cloud: BootcacheCloud) -> int:
    """Print the services; 0 when all run."""
    services = cloud.services()
    for name, pid in services.items():
        print(f"{name:16} {pid or '-'}")
    for pid in cloud.guests():
        print(f"{'guest':16} {pid}")
    return 0 if all(services.values()) else 1


def run(cloud: BootcacheCloud, options: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    if options.command == "up":
        cloud.up(STOCK_DRIVER if options.stock else DRIVER)
    elif options.command == "down":
        cloud.down(wipe=options.wipe)
    elif options.command == "env":
        print(openrc(cloud.layout, options.user), end="")
    elif options.command == "restart":
        cloud.restart(options.service)
        cloud.progress(f"{options.service} is ready")
    else:
        return status(cloud)
    return 0


def main() -> int:
    options = parse_arguments()
    try:
        hosts = getattr(options, "hosts", None) or recorded_hosts(default_home())
        return run(BootcacheCloud(progress=print_progress(), hosts=hosts), options)
    except (ServiceError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
