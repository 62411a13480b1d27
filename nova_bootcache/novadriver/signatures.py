"""Images whose signature is checked: by stock Nova while it downloads an image, or by the storage
service, where it did that by the same signature and key that Nova would take for the server."""

from collections.abc import Mapping
from typing import Any

from nova.image import glance

from bootcache import properties, signatures

# Nova's name of an image's property in its server's system metadata.
_PREFIX = f'image_{properties.SIGNATURE}'


def are_checked(conf: Any) -> bool:
    """Tell whether Nova checks the signature of each image that this host gets.

    :param conf: Nova's configuration.
    """
    group = conf.glance
    if group.verify_glance_signatures:
        return True
    return bool(group.enable_certificate_validation and group.default_trusted_certificate_ids)


def is_signed(system_metadata: Mapping[str, Any] | None) -> bool:
    """Tell whether a server's image was signed when the server was made.

    :param system_metadata: the server's; None if it is not known.
    """
    return any(name.startswith(_PREFIX) for name in system_metadata or ())


def wanted(context: Any, image_id: str, trusted_certs: Any) -> str:
    """Return the fingerprint of what Nova would verify an image by, for one server.

    All of what Nova does before it downloads an image: it asks Glance for the signature, and the
    key manager for the certificate, both as the server's user, and validates the certificate by
    those that the user trusts, or that are its defaults. Private in Nova, whose public method
    begins the download as well.

    :param context: Nova's, of the request that makes the server.
    :param trusted_certs: the server's; None if it has none.
    :raises Exception: Nova's and cursive's, if that cannot be had, or is not valid: stock Nova
        refuses the server then.
    """
    service = glance.get_default_image_service()
    return signatures.fingerprint(service._get_verifier(context, image_id, trusted_certs))
