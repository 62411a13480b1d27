"""What only Nova can find out of an image, as the user whose server is made."""

import dataclasses
from collections.abc import Callable


def _nothing() -> str:
    return ''


@dataclasses.dataclass(frozen=True)
class AsUser:
    """Asks for it; each question goes to other services, and no lock is held over it.

    :ivar verifies_by: the fingerprint of what Nova would verify the image by; raises what Nova
        raises if that cannot be had.
    :ivar download_refusal: why Glance does not let the user download the image; empty if it does,
        or cannot be asked.
    """

    verifies_by: Callable[[], str] = _nothing
    download_refusal: Callable[[], str] = _nothing
