"""The Glance hook: an import plugin (stevedore name ``bootcache``).

It runs in glance-api for imported images, before they become active, and announces each to the
storage service. It writes nothing to the image. Images that are uploaded directly pass no plugin;
the storage service's notification listener covers both.
"""

from typing import Any

from oslo_config import cfg
from oslo_log import log as logging
from taskflow import task
from taskflow.patterns import linear_flow

from bootcache.rpc.client import StorageClient
from bootcache.rpc.messages import ImageRegistered
from glance_bootcache import conf as glance_conf

LOG = logging.getLogger(__name__)

_client: StorageClient | None = None


def _storage_client() -> StorageClient:
    global _client
    if _client is None:
        _client = StorageClient(cfg.CONF)
    return _client


class AnnounceImage(task.Task):  # type: ignore[misc]
    """Announces an image; never fails an import.

    :param action_wrapper: Glance's access to the image that is imported.
    """

    def __init__(self, task_id: str, task_type: str, action_wrapper: Any):
        self._action_wrapper = action_wrapper
        super().__init__(name=f'{task_type}-Bootcache-{task_id}')

    def execute(self) -> None:
        """Tell the storage service."""
        try:
            _storage_client().send(ImageRegistered(self._action_wrapper.image_id))
        except Exception as error:
            # The storage service hears of the image by notification as well.
            LOG.warning('image %s could not be announced to bootcache: %s',
                        self._action_wrapper.image_id, error)


def get_flow(**kwargs: Any) -> Any:
    """Return the task flow for an import, as Glance's plugin interface wants it.

    :param kwargs: ``task_id``, ``task_type`` and ``action_wrapper`` are used.
    """
    glance_conf.register_opts(cfg.CONF)
    return linear_flow.Flow(kwargs['task_type']).add(
        AnnounceImage(kwargs['task_id'], kwargs['task_type'], kwargs['action_wrapper']))
