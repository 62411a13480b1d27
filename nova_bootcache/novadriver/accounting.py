"""What cache images take of a host's space in Placement, and what Nova counts of it."""

from collections.abc import Mapping
from typing import Any

_UNITS = {'DISK_GB': 1 << 30, 'MEMORY_MB': 1 << 20}


def with_reserve(inventory: Mapping[str, Mapping[str, Any]],
                 quotas: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return an inventory in which the tiers' quotas are reserved, beside what Nova reserves.

    All of a quota, whatever is in the tier now: the rest may come with the next boot. No more than
    there is can be reserved. Pure.

    :param inventory: by resource class, as Nova has it.
    :param quotas: bytes by resource class, DISK_GB and MEMORY_MB.
    """
    changed = {name: dict(fields) for name, fields in inventory.items()}
    for name, quota in quotas.items():
        if name in changed:
            reserved = changed[name].get('reserved', 0) + -(-quota // _UNITS[name])
            changed[name]['reserved'] = min(reserved, changed[name]['total'])
    return changed


def reserve(provider_tree: Any, nodename: str, quotas: Mapping[str, int]) -> None:
    """Reserve the tiers' quotas in what Nova is about to report.

    :param provider_tree: Nova's.
    :param nodename: of this host in it.
    :param quotas: as for ``with_reserve``.
    """
    inventory = provider_tree.data(nodename).inventory
    reserved = with_reserve(inventory, quotas)
    if reserved != inventory:
        provider_tree.update_inventory(nodename, reserved)


def statistics(virtapi: Any, node: str) -> dict[str, Any]:
    """Return the statistics that Nova's resource tracker has of a node now; private in Nova.

    :param virtapi: what Nova's compute manager gives to its driver; another's has none.
    """
    try:
        return dict(virtapi._compute.rt.stats.get(node) or {})
    except AttributeError:
        return {}
