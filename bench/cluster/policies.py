"""What is compared."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Policy:
    """A way to start servers, and to choose their hosts.

    :ivar cache: servers boot from cache images.
    :ivar whole: a host gets the whole image first, as stock Nova; without this and without caches
        all reads go to the storage node as they come.
    :ivar multiplier: of the product's weigher.
    :ivar by_properties: of Nova's image properties weigher.
    """

    name: str
    cache: bool = False
    whole: bool = False
    multiplier: float = 0.0
    by_properties: float = 0.0


POLICIES = (
    Policy('stock', whole=True),
    Policy('stock, image properties', whole=True, by_properties=1.0),
    Policy('on demand'),
    Policy('cache', cache=True),
    Policy('cache, image properties', cache=True, by_properties=1.0),
    Policy('cache, weigher', cache=True, multiplier=1.0),
)


def weigher(multiplier: float) -> Policy:
    """Return the policy with another multiplier of the product's weigher."""
    return Policy(f'cache, weigher x {multiplier:g}', cache=True, multiplier=multiplier)
