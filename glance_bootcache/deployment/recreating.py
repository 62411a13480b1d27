"""What Nova is asked for to start a server again, and what cannot be given again. Pure."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bootcache.exception import BootcacheError
from glance_bootcache.deployment.checkpoint import SavedServer
from glance_bootcache.deployment.choice import RESUMED


@dataclasses.dataclass(frozen=True)
class Nics:
    """One way to connect a server.

    :ivar nics: as novaclient's create takes it.
    :ivar note: what is not given again that way; empty if all is.
    """

    nics: str | tuple[dict[str, str], ...]
    note: str = ''


def ways(saved: SavedServer, original_is_there: bool) -> list[Nics]:
    """Return the ways to connect a server, the best one first.

    A port that was made for the server goes with it, one that somebody else had made stays; an
    address is free again when its port is gone. Nova tells when it is asked.
    """
    networks = saved.networks
    if not networks:
        return [Nics('none')]
    told = ', '.join(address for one in networks for address in one.addresses)
    last = Nics(tuple({'net-id': one.network_id} for one in networks),
                f'it has other addresses than {told or "before"}, which '
                + (f'server {saved.server_id} has still' if original_is_there
                   else 'are in use, or cannot be given'))
    if original_is_there:
        return [last]
    return [Nics(tuple({'port-id': one.port_id} for one in networks)),
            Nics(tuple({'net-id': one.network_id, **_fixed(one.addresses)} for one in networks)),
            last]


def _fixed(addresses: Sequence[str]) -> dict[str, str]:
    """Return what asks for fixed addresses: Nova takes one of each kind."""
    found: dict[str, str] = {}
    for address in addresses:
        found.setdefault('v6-fixed-ip' if ':' in address else 'v4-fixed-ip', address)
    return found


def mark(checkpoint: str, suffix: str) -> str:
    """Return the metadata of servers that were resumed together.

    With another suffix a checkpoint is another deployment, beside the first one.
    """
    return f'{checkpoint}{suffix}'


def request(saved: SavedServer, marked: str, keys: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Return more arguments for novaclient's create, and what is not given again, in words.

    :param marked: of :func:`mark`.
    :param keys: names of the user's key pairs.
    """
    more: dict[str, Any] = {'meta': {**saved.metadata, RESUMED: marked}}
    lost = list(saved.notes)
    if saved.key_name and saved.key_name in keys:
        more['key_name'] = saved.key_name
    elif saved.key_name:
        lost.append(f'key pair {saved.key_name} is not one of this user\'s; the disk has the key')
    if saved.networks and saved.security_groups:
        more['security_groups'] = list(saved.security_groups)
    if saved.tags:
        more['tags'] = list(saved.tags)
    if saved.description:
        more['description'] = saved.description
    if saved.user_data:
        # novaclient encodes it again.
        more['userdata'] = base64.b64decode(saved.user_data)
    if saved.config_drive:
        more['config_drive'] = True
    return more, lost


def flavor(saved: SavedServer, flavors: Mapping[str, Any]) -> Any:
    """Return the flavor of a server.

    :param flavors: by name, as novaclient has them.
    :raises BootcacheError: if there is none of its name, or it has become a smaller one.
    """
    name = saved.flavor['name']
    found = flavors.get(name)
    if found is None:
        raise BootcacheError(f'there is no flavor {name} any more; make it again:'
                             f' "openstack flavor create --vcpus {saved.flavor["vcpus"]} --ram'
                             f' {saved.flavor["ram"]} --disk {saved.flavor["disk"]} {name}"')
    if 0 < found.disk < saved.flavor['disk']:
        raise BootcacheError(f'flavor {name} has {found.disk} GiB of disk now, and the snapshot is'
                             f' of one with {saved.flavor["disk"]}; make a flavor {name} of that'
                             ' size')
    return found


def hosts_for(number: int, saved: SavedServer, candidates: Sequence[str] | None,
              others: bool) -> list[str | None]:
    """Return the hosts to try for a server, in this order; None leaves it to Nova.

    :param number: of the server, by which they are spread.
    :param candidates: the hosts that may be; None for any that Nova chooses.
    :param others: not the host that it ran on.
    :raises BootcacheError: if there is none.
    """
    if candidates is None:
        return [None]
    those = [host for host in candidates if not (others and host == saved.host)]
    if not those:
        raise BootcacheError('no compute host that may be takes servers; "openstack compute service'
                             ' list" shows them')
    first = number % len(those)
    return [*those[first:], *those[:first]]
