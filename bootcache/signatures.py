"""What makes an image's signature: Glance's properties, and what a library checks by them. Pure.

A storage service verifies the bytes of an image once, and a compute host has Nova get what it would
check them by. Both are the same where their fingerprints are.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import serialization

from bootcache import exception, properties

# Glance's properties without which nobody can check a signature: cursive/signature_utils.py.
PARTS = tuple(f'{properties.SIGNATURE}{name}'
              for name in ('', '_hash_method', '_key_type', '_certificate_uuid'))


def is_signed(image_properties: Mapping[str, Any]) -> bool:
    """Tell whether an image has any of Glance's properties of a signature."""
    return any(name.startswith(properties.SIGNATURE) for name in image_properties)


def missing(image_properties: Mapping[str, Any]) -> list[str]:
    """Return the names of those that are not there, of an image that is signed."""
    return [name for name in PARTS if not image_properties.get(name)]


def digest(image_properties: Mapping[str, Any]) -> str:
    """Return what tells one signature from another, as the properties have it; empty if none."""
    if not is_signed(image_properties):
        return ''
    return _sha256([str(image_properties.get(name) or '') for name in PARTS])


def fingerprint(verifier: Any) -> str:
    """Return what tells by what an image's bytes are checked: signature, hash and public key.

    :param verifier: of cursive's, of whichever kind of key.
    :raises BootcacheError: if it is of a kind that is not known.
    """
    try:
        key = verifier._public_key.public_bytes(serialization.Encoding.DER,
                                                serialization.PublicFormat.SubjectPublicKeyInfo)
        return _sha256([type(verifier).__name__, verifier._hash_method.name,
                        verifier._signature.hex(), key.hex()])
    except AttributeError as error:
        raise exception.BootcacheError(
            f'this version of cursive does not tell what it checks by: {error}') from error


def _sha256(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
