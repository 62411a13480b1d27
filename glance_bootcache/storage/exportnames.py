"""The names of an exporter's exports and nodes. Pure."""

from typing import Any

from bootcache import naming
from bootcache.difference import CacheDifference
from bootcache.manifest import Manifest


def of_base(manifest: Manifest) -> set[str]:
    """Return the names of the exports that are read from an image's base file, or its clone."""
    return {manifest.made.base_export, naming.export_name(naming.EXPORT_STORED, manifest.image_id)}


def cache_export(manifest: Manifest) -> str:
    """Return the name of the export of an image's cache image, which it must have."""
    assert manifest.made.cache_image is not None
    # A new cache image gets a new name: who fetches the old one meanwhile gets all of it.
    return (naming.export_name(naming.EXPORT_CACHE, manifest.image_id)
            + f'-{manifest.made.cache_image.sha256[:16]}')


def described(manifest: Manifest) -> dict[str, Any]:
    """Return what compute hosts are told of what is served of an image: see ``plan_boot``."""
    told: dict[str, Any] = {'virtual_bytes': manifest.made.virtual_bytes,
                            'base_export': manifest.made.base_export}
    if manifest.made.cache_image is not None:
        told['cache_export'] = cache_export(manifest)
        told['cache_image'] = manifest.made.cache_image.to_dict()
    return told


def difference_export(manifest: Manifest, difference: CacheDifference) -> str:
    """Return the name of the export of the difference of an image's cache image."""
    return (naming.export_name(naming.EXPORT_DIFFERENCE, manifest.image_id)
            + f'-{difference.sha256[:16]}')


def is_difference(export: str, image_id: str = '') -> bool:
    """Tell whether an export is of a difference, or of one of an image's."""
    return export.startswith(f'{naming.EXPORT_DIFFERENCE}-{image_id}')


def goes_idle(export: str) -> bool:
    """Tell whether an export goes as soon as nobody has asked for it in a while."""
    return is_base(export) or is_difference(export)


def cache_node(export: str) -> str:
    """Return the name of the node of a cache image's export."""
    return naming.node_name('c', export)


def is_base(export: str) -> bool:
    """Tell whether an export is of a base or a stored file: its clients are never cut off."""
    return export.startswith((f'{naming.EXPORT_BASE}-', f'{naming.EXPORT_STORED}-'))
