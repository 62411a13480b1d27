"""Which servers are meant, which of them can be snapshotted, and what is kept of them. Pure."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_utils import uuidutils

from bootcache.exception import BootcacheError
from bootcache.quoting import one_line
from bootcache.rpc import messages
from glance_bootcache.deployment.checkpoint import Network, SavedServer

# Of a server that was resumed: of which checkpoint, and of which server of it.
RESUMED = 'bootcache_resumed'
# Of a snapshot's image: of which checkpoint.
CHECKPOINT = 'bootcache_checkpoint'
# Those in which Nova takes a snapshot.
_FIT = ('ACTIVE', 'SHUTOFF', 'PAUSED', 'SUSPENDED')
# Of queries to Nova, each of which has one host, project and server.
_MOST_QUERIES = 2000
_MOST_NAMED = 10


@dataclasses.dataclass(frozen=True)
class WantedServers:
    """Which servers are meant: those that are each of what is given.

    :ivar servers: ids or names; empty for any.
    :ivar projects: ids; empty for any.
    :ivar hosts: those of the aggregates; None for any.
    """

    servers: tuple[str, ...]
    projects: tuple[str, ...]
    hosts: tuple[str, ...] | None


def queries(wanted: WantedServers) -> list[dict[str, str]]:
    """Return what Nova is asked for, as search options.

    :raises BootcacheError: if it were too many questions.
    """
    hosts: Sequence[str | None] = (None,) if wanted.hosts is None else wanted.hosts
    if len(hosts) * max(len(wanted.projects), 1) * max(len(wanted.servers), 1) > _MOST_QUERIES:
        raise BootcacheError('so many servers, projects and hosts at once are too many; make'
                             ' several snapshots of fewer')
    found = []
    for server, project, host in itertools.product(wanted.servers or (None,),
                                                   wanted.projects or (None,), hosts):
        query = {}
        if server is not None and uuidutils.is_uuid_like(server):
            query['uuid'] = server
        elif server is not None:
            query['name'] = f'^{re.escape(server)}$'
        if project is not None:
            query['project_id'] = project
        if host is not None:
            query['host'] = host
        found.append(query)
    return found


def choose(wanted: WantedServers, found: Sequence[Mapping[str, Any]],
           most: int) -> list[dict[str, Any]]:
    """Return the servers that are meant, each once, in the order of their names.

    :param found: Nova's answers.
    :param most: that may be meant.
    :raises BootcacheError: if there is none, too many, or not exactly one of a name.
    """
    servers = {server['id']: dict(server) for server in found
               if messages.PROFILE_METADATA not in server.get('metadata', {})}
    for name in wanted.servers:
        those = [server for server in servers.values() if name in (server['id'], server['name'])]
        if not those:
            raise BootcacheError(f'there is no server {one_line(name)}'
                                 + (' of that project or aggregate'
                                    if wanted.projects or wanted.hosts is not None else '')
                                 + '; "openstack server list --all-projects" shows them')
        if len(those) > 1:
            ids = ', '.join(server['id'] for server in those[:_MOST_NAMED])
            raise BootcacheError(f'{len(those)} servers are named {one_line(name)}: give the id of'
                                 f' one ({ids}), or --project')
    if not servers:
        names = ', '.join(map(one_line, wanted.projects[:_MOST_NAMED]))
        raise BootcacheError('there is no such server'
                             + (f' of project {names}, which has to be an id ("openstack project'
                                ' show" tells it)' if names else '')
                             + '; "openstack server list --all-projects" shows them, with "--host'
                             ' HOST" those of a host')
    if len(servers) > most:
        raise BootcacheError(f'these are more than {most} servers; choose fewer, or allow more'
                             ' with --most')
    return sorted(servers.values(), key=lambda server: (server['name'], server['id']))


def refusal(server: Mapping[str, Any]) -> str:
    """Return why no snapshot of a server can be taken, with the cure; empty if one can."""
    if not server.get('image'):
        return ('it boots from a volume, of which Nova\'s image would be a pointer alone: snapshot'
                ' the volume ("openstack volume snapshot create"), and leave the server out'
                ' (--skip-unfit)')
    if server['status'] not in _FIT:
        return (f'it is {server["status"]}, in which Nova takes no snapshot: bring it to'
                f' {" or ".join(_FIT[:2])} first, or leave it out (--skip-unfit)')
    if server.get('OS-EXT-STS:task_state'):
        return (f'Nova is at work on it ({server["OS-EXT-STS:task_state"]}): run this again in a'
                ' while, or leave it out (--skip-unfit)')
    return ''


def keep(server: Mapping[str, Any], networks: Sequence[Network], checkpoint: str) -> SavedServer:
    """Return what is kept of a server.

    :param server: as Nova shows it since microversion 2.47.
    :param networks: that it is connected to.
    :param checkpoint: id of the checkpoint.
    """
    flavor = server['flavor']
    volumes = tuple(one['id'] for one in server.get('os-extended-volumes:volumes_attached', ()))
    return SavedServer(
        server_id=server['id'], name=server['name'], project_id=server.get('tenant_id', ''),
        host=server.get('OS-EXT-SRV-ATTR:host') or '',
        availability_zone=server.get('OS-EXT-AZ:availability_zone') or '',
        flavor={'name': flavor['original_name'], 'vcpus': flavor['vcpus'], 'ram': flavor['ram'],
                'disk': flavor['disk'], 'ephemeral': flavor.get('ephemeral', 0),
                'swap': flavor.get('swap') or 0},
        networks=tuple(networks), key_name=server.get('key_name') or '',
        security_groups=tuple(dict.fromkeys(
            group['name'] for group in server.get('security_groups') or ())),
        metadata={name: value for name, value in server.get('metadata', {}).items()
                  if name != RESUMED},
        tags=tuple(server.get('tags') or ()), description=server.get('description') or '',
        user_data=server.get('OS-EXT-SRV-ATTR:user_data') or '',
        config_drive=bool(server.get('config_drive')), volumes=volumes,
        notes=tuple(_notes(server, volumes)),
        image_name=f'{server["name"][:200]}-{checkpoint[:8]}')


def _notes(server: Mapping[str, Any], volumes: Sequence[str]) -> list[str]:
    found = [f'volume {volume} is not in the snapshot: snapshot it ("openstack volume snapshot'
             ' create --force"), and attach a copy' for volume in volumes]
    for name, unit in (('ephemeral', 'GiB'), ('swap', 'MiB')):
        if size := server['flavor'].get(name):
            found.append(f'its {name} disk of {size} {unit} is not in the snapshot: the server that'
                         ' is resumed has an empty one')
    if groups := server.get('server_groups'):
        found.append(f'it is in server group {groups[0]}, which is not given again')
    return found
