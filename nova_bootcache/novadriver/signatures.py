"""Images whose signature is checked: only stock Nova does that, while it downloads an image."""

from collections.abc import Mapping
from typing import Any

from bootcache import properties

# Nova's name of an image's property in its server's system metadata.
_PREFIX = f'image_{properties.SIGNATURE}'


def are_checked(conf: Any) -> bool:
    """Tell whether Nova checks the signature of each image that this host gets.

    :param conf: Nova's configuration.
    """
    glance = conf.glance
    if glance.verify_glance_signatures:
        return True
    return bool(glance.enable_certificate_validation and glance.default_trusted_certificate_ids)


def is_signed(system_metadata: Mapping[str, Any] | None) -> bool:
    """Tell whether a server's image was signed when the server was made.

    :param system_metadata: the server's; None if it is not known.
    """
    return any(name.startswith(_PREFIX) for name in system_metadata or ())
