"""How Glance is told of an image in a store of our driver's. Pure; glance_store is not needed."""

# The name under ``enabled_backends`` and the scheme: glance_store takes the one for the other.
SCHEME = 'bootcache'


def location_of(store: str, image_id: str) -> str:
    """Return the location of an image in a store: ``bootcache://STORE/IMAGE-ID``.

    :param store: its name under Glance's ``enabled_backends``.
    """
    return f'{SCHEME}://{store}/{image_id}'
