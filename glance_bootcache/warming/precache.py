"""Nova's precache API: have the hosts of an aggregate fetch an image before a server asks."""

import contextlib
import dataclasses
import http
from collections.abc import Iterator, Mapping

from keystoneauth1 import exceptions as ks_exceptions
from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from oslo_config import cfg

from bootcache.exception import RequestRefused
from glance_bootcache import away
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.glance import images

# The first one that has the API.
_API_VERSION = '2.81'


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """A host aggregate.

    :ivar number: Nova's id.
    :ivar hosts: names of its compute hosts.
    """

    number: int
    hosts: tuple[str, ...]


def find(aggregates: Mapping[str, Aggregate], name: str) -> Aggregate:
    """Return the aggregate of a name.

    :raises RequestRefused: if there is none; it tells which there are.
    """
    if name not in aggregates:
        there = ', '.join(sorted(aggregates)) or 'none'
        raise RequestRefused(
            f'there is no aggregate {name}; "openstack aggregate list" shows: {there[:500]}')
    return aggregates[name]


class NovaPrecache:
    """Asks Nova, with the storage service's credentials.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._client = nova_client.Client(_API_VERSION, session=images.session(conf),
                                          region_name=conf[AUTH_GROUP].region_name)

    def aggregates(self) -> dict[str, Aggregate]:
        """Return all aggregates, by name.

        :raises RequestRefused: if Nova refuses to tell.
        :raises Exception: keystoneauth's or novaclient's, if Nova does not answer.
        """
        with _refusals('list aggregates'):
            return {aggregate.name: Aggregate(aggregate.id, tuple(aggregate.hosts))
                    for aggregate in self._client.aggregates.list()}

    def ask(self, aggregate: Aggregate, image_id: str) -> None:
        """Have Nova ask all hosts of an aggregate that are up; it does not wait for them.

        :raises RequestRefused: if Nova refuses.
        :raises Exception: keystoneauth's or novaclient's, if Nova does not answer.
        """
        with _refusals('precache an image'):
            self._client.aggregates.cache_images(aggregate.number, [image_id])


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Tell what Nova or Keystone refuses from that they do not answer."""
    try:
        yield
    except (nova_exceptions.ClientException, ks_exceptions.ClientException) as error:
        if away.passes(error):
            raise
        cure = '; the user in [service_auth] needs the role admin' \
            if away.status(error) == http.HTTPStatus.FORBIDDEN else ''
        raise RequestRefused(f'Nova refuses to {what}: {error}{cure}') from error
