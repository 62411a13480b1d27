"""What differs between a snapshot's cache image and its parent's is made on the storage node.

Building, exporter and tiers are real; Glance and RPC are stand-ins.
"""

import dataclasses
import os
import random
import threading

import pytest
from differences_house import CHILD, PARENT, SET, SIZE, offered
from differences_house import child as child  # the fixture
from differences_house import cloud as cloud  # likewise
from differences_house import contents as contents
from differences_house import no_head_moves as no_head_moves
from tiers_house import MIB
from tiers_house import house as house
from tiers_house import memory as memory

from bootcache import difference
from bootcache.rpc.messages import BootAction, PlanBoot
from glance_bootcache import snapshotrules
from tools import storedimages


def test_its_files_are_those_of_its_cache_image(cloud, child):
    def names():
        return sorted(name.partition('.')[2] for name in os.listdir(cloud.store.directory(CHILD)))

    assert names() == ['difference', 'zstd.qcow2']
    again = cloud.build(CHILD)
    assert names() == ['difference', 'zstd.qcow2']
    assert again.made.cache_image.file != child.made.cache_image.file
    assert again.made.difference.parent == PARENT
    storedimages.put(cloud.store, again.making(cache_image=None, difference=None))
    assert names() == []


def made_meanwhile(monkeypatch, do):
    """Have something done while a difference is being made."""
    make = difference.make

    def made(*arguments, **named):
        do()
        return make(*arguments, **named)

    monkeypatch.setattr(difference, 'make', made)


@pytest.mark.parametrize('seconds, action', [(snapshotrules.BUILD_SECONDS, 'wait'), (0.0, 'cache')])
def test_its_cache_image_is_served_before_what_differs_is_there(cloud, monkeypatch, seconds,
                                                                action):
    monkeypatch.setattr(snapshotrules, 'BUILD_SECONDS', seconds)
    answers = []

    def ask(server):
        answers.append(cloud.boots.plan_boot(PlanBoot(CHILD, 'host-1', server)))

    def look():
        ask('server')
        ask('')

    made_meanwhile(monkeypatch, look)
    assert cloud.build(CHILD, inherits=True).made.difference is not None
    ask('server')
    # Its servers wait, not for ever; what is no server's does not.
    assert [answer['action'] for answer in answers] == [action, 'cache', 'cache']
    assert ['difference' in answer for answer in answers] == [False, False, True]


def test_a_server_that_asks_as_it_is_finished_gets_what_differs(cloud, monkeypatch):
    """Its answer was of the row before, and of the step that had ended since."""
    begun, may_end = threading.Event(), threading.Event()
    made_meanwhile(monkeypatch, lambda: (begun.set(), may_end.wait(60)))
    builder = threading.Thread(target=cloud.build, args=(CHILD,), kwargs={'inherits': True})
    builder.start()
    assert begun.wait(60)
    check = cloud.house.tiers.check

    def late(manifest):
        may_end.set()
        builder.join()
        return check(manifest)

    monkeypatch.setattr(cloud.house.tiers, 'check', late)
    answers = [cloud.boots.plan_boot(PlanBoot(CHILD, 'host-1', 'server')) for _time in range(2)]
    assert [answer['action'] for answer in answers] == ['wait', 'cache']
    assert 'difference' in answers[1]


def test_of_a_later_one_the_older_is_told_with_its_difference_until_both_are_there(
        cloud, child, monkeypatch):
    answers = []
    made_meanwhile(monkeypatch, lambda: answers.append(
        cloud.boots.plan_boot(PlanBoot(CHILD, 'host-1', 'server'))))
    again = cloud.build(CHILD)
    answers.append(cloud.boots.plan_boot(PlanBoot(CHILD, 'host-1', 'server')))
    assert [answer['cache_image']['file'] for answer in answers] == [
        child.made.cache_image.file, again.made.cache_image.file]
    assert all(answer['action'] == 'cache' and 'difference' in answer for answer in answers)


def test_a_snapshot_that_goes_meanwhile_leaves_none(cloud, monkeypatch):
    made_meanwhile(monkeypatch, lambda: cloud.running.cancel(CHILD))
    manifest = cloud.build(CHILD, inherits=True)
    assert not [name for name in os.listdir(cloud.store.directory(CHILD)) if 'difference' in name]
    assert manifest.made.difference is None


def test_one_that_was_not_finished_is_removed_at_the_next_start(cloud, monkeypatch):
    def killed():
        raise KeyboardInterrupt

    made_meanwhile(monkeypatch, killed)
    # As a kill does, it leaves the row.
    monkeypatch.setattr(cloud.store.files, 'abandon', lambda *_file: None)
    manifest = cloud.build(CHILD, inherits=True)
    path = cloud.store.difference_path(CHILD, manifest.made.cache_image.file)
    with open(path, 'wb'):
        pass
    storedimages.opened(cloud.house.conf).retire_left()
    assert not os.path.exists(path) and len(os.listdir(cloud.store.directory(CHILD))) == 1


def test_glance_is_not_asked_again_whose_snapshot_it_is(cloud, child):
    del cloud.facts[CHILD]
    again = cloud.build(CHILD)
    assert again != child and again.made.difference.parent == PARENT


@pytest.mark.parametrize('what', ['much differs', 'no snapshot', 'not visible', 'parent evicted'])
def test_where_it_would_not_be_worth_it_or_right_there_is_none(cloud, what):
    if what == 'much differs':
        cloud.add(CHILD, random.Random(5).randbytes(SIZE + MIB), image_type='snapshot',
                  base_image_ref=PARENT)
    cloud.learn(CHILD, SET)
    if what == 'no snapshot':
        cloud.facts[CHILD] = dataclasses.replace(cloud.facts[CHILD], properties={})
    if what == 'not visible':
        cloud.store.change(PARENT, lambda known: known.wishing(owner='another'))
    if what == 'parent evicted':
        cloud.store.change(PARENT, lambda known: known.making(cache_image=None))
    manifest = cloud.build(CHILD)
    assert manifest.made.difference is None
    assert not [name for name in os.listdir(cloud.store.directory(CHILD)) if 'difference' in name]
    assert 'difference' not in cloud.plan_boot(PlanBoot(CHILD, 'host-1', ''))


def test_it_counts_for_the_quota_of_the_disk(cloud, child):
    item = cloud.house.tiers._on_disk(child, False)
    assert item.bytes == child.made.cache_image.bytes + child.made.difference.bytes


def test_it_is_served_while_somebody_asks(cloud, child):
    def exports():
        return [name for name in cloud.house.exporter.common._daemon.exports()
                if name.startswith('difference')]

    assert not exports()
    assert cloud.plan_boot(PlanBoot(CHILD, 'host-1', ''))['action'] == BootAction.CACHE
    assert len(exports()) == 1
    cloud.house.exporter.withdraw_idle({CHILD: ()}, 3600)
    assert len(exports()) == 1
    cloud.house.exporter.withdraw_idle({CHILD: ()}, 0)
    assert not exports()
    assert offered(cloud).difference is not None and len(exports()) == 1
    cloud.house.exporter.retire(CHILD, with_base=False)
    assert not exports()
