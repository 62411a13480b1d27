"""Looks at Glance's images: an answer that was overtaken by a later one is not acted on.

Notifications are followed by several threads. One may hear that an image is active, and be slower
than another one that hears, later, that it was deactivated.
"""

import threading


class Inquiries:
    """The questions to Glance that are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dictionary
        self._under_way: dict[str, set[object]] = {}

    def begin(self, image_id: str) -> object:
        """Begin to ask for an image; ``end`` has to follow."""
        look = object()
        with self._lock:
            self._under_way.setdefault(image_id, set()).add(look)
        return look

    def end(self, image_id: str, look: object) -> bool:
        """End a look; if it counts, no other look at the image that is under way counts any more.

        :returns: False if the image was seen meanwhile by another look, or is gone: ask again.
        """
        with self._lock:
            if look not in self._under_way.get(image_id, ()):
                return False
            del self._under_way[image_id]
        return True

    def overtake(self, image_id: str) -> None:
        """Let no look at an image count that is under way, as more is known by now."""
        with self._lock:
            self._under_way.pop(image_id, None)

    def give_up(self, image_id: str, look: object) -> None:
        """End a look to which there was no answer."""
        with self._lock:
            looks = self._under_way.get(image_id, set())
            looks.discard(look)
            if not looks:
                self._under_way.pop(image_id, None)
