"""Nova and Glance as snapshots and restarts of many servers ask them.

Nova's microversion is 2.79, which Nova 31 to 34 all have: 2.45 tells a snapshot's image at once,
2.47 shows flavors by their size, 2.74 starts a server on a host that is named.
"""

import argparse
import contextlib
import dataclasses
import http
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import glanceclient
from glanceclient import exc as glance_exceptions
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from keystoneauth1 import session as ks_session
from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from oslo_config import cfg

from bootcache.exception import BootcacheError, ConfigurationError
from bootcache.quoting import one_line
from glance_bootcache import away
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.deployment.checkpoint import Network
from glance_bootcache.deployment.choice import CHECKPOINT
from glance_bootcache.deployment.steps import Seen
from glance_bootcache.glance import images

API_VERSION = '2.79'
_ERRORS = (ks_exceptions.ClientException, nova_exceptions.ClientException,
           glance_exceptions.ClientException)
_GONE = (nova_exceptions.NotFound, glance_exceptions.HTTPNotFound)
# Of a checkpoint in Glance, looked at for the images of servers.
_MOST_IMAGES = 10_000
_ANSWER_SECONDS = 60


class CloudRefused(BootcacheError):
    """Nova, Glance or Keystone has refused, or does not answer.

    :ivar status: HTTP's; 0 if there was no answer.
    :ivar passes: whether the same may be answered otherwise in a while.
    """

    def __init__(self, text: str, status: int, passes: bool):
        super().__init__(text)
        self.status = status
        self.passes = passes


@dataclasses.dataclass(frozen=True)
class DeploymentLimits:
    """How much is asked of Nova, and how often.

    :ivar at_once: requests that are under way at a time.
    :ivar tries: for each server.
    :ivar timeout: seconds.
    """

    at_once: int
    tries: int
    timeout: float


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        status = away.status(error)
        # A conflict is about what Nova does with the server at the moment.
        raise CloudRefused(f'{what}: {one_line(error)}', status,
                           away.passes(error) or status == http.HTTPStatus.CONFLICT) from error


class Cloud:
    """Asks Nova and Glance; may be used by several threads at once.

    Each method raises CloudRefused if it is refused, or not answered.

    :param session: of Keystone.
    :param region: that is asked; None for the only one.
    """

    def __init__(self, session: Any, region: str | None):
        self._session = session
        self._nova = nova_client.Client(API_VERSION, session=session, region_name=region)
        self._glance = glanceclient.Client('2', session=session, region_name=region)

    @_told('Keystone refuses')
    def project(self) -> str:
        """Return the id of the project as which it asks."""
        return str(self._session.get_project_id())

    @_told('Nova does not list aggregates')
    def hosts_of(self, aggregates: Sequence[str]) -> tuple[str, ...]:
        """Return the hosts of aggregates; Nova lists these to administrators only.

        :param aggregates: names.
        :raises BootcacheError: if there is no such aggregate, or none of its hosts.
        """
        known = {one.name: one.hosts for one in self._nova.aggregates.list()}
        for name in aggregates:
            if name not in known:
                there = ', '.join(sorted(known)) or 'none'
                raise BootcacheError(f'there is no aggregate {name}; "openstack aggregate list"'
                                     f' shows: {there[:500]}')
        hosts = tuple(dict.fromkeys(host for name in aggregates for host in known[name]))
        if not hosts:
            raise BootcacheError(f'aggregate {", ".join(aggregates)} has no host; "openstack'
                                 ' aggregate add host" adds one')
        return hosts

    @_told('Nova does not list compute hosts')
    def hosts_up(self) -> list[str]:
        """Return the names of compute hosts that take servers; for administrators only."""
        return sorted(one.host for one in self._nova.services.list(binary='nova-compute')
                      if one.status == 'enabled' and one.state == 'up')

    @_told('Nova does not list availability zones')
    def zones(self) -> set[str]:
        """Return the availability zones in which servers can be started."""
        return {one.zoneName for one in self._nova.availability_zones.list(detailed=False)
                if one.zoneState.get('available')}

    @_told('Nova does not list flavors')
    def flavors(self) -> dict[str, Any]:
        """Return the flavors, by name."""
        return {one.name: one for one in self._nova.flavors.list(is_public=None)}

    @_told('Nova does not list key pairs')
    def keys(self) -> set[str]:
        """Return the names of the user's key pairs."""
        return {one.name for one in self._nova.keypairs.list()}

    @_told('Nova does not list servers')
    def find(self, query: Mapping[str, str], most: int) -> list[dict[str, Any]]:
        """Return servers of all projects, as far as who asks may see them.

        :param query: search options.
        :param most: servers; where there are more, one more is returned.
        """
        try:
            found = self._nova.servers.list(search_opts={**query, 'all_tenants': True},
                                            limit=most + 1)
        except nova_exceptions.Forbidden:
            if 'host' in query or 'project_id' in query:
                raise
            found = self._nova.servers.list(search_opts=dict(query), limit=most + 1)
        return [one.to_dict() for one in found[:most + 1]]

    @_told('Nova does not show the server')
    def details(self, server: str) -> dict[str, Any] | None:
        """Return a server as Nova shows it; None if there is no such server."""
        try:
            return dict(self._nova.servers.get(server).to_dict())
        except nova_exceptions.NotFound:
            return None

    @_told('Nova does not list the server\'s ports')
    def networks(self, server: Mapping[str, Any]) -> list[Network]:
        """Return what a server is connected to."""
        if not server.get('addresses'):
            return []
        return [Network(one.net_id, one.port_id,
                        tuple(address['ip_address'] for address in one.fixed_ips))
                for one in self._nova.servers.interface_list(server['id'])]

    def see(self, server: str, image: str) -> Seen | None:
        """Look at a server and the image of its snapshot.

        :param image: empty if there is none yet.
        :returns: None if there is no such server.
        """
        # The image first: Nova ends its work on a server when the image is as it will be.
        status = self.image_status(image) if image else None
        found = self.details(server)
        if found is None:
            return None
        return Seen(found['status'], found.get('OS-EXT-STS:task_state') or '', status)

    @_told('Glance does not show the image')
    def image_status(self, image: str) -> str | None:
        """Return an image's status; None if there is no such image."""
        try:
            return str(self._glance.images.get(image)['status'])
        except glance_exceptions.HTTPNotFound:
            return None

    @_told('Glance does not list images')
    def images_of(self, checkpoint: str) -> dict[str, str]:
        """Return the ids of a checkpoint's images by server, as far as there are any.

        Those of the project as which it asks, as Nova makes them: an administrator is shown others'
        images as well, on which these have written what they like.
        """
        project = self.project()
        return {image.get('instance_uuid') or '': image['id'] for image in self._glance.images.list(
                    filters={CHECKPOINT: checkpoint}, limit=_MOST_IMAGES)
                if image.get('owner') == project
                and image['status'] in ('active', 'queued', 'saving', 'importing')}

    @_told('Nova does not pause it')
    def pause(self, server: str) -> None:
        """Pause a server."""
        self._nova.servers.pause(server)

    @_told('Nova does not unpause it')
    def unpause(self, server: str) -> None:
        """Have a server go on."""
        self._nova.servers.unpause(server)

    @_told('Nova takes no snapshot')
    def snapshot(self, server: str, name: str, checkpoint: str) -> str:
        """Ask for a snapshot; the id of its image, which comes later."""
        return str(self._nova.servers.create_image(server, name, {CHECKPOINT: checkpoint}))

    @_told('Glance does not delete the image')
    def delete_image(self, image: str) -> None:
        """Delete an image, unless it is gone."""
        with contextlib.suppress(*_GONE):
            self._glance.images.delete(image)

    @_told('Nova does not list servers')
    def servers_of(self, image: str) -> list[dict[str, Any]]:
        """Return the project's servers of an image, of whatever state."""
        return [one.to_dict() for one in self._nova.servers.list(search_opts={'image': image})]

    @_told('Nova does not start it')
    def create(self, name: str, image: str, flavor: Any, nics: Sequence[Mapping[str, str]] | str,
               more: Mapping[str, Any]) -> str:
        """Ask for a server; its id.

        :param more: as novaclient's create takes it.
        """
        return str(self._nova.servers.create(
            name, image, flavor, **more, nics=nics if isinstance(nics, str) else list(nics)).id)

    @_told('Nova does not delete it')
    def delete(self, server: str) -> None:
        """Delete a server, unless it is gone."""
        with contextlib.suppress(*_GONE):
            self._nova.servers.delete(server)


def open_session(read_conf: Callable[[], cfg.ConfigOpts],
                 connections: int) -> tuple[Any, str | None]:
    """Return a Keystone session and the region that is asked.

    :param read_conf: reads the storage service's configuration, if it is needed.
    :param connections: requests that may be under way at once.
    :raises ConfigurationError: if something is missing or wrong.
    """
    if os.environ.get('OS_AUTH_URL'):
        session, region = _of_the_shell(), os.environ.get('OS_REGION_NAME') or None
    else:
        conf = read_conf()
        session, region = images.session(conf), conf[AUTH_GROUP].region_name
    adapter = ks_session.TCPKeepAliveAdapter(pool_maxsize=connections)
    for scheme in ('http://', 'https://'):
        session.session.mount(scheme, adapter)
    return session, region


def _of_the_shell() -> Any:
    """Return a session as the OS_* variables say: keystoneauth's options have them as defaults."""
    arguments = ['--os-auth-type', os.environ.get('OS_AUTH_TYPE') or 'password']
    parser = argparse.ArgumentParser()
    try:
        ks_loading.register_session_argparse_arguments(parser)
        ks_loading.register_auth_argparse_arguments(parser, arguments)
        options = parser.parse_args(arguments)
        return ks_loading.load_session_from_argparse_arguments(
            options, auth=ks_loading.load_auth_from_argparse_arguments(options),
            timeout=_ANSWER_SECONDS,
            insecure=os.environ.get('OS_INSECURE', '').lower() in ('1', 'true', 'yes'))
    except (ks_exceptions.ClientException, ValueError) as error:
        raise ConfigurationError(
            f'the OS_* variables of the shell cannot be used: {error}; source your openrc, or unset'
            f' OS_AUTH_URL to use [{AUTH_GROUP}] of the configuration') from error
