"""``bootcache host``: what the storage service knows of compute hosts."""

import argparse
from typing import Any

from cliff import lister

from bootcache.tier import Medium
from glance_bootcache.cli.client import printable

# Hosts report once a minute; one that missed so much is down, or cannot reach the message bus.
SILENT_SECONDS = 300


class List(lister.Lister):  # type: ignore[misc]
    """List the compute hosts that have reported what they hold.

    A host that was not heard of for more than 5 minutes is silent: it is down, or cannot reach the
    message bus. It is shown with what it held then, and forgotten after a day.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask and tabulate."""
        tiers = [medium.value for medium in Medium]
        columns = ('host', 'seen', 'state', 'images',
                   *(f'{tier}_{what}' for tier in tiers for what in ('bytes', 'quota')))
        return columns, [
            (printable(host['host']), round(host['seen']),
             'silent' if host['seen'] > SILENT_SECONDS else 'reporting', host['images'],
             *(value for tier in tiers
               for value in _used_and_quota(host, tier)))
            for host in self.app.storage_api().list_hosts()]


def _used_and_quota(host: dict[str, Any], tier: str) -> tuple[int | None, int | None]:
    """Return the bytes of a tier, None for both if the host has no such tier."""
    quota, used = host['quotas'].get(tier), host['bytes'].get(tier)
    return (None, None) if quota is None and used is None else (used or 0, quota)
