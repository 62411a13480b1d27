"""What is asked of the cluster: which server, when, of which image; from a seed."""

import dataclasses
from collections.abc import Iterator

import numpy

from bench.cluster.arrivals import Arrivals


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
    :ivar is_largest: whether it is the largest batch of real arrivals.
    """

    at: float
    image: int
    flavor: Flavor
    lives: tuple[float, ...]
    is_largest: bool = False


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
    :ivar arrivals: of a real cloud: when servers come, how many at once, and how long each lives,
        instead of what is assumed of that; None for the assumptions.
    """

    boots: int
    images: int
    skew: float
    life: float
    rate: float
    storm_share: float
    storm_size: int
    arrivals: Arrivals | None = None


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
    if load.arrivals is not None:
        yield from _arriving(load.arrivals, source, upto)
        return
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


def _arriving(arrivals: Arrivals, source: numpy.random.Generator,
              upto: numpy.ndarray) -> Iterator[Request]:
    """Yield a request for each batch, at any second of its interval; one image for all of it."""
    found = []
    for number, batch in enumerate(arrivals.batches):
        # Drawn for each batch, so that what one of them is does not depend on which come.
        comes, delay = source.random(2)
        flavor = FLAVORS[source.integers(len(FLAVORS))]
        image = int(upto.searchsorted(source.random(), side='right'))
        lives = tuple(shortest if shortest == longest else source.uniform(shortest, longest)
                      for shortest, longest in batch.lives)
        if number == arrivals.storm:
            comes, delay = 0.0, 0.0
        if comes < arrivals.share:
            found.append(Request(batch.at + delay * arrivals.interval, image, flavor, lives,
                                 number == arrivals.storm))
    yield from sorted(found, key=lambda request: request.at)
