"""The storage node with an image and a snapshot of a server of it, for tests of differences.

Building, exporter, tiers and the way to them are real; Glance and RPC are stand-ins.
"""

import dataclasses
import os
import random
import threading
import types

import pytest
from test_arrival import Way
from tiers_house import MIB

from bootcache import exception, tier
from bootcache.manifest import Made, Manifest, Standing, WorkingSetInfo
from bootcache.rpc.messages import PlanBoot
from bootcache.workingset import Extent, WorkingSet, total_bytes
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.policy import Step
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.profileboot.job import ImageJob
from nova_bootcache.asking import client
from tools import storedimages

PARENT = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CHILD = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CLUSTER = 65536
SIZE = 24 * MIB
# Not in order; it ends where the parent does.
SET = (Extent(12 * MIB, 8 * MIB), Extent(0, 4 * MIB), Extent(22 * MIB, 2 * MIB))
# What the snapshot's server wrote: within the set 4 MiB and a few bytes of a block, and beyond.
WRITTEN = ((13 * MIB, 3 * MIB), (MIB, MIB), (3 * MIB + 100, 50), (21 * MIB, MIB // 2))
DIFFERING = 4 * MIB + 4096


class Cloud:
    """The storage node, with an image and a snapshot of a server of it."""

    def __init__(self, house):
        self.house, self.store = house, house.store
        self.running = Running(1)
        self.facts = {}
        glance = types.SimpleNamespace(get=lambda image_id: self.facts.get(image_id))
        self.work = ImageWork(
            house.conf, self.store, glance, house.exporter, house.tiers, None,
            DiskRoom(self.store, self.running, house.exporter, house.tiers), None,
            ServiceMetrics())
        # It is not started: no image is looked at.
        controller = Controller(house.conf, self.store, glance, self.work, self.running, None, None,
                                None)
        self.boots = ReportedBoots(house.conf, self.store, house.exporter, controller, self.running,
                                   house.tiers)
        self.watched = False

    def path(self, image):
        return f'{self.house.directory}/{image[:8]}.raw'

    def add(self, image, content, **properties):
        """Have an image's base."""
        with open(self.path(image), 'wb') as stream:
            stream.write(content)
        os.makedirs(self.store.directory(image), exist_ok=True)
        self.facts[image] = ImageFacts(image, 'active', 'raw', 'bare', len(content),
                                       f'sha512:{image[:2]}', 0, 0, properties, owner='one')
        storedimages.put(self.store, Manifest(image, Standing.DONE, made=Made(
            base_path=self.path(image), base_hash=f'sha512:{image[:2]}', image_format='raw',
            virtual_bytes=len(content), base_export=f'base-{image}')).wishing(
                quota=64 * MIB, owner='one', boot_marker='login:'))

    def learn(self, image, extents):
        manifest = self.store.load(image)
        made = manifest.made
        name = self.store.save_working_set(image, WorkingSet(
            image, made.base_hash, made.virtual_bytes, 4096, extents))
        storedimages.put(self.store, manifest.making(working_set=WorkingSetInfo(
            name, total_bytes(extents), len(extents), 4096, 'nova', 'marker', 1.0, 'login:')))

    def build(self, image, inherits=False):
        job, ended, failures = ImageJob(image, Step.BUILD), threading.Event(), []

        def build():
            try:
                if inherits:
                    assert self.work.inheriting.inherit(self.facts[image], job)
                self.work.build(self.facts.get(image), job)
            except exception.Cancelled:
                pass
            except Exception as error:
                failures.append(error)

        self.running.start(job, 'one', build, ended.set)
        assert ended.wait(60) and failures == []
        manifest = self.store.load(image)
        assert manifest.made.cache_image is not None, manifest.reason
        return manifest

    def plan_boot(self, message):
        answer = self.boots.plan_boot(
            message if self.watched else dataclasses.replace(message, server_id=''))
        return {**answer, 'server': ['127.0.0.1', self.way.port]}

    def stop(self):
        self.running.stop()


@pytest.fixture(autouse=True)
def no_head_moves(monkeypatch):
    monkeypatch.setattr(tier, 'spins', lambda directory: False)


@pytest.fixture
def contents():
    parent = bytearray(random.Random(0).randbytes(SIZE))
    # A boot reads zeros as well; and there are some nobody reads.
    parent[14 * MIB:14 * MIB + CLUSTER] = bytes(CLUSTER)
    parent[6 * MIB:7 * MIB] = bytes(MIB)
    # Some of it becomes smaller by compression.
    parent[17 * MIB:18 * MIB] = bytes(range(256)) * (MIB // 256)
    child = parent + bytearray(random.Random(2).randbytes(MIB))
    for number, (offset, length) in enumerate(WRITTEN):
        child[offset:offset + length] = random.Random(10 + number).randbytes(length)
    return bytes(parent), bytes(child)


@pytest.fixture
def cloud(house, contents):
    house.conf.set_override('cluster_size', CLUSTER, 'bootcache')
    made = Cloud(house)
    made.add(PARENT, contents[0])
    made.learn(PARENT, SET)
    made.build(PARENT)
    made.add(CHILD, contents[1], image_type='snapshot', base_image_ref=PARENT)
    made.way = Way(house.directory, house.conf.bootcache.export_port, 8_000_000_000)
    yield made
    made.way.end()
    made.stop()


@pytest.fixture
def child(cloud):
    return cloud.build(CHILD, inherits=True)


def offered(cloud, image=CHILD):
    return client.parse(image, cloud.plan_boot(PlanBoot(image, 'host-1', '')))
