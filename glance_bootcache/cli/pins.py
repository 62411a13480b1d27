"""``bootcache pin`` and ``unpin``: cache images that stay, whatever else is used more."""

from typing import Any

from glance_bootcache.cli.image import EachImage


class Pin(EachImage):
    """Keep images' cache images in every tier that they are in.

    A compute host hears of it with the next server of the image.
    """

    done = 'pinned'

    def ask(self, api: Any, image: str) -> bool:
        """Have it stay, or not."""
        return bool(api.pin_image(image, self.value))


class Unpin(Pin):
    """Let images' cache images be evicted again when others are used more."""

    value = False
