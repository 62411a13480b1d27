"""Small images of the storage service's own, by which it tries what Glance registers."""

import functools
import itertools
import time
from typing import Any

from glanceclient import exc
from oslo_config import cfg

from bootcache import properties
from glance_bootcache.glance import images

NAME = 'bootcache-trial'
_MOST_STORES = 16
_ACTIVE_SECONDS = 30
_ASKED_EACH_SECONDS = 0.2
_LOCK = 'os_glance_import_task'


class TrialImages:
    """Glance as the storage service's user, who needs the role ``service`` for locations.

    :param conf: configuration with the credentials.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._conf = conf

    @functools.cached_property
    def _client(self) -> Any:
        return images.client(self._conf)

    def stores(self) -> list[str]:
        """Return the names of Glance's stores; none where it has one of the old kind.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        try:
            found = self._client.images.get_stores_info()['stores']
        except exc.HTTPNotFound:
            return []
        # The default one first.
        found = sorted(found, key=lambda store: not store.get('default'))
        return [store['id'] for store in found if not store.get('read-only')][:_MOST_STORES]

    def make(self, image_id: str) -> None:
        """Make an image without data that nobody else sees.

        :raises Exception: keystoneauth's or glanceclient's, if Glance refuses.
        """
        self._client.images.create(
            id=image_id, name=NAME, disk_format='raw', container_format='bare',
            visibility='private', os_hidden=True, **{properties.MODE: 'off'})

    def register(self, image_id: str, url: str) -> str:
        """Have Glance register an image, and wait until it has.

        :returns: why it did not, in words; empty if it did.
        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        try:
            # Earlier clients have no method for it.
            self._client.http_client.post(f'/v2/images/{image_id}/locations',
                                          data={'url': url, 'validation_data': {}})
        except exc.HTTPForbidden:
            return ('Glance takes no location from this service\'s user; give it the role service'
                    ' in its project ("openstack role add")')
        except (exc.HTTPNotFound, exc.HTTPBadRequest, exc.HTTPConflict) as error:
            return f'Glance refuses a location: {error}'
        end = time.monotonic() + _ACTIVE_SECONDS
        while time.monotonic() < end:
            image = self._client.images.get(image_id)
            if image['status'] == 'active':
                return ''
            if image['status'] == 'queued' and _LOCK not in image:
                return 'Glance has no store that takes it'
            time.sleep(_ASKED_EACH_SECONDS)
        return ('Glance has not registered it within'
                f' {_ACTIVE_SECONDS} s; look for [oslo_concurrency]lock_path in glance-api.conf')

    def content(self, image_id: str, most: int) -> bytes:
        """Return an image's first bytes, as whoever downloads it gets them.

        :raises Exception: keystoneauth's or glanceclient's, if Glance does not give them.
        """
        found = b''
        for piece in self._client.images.data(image_id) or ():
            found += piece
            if len(found) >= most:
                break
        return found

    def delete(self, image_id: str) -> bool:
        """Delete an image; tell whether Glance had none.

        :raises Exception: keystoneauth's or glanceclient's, if Glance refuses.
        """
        try:
            self._client.images.delete(image_id)
        except exc.HTTPNotFound:
            return True
        return False

    def there(self) -> list[str]:
        """Return the ids of those that Glance has, also of other services of the project.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        project = images.session(self._conf).get_project_id()
        found = self._client.images.list(filters={'name': NAME, 'os_hidden': True,
                                                  'owner': project, 'visibility': 'private'})
        return [image['id'] for image in itertools.islice(found, 100)]
