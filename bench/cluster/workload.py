"""What is asked of the cluster: which server, when, of which image; from a seed."""

import dataclasses
from collections.abc import Iterator

import numpy


@dataclasses.dataclass(frozen=True)
class Flavor:
    """A flavor: virtual CPUs, MiB of memory, GiB of disk."""

    vcpus: int
    memory: int
    disk: int


FLAVORS = (Flavor(1, 4096, 20), Flavor(2, 8192, 20), Flavor(4, 16384, 40))


@dataclasses.dataclass(frozen=True)
class Request:
    """One request, of one server or of many.

    :ivar at: seconds since the beginning.
    :ivar image: number of the image; the lower the more popular.
    :ivar lives: seconds that each of its servers lives.
    """

    at: float
    image: int
    flavor: Flavor
    lives: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Load:
    """How servers come and go: assumptions.

    :ivar boots: servers in all.
    :ivar images: how many there are.
    :ivar skew: exponent of Zipf's law of their popularity.
    :ivar life: mean seconds that a server lives; exponentially distributed.
    :ivar rate: servers a second, on average.
    :ivar storm_share: of the servers that come in storms, by one request each.
    :ivar storm_size: servers of a storm.
    """

    boots: int
    images: int
    skew: float
    life: float
    rate: float
    storm_share: float
    storm_size: int


def popularity(images: int, skew: float) -> numpy.ndarray:
    """Return each image's share of the requests, by Zipf's law."""
    weights = 1.0 / numpy.arange(1, images + 1) ** skew
    shares: numpy.ndarray = weights / weights.sum()
    return shares


def requests(load: Load, seed: int) -> Iterator[Request]:
    """Yield the requests in their order; the same ones for a seed, whatever the policy."""
    source = numpy.random.default_rng(seed)
    # As the generator's own choice does it, but summed up once.
    upto = popularity(load.images, load.skew).cumsum()
    upto /= upto[-1]
    # A storm has as many servers as many single requests have.
    storms = load.storm_share / load.storm_size
    chance = storms / (storms + 1 - load.storm_share)
    mean = 1 - chance + chance * load.storm_size
    left, now = load.boots, 0.0
    while left > 0:
        now += source.exponential(mean / load.rate)
        count = load.storm_size if source.random() < chance else 1
        count = min(count, left)
        left -= count
        flavor = FLAVORS[source.integers(len(FLAVORS))]
        image = int(upto.searchsorted(source.random(), side='right'))
        lives = tuple(source.exponential(load.life, count).tolist())
        yield Request(now, image, flavor, lives)
