"""What Glance says of an image."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class ImageFacts:
    """What Glance says of an image.

    :ivar image_id: its id.
    :ivar status: Glance's: queued, saving, importing, active, deactivated, deleted...
    :ivar disk_format: Glance's.
    :ivar container_format: Glance's.
    :ivar stored_bytes: size of the image file.
    :ivar image_hash: ``algorithm:hexadecimal``, empty while Glance has none.
    :ivar min_ram: MiB.
    :ivar min_disk: GiB.
    :ivar properties: all other properties.
    :ivar visibility: Glance's: public, community, shared or private; empty if it does not say.
    :ivar owner: the project that it belongs to; empty if Glance does not say.
    :ivar name: Glance's; empty if it has none.
    :ivar updated_at: when it was changed last, as Glance gives it.
    """

    image_id: str
    status: str
    disk_format: str
    container_format: str
    stored_bytes: int
    image_hash: str
    min_ram: int
    min_disk: int
    properties: Mapping[str, Any]
    visibility: str = ''
    owner: str = ''
    name: str = ''
    updated_at: str = ''
