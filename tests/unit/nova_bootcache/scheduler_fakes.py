"""What a scheduler's plugin is given: Nova's own classes, filled in here."""

from nova import context, objects
from nova.scheduler import host_manager

from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Holding, Level

objects.register_all()

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def published(level=None, image=IMAGE):
    """Return stats as a host with the driver publishes them."""
    holdings = [] if level in (None, Level.COLD) else [Holding(warmth.image_key(image), level, 1.0)]
    return {warmth.STATS_KEY: warmth.encode(holdings), 'num_instances': '3'}


def host(name, stats=None, aggregates=()):
    """Return a host state as Nova's scheduler has it."""
    state = host_manager.HostState(name, name, 'cell')
    state.stats = {} if stats is None else stats
    state.aggregates = [objects.Aggregate(name='a', metadata=metadata) for metadata in aggregates]
    return state


def request(image=IMAGE, **hints):
    """Return a request; None is for a server that boots from a volume."""
    spec = objects.RequestSpec(
        image=None if image is None else objects.ImageMeta(id=image),
        flavor=objects.Flavor(root_gb=1, ephemeral_gb=0, memory_mb=64, vcpus=1),
        pci_requests=None, numa_topology=None, instance_uuid=OTHER,
        scheduler_hints={name: [value] for name, value in hints.items()})
    spec._context = context.RequestContext('user', 'project', is_admin=False)
    return spec


class Glance:
    """Stands for Nova's client of Glance."""

    def __init__(self):
        self.properties, self.asked, self.broken = {}, [], False

    def __call__(self):
        return self

    def get(self, context, image_id):
        assert context.user_id == 'user', 'it is asked as the user'
        self.asked.append(image_id)
        if self.broken:
            raise RuntimeError('503')
        return {'id': image_id, 'properties': self.properties}
