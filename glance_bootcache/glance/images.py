"""Glance's API as the storage service uses it: an image's facts, data and state properties."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import glanceclient
from glanceclient import exc
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import properties
from bootcache.exception import ConfigurationError, ServiceAway
from bootcache.manifest import ImageState
from glance_bootcache import away
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.glance import tenants

LOG = logging.getLogger(__name__)

_OWN = ('id', 'status', 'disk_format', 'container_format', 'size', 'os_hash_algo', 'os_hash_value',
        'min_ram', 'min_disk', 'visibility', 'owner', 'name')

# Within that time Glance, Nova and Keystone send the next bytes of an answer, unless
# [service_auth]timeout says otherwise.
_ANSWER_SECONDS = 60
# Values of auth_type that take a password.
_PASSWORDS = ('password', 'v3password', 'v2password')
# Glance writes all of an image's record when a property is changed, the status that it read among
# it. An import or upload that changes the status meanwhile then fails.
_WITH_DATA = frozenset({'active', 'deactivated'})


def session(conf: cfg.ConfigOpts) -> Any:
    """Return a Keystone session with the service's credentials.

    :raises ConfigurationError: if some of them are missing.
    """
    try:
        auth = ks_loading.load_auth_from_conf_options(conf, AUTH_GROUP)
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


def facts(image: Any) -> ImageFacts:
    """Turn Glance's description of an image into plain values."""
    algorithm, value = image.get('os_hash_algo'), image.get('os_hash_value')
    return ImageFacts(
        image_id=image['id'], status=image['status'],
        disk_format=image.get('disk_format') or 'unset',
        container_format=image.get('container_format') or 'unset',
        stored_bytes=image.get('size') or 0,
        image_hash=f'{algorithm}:{value}' if algorithm and value else '',
        min_ram=image.get('min_ram') or 0, min_disk=image.get('min_disk') or 0,
        properties={key: image[key] for key in image if key not in _OWN},
        visibility=image.get('visibility') or '', owner=image.get('owner') or '',
        name=image.get('name') or '')


@dataclasses.dataclass(frozen=True)
class Marked:
    """An image, and the storage service's properties that it has.

    :ivar image_id: its id.
    :ivar name: its name; empty if it has none.
    :ivar names: of those properties.
    """

    image_id: str
    name: str
    names: tuple[str, ...]


def mark(image: Any) -> Marked:
    """Turn Glance's description of an image into what it has of the storage service's. Pure."""
    return Marked(image['id'], image.get('name') or '',
                  tuple(name for name in (properties.STATE, properties.REASON) if name in image))


class Images:
    """Glance's images.

    :param conf: configuration with the credentials.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        region = conf[AUTH_GROUP].region_name
        self._client = glanceclient.Client('2', session=session(conf), region_name=region)
        self._shown_at: float | None = None

    @property
    def shown_at(self) -> float | None:
        """When a property was changed last, in monotonic seconds; None if none was."""
        return self._shown_at

    def get(self, image_id: str) -> ImageFacts | None:
        """Return an image's facts, or None if Glance does not have it.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        try:
            return facts(self._client.images.get(image_id))
        except exc.HTTPNotFound:
            return None

    def download(self, image_id: str) -> Iterable[bytes]:
        """Yield an image's stored bytes in pieces; glanceclient checks their hash as well.

        :raises ServiceAway: if Glance does not give them just now.
        :raises Exception: keystoneauth's or glanceclient's, if it refuses.
        """
        try:
            yield from self._client.images.data(image_id)
        except (exc.BaseException, exc.ClientException, ks_exceptions.ClientException) as error:
            if not away.passes(error):
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

    def marked(self) -> Iterator[Marked]:
        """Yield the images that have a property of the storage service's, hidden ones included.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        for hidden in (False, True):
            for image in self._client.images.list(
                    filters={'visibility': 'all', 'os_hidden': hidden}):
                marked = mark(image)
                if marked.names:
                    yield marked

    def look(self, image_id: str) -> Marked | None:
        """Return what an image has of the storage service's; None if Glance does not have it.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        try:
            return mark(self._client.images.get(image_id))
        except exc.HTTPNotFound:
            return None

    def unmark(self, marked: Marked) -> None:
        """Take the storage service's properties from an image.

        :raises Exception: keystoneauth's or glanceclient's, if Glance refuses.
        """
        self._client.images.update(marked.image_id, remove_props=list(marked.names))

    @staticmethod
    def shows(image: ImageFacts, state: ImageState, reason: str) -> bool:
        """Tell whether ``show_state`` would change nothing of an image. Pure."""
        return image.status not in _WITH_DATA or not _changes(image.properties, state, reason)

    def show_state(self, image_id: str, state: ImageState, reason: str) -> bool:
        """Set ``bootcache_state`` and ``bootcache_reason`` on an image.

        They inform people only, tenants among them: the reason is one of a closed list. The state
        itself is in the image's manifest. An image that is on its way into Glance is left alone: it
        is looked at again when it has come.

        :returns: False if Glance did not take them, which is logged; True also if it does not have
            the image, or not its data.
        """
        try:
            image = self._client.images.get(image_id)
            changes = _changes(image, state, reason) if image['status'] in _WITH_DATA else {}
            if changes:
                self._client.images.update(
                    image_id, remove_props=[key for key, value in changes.items() if not value],
                    **{key: value for key, value in changes.items() if value})
                self._shown_at = time.monotonic()
        except exc.HTTPNotFound:
            pass
        except Exception as error:
            LOG.warning('image %s: %s=%s cannot be set: %s', image_id, properties.STATE,
                        state.value, error)
            return False
        return True


def _changes(present: Mapping[str, Any], state: ImageState, reason: str) -> dict[str, str]:
    """Return the properties that are to be set for a state, or removed if they are empty."""
    wanted = {properties.STATE: state.value, properties.REASON: tenants.told(state, reason)}
    return {key: value for key, value in wanted.items() if present.get(key, '') != value}
