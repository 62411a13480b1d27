"""Glance's API as the storage service uses it: an image's facts, data and state properties."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import glanceclient
from glanceclient import exc
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from oslo_config import cfg
from oslo_utils import timeutils

from bootcache import properties
from bootcache.exception import ConfigurationError, ServiceAway
from glance_bootcache import away
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.imagefacts import ImageFacts

_OWN = ('id', 'status', 'disk_format', 'container_format', 'size', 'os_hash_algo', 'os_hash_value',
        'min_ram', 'min_disk', 'visibility', 'owner', 'name', 'updated_at')

# Within that time Glance, Nova and Keystone send the next bytes of an answer, unless
# [service_auth]timeout says otherwise.
_ANSWER_SECONDS = 60
# Values of auth_type that take a password.
_PASSWORDS = ('password', 'v3password', 'v2password')
# Glance writes all of an image's record when a property is changed, as it has read it: status,
# hash and locations. What changes these meanwhile fails, or is lost.
_WITH_DATA = frozenset({'active', 'deactivated'})
_AT_WORK = ('os_glance_import_task', 'os_glance_importing_to_stores')
# The properties on which it depends whether the storage service writes its own.
WATCHED = (properties.STATE, properties.REASON, *_AT_WORK)
# After which a hash that is missing will never come, as do_secure_hash was off.
_HASH_SECONDS = 3600
_MOST_LISTED = 100_000


def session(conf: cfg.ConfigOpts) -> Any:
    """Return a Keystone session with the service's credentials.

    :raises ConfigurationError: if some of them are missing.
    """
    try:
        auth = ks_loading.load_auth_from_conf_options(conf, AUTH_GROUP)
    except ks_exceptions.NoMatchingPlugin as error:
        raise ConfigurationError(f'[{AUTH_GROUP}]auth_type={conf[AUTH_GROUP].auth_type}: {error};'
                                 ' as a rule it is password') from error
    except ks_exceptions.AuthPluginException as error:
        raise ConfigurationError(f'[{AUTH_GROUP}]: {error}; complete the credentials of the storage'
                                 ' service\'s user there') from error
    group = conf[conf[AUTH_GROUP].auth_section or AUTH_GROUP]
    # keystoneauth says it with the first request, by an error of no class of its own.
    if group.auth_type in _PASSWORDS and group.password is None:
        raise ConfigurationError(f'[{AUTH_GROUP}]password is not set; give that of the storage'
                                 ' service\'s user')
    found = ks_loading.load_session_from_conf_options(conf, AUTH_GROUP, auth=auth)
    # One that takes a connection and never answers would hold up all that waits its turn.
    found.timeout = found.timeout or _ANSWER_SECONDS
    return found


def client(conf: cfg.ConfigOpts) -> Any:
    """Return a client of Glance with the service's credentials.

    :raises ConfigurationError: if some of them are missing.
    """
    return glanceclient.Client('2', session=session(conf),
                               region_name=conf[AUTH_GROUP].region_name)


def facts(image: Any) -> ImageFacts:
    """Turn Glance's description of an image into plain values."""
    algorithm, value = image.get('os_hash_algo'), image.get('os_hash_value')
    return ImageFacts(
        # Who registers an image may choose its id, in capital letters as well.
        image_id=image['id'].lower(), status=image['status'],
        disk_format=image.get('disk_format') or 'unset',
        container_format=image.get('container_format') or 'unset',
        stored_bytes=image.get('size') or 0,
        image_hash=f'{algorithm}:{value}' if algorithm and value else '',
        min_ram=image.get('min_ram') or 0, min_disk=image.get('min_disk') or 0,
        properties={key: image[key] for key in image if key not in _OWN},
        visibility=image.get('visibility') or '', owner=image.get('owner') or '',
        name=image.get('name') or '', updated_at=image.get('updated_at') or '')


def changed_at(image: ImageFacts) -> float:
    """Return when an image was changed last, in seconds since the epoch of Glance's clock. Pure.

    It has not become active since.
    """
    try:
        return float(timeutils.parse_isotime(image.updated_at).timestamp())
    except ValueError:
        return 0.0


def is_at_work(image: ImageFacts, quiet: float) -> bool:
    """Return whether Glance itself is about to change an image's record. Pure.

    :param quiet: seconds since it was changed.
    """
    return image.status not in _WITH_DATA or any(map(image.properties.get, _AT_WORK)) \
        or (not image.image_hash and quiet < _HASH_SECONDS)


def published(image: ImageFacts) -> dict[str, str]:
    """Return the storage service's properties that an image has. Pure."""
    return {name: str(image.properties[name]) for name in (properties.STATE, properties.REASON)
            if name in image.properties}


class Images:
    """Glance's images.

    :param conf: configuration with the credentials.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._client = client(conf)

    def get(self, image_id: str) -> ImageFacts | None:
        """Return an image's facts, or None if Glance does not have it.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        try:
            return facts(self._client.images.get(image_id))
        except exc.HTTPNotFound:
            return None

    def download(self, image_id: str) -> Iterable[bytes]:
        """Yield an image's stored bytes in pieces; whoever takes them checks their hash.

        :raises ServiceAway: if Glance does not give them just now.
        :raises Exception: keystoneauth's or glanceclient's, if it refuses.
        """
        try:
            data = self._client.images.data(image_id, do_checksum=False)
            # Glance's client wraps what it returns, also None.
            if getattr(data, 'wrapped', data) is None:
                raise ServiceAway('Glance does not have the image\'s data (HTTP 204): look at its'
                                  ' store')
            yield from data
        except (exc.BaseException, exc.ClientException, ks_exceptions.ClientException) as error:
            # Whether it is deleted, or a 404 was anybody's, the next look tells.
            if not (away.passes(error) or isinstance(error, exc.HTTPNotFound)):
                raise
            raise ServiceAway(
                f'Glance does not give the image\'s data just now: {away.told(error)}') from error

    def upload(self, image_id: str, stream: BinaryIO, stored_bytes: int) -> None:
        """Give a queued image its data.

        :param stored_bytes: that it has.
        :raises Exception: keystoneauth's or glanceclient's, if Glance does not take it; what the
            stream raises.
        """
        self._client.images.upload(image_id, stream, image_size=stored_bytes)

    def all(self) -> Iterator[ImageFacts]:
        """Yield all images, hidden ones included.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        for hidden in (False, True):
            yield from map(facts, itertools.islice(self._client.images.list(
                filters={'visibility': 'all', 'os_hidden': hidden}), _MOST_LISTED))

    def members(self, image_id: str) -> frozenset[str]:
        """Return the projects that a shared image is shared with.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        try:
            return frozenset(itertools.islice(
                (member['member_id'] for member in self._client.image_members.list(image_id)),
                _MOST_LISTED))
        except exc.HTTPNotFound:
            return frozenset()

    def publish(self, image_id: str, wanted: Mapping[str, str],
                may_write: Callable[[ImageFacts], bool]) -> ImageFacts | None:
        """Have an image have just those of the storage service's properties.

        They inform people only, tenants among them. The state itself is in the image's manifest.

        :param wanted: the properties.
        :param may_write: tells whether the image, as it is now, may be changed.
        :returns: the image as it is then; None if Glance does not have it.
        :raises Exception: keystoneauth's or glanceclient's, if Glance does not take them.
        """
        image = self.get(image_id)
        if image is None or not may_write(image):
            return image
        present = published(image)
        if present == wanted:
            return image
        return facts(self._client.images.update(
            image_id, remove_props=[name for name in present if name not in wanted],
            **{name: value for name, value in wanted.items() if present.get(name) != value}))
