"""What compute hosts report, for the tests of what becomes of it."""

from bootcache.rpc.report import HeldImage, HostReport
from bootcache.tier import Medium

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
NOW = 1e9



def holding(*images, generation=0, medium='disk', used=1000.0, size=7):
    """A host's report."""
    return HostReport({image: HeldImage(used, Medium(medium), generation, size)
                       for image in images}, {Medium.DISK: 100})


def ready(house, *images):
    for image in images or (IMAGE,):
        house.images.put(image)
        house.changed(image)
    house.settle()
