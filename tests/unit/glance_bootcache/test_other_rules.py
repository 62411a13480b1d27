"""Images that were accepted by other rules than those of now: revoked, looked at again, rebuilt.

The neighbours are stand-ins, see test_controller.py."""

import pytest

from bootcache.manifest import Standing
from bootcache.reasons import Reason
from bootcache.rpc.messages import PlanBoot
from glance_bootcache import availability
from glance_bootcache.storage import inspection

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def house(house):
    house.images.put(IMAGE, b'1' * 4096)
    house.changed(IMAGE)
    house.settle()
    assert house.store.load(IMAGE).made.cache_image is not None
    house.looks = []
    return house


@pytest.fixture
def upgraded(house, monkeypatch):
    """The service starts again, with other rules."""
    house.before = house.store.load(IMAGE)
    monkeypatch.setattr(inspection, 'RULES', 2)
    looked = inspection.inspect

    def inspect(path, *arguments):
        house.looks.append(path)
        return looked(path, *arguments)

    monkeypatch.setattr(inspection, 'inspect', inspect)
    house.restart()
    return house


def action(house):
    return house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action']


def test_what_was_built_is_revoked_and_hosts_let_go(upgraded):
    before = upgraded.before
    after = upgraded.store.load(IMAGE)
    assert (after.standing, after.cause.reason) \
        == (Standing.SKIPPED, Reason.INSPECTION_RULES)
    assert after.made.cache_image is None and after.made.base_path == before.made.base_path
    assert after.wished.generation > before.wished.generation
    assert action(upgraded) == 'stock'


def test_what_could_not_be_revoked_yet_is_not_given_out(house, monkeypatch):
    """The process ends before, or the disk is full."""
    monkeypatch.setattr(inspection, 'RULES', 2)
    assert action(house) == 'stock'


def test_it_is_looked_at_again_in_its_place_and_rebuilt(upgraded):
    before = upgraded.before
    upgraded.images.download = lambda image_id: pytest.fail('downloaded')
    upgraded.recover()
    upgraded.settle()
    after = upgraded.store.load(IMAGE)
    assert upgraded.looks == [before.made.base_path]
    assert after.standing is Standing.DONE and after.made.look_rules == 2
    assert after.made.cache_image.file != before.made.cache_image.file
    assert action(upgraded) == 'cache'
    # A host that holds the one of before lets go of it.
    assert availability.is_to_go(before.wished.generation, after, ordered=False)
    # Once only.
    upgraded.restart()
    assert upgraded.store.load(IMAGE) == after


def test_what_the_rules_of_now_refuse_is_skipped(upgraded):
    upgraded.qemu.refuse = 'the image is not safe to open'
    upgraded.recover()
    upgraded.settle()
    after = upgraded.store.load(IMAGE)
    assert (after.standing, after.reason) == (Standing.SKIPPED, upgraded.qemu.refuse)
    assert after.made.cache_image is None and action(upgraded) == 'stock'
    # And stays so.
    upgraded.restart()
    assert upgraded.store.load(IMAGE).reason == upgraded.qemu.refuse


def test_the_same_rules_revoke_nothing(house):
    before = house.store.load(IMAGE)
    house.restart()
    assert house.store.load(IMAGE) == before and action(house) == 'cache'
