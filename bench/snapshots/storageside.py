"""The storage service with an image and its snapshots, whose cache images it builds and serves.

Runs in a child in the storage node's namespace. Working sets, builds, differences, exporter and the
answers to hosts are the product's; Glance is a dictionary, and nothing is downloaded or recorded.
"""

import os
import threading
import time
import types
from collections.abc import Sequence
from typing import Any

from bench.replay.node import GATEWAY_SOCKET, ImageServer
from bench.snapshots.servers import virtual_bytes
from bench.snapshots.stores import configured
from bootcache import naming, workingset
from bootcache.manifest import Made, Manifest, Standing, WorkingSetInfo
from bootcache.rpc.messages import PlanBoot
from bootcache.workingset import Extent, WorkingSet
from glance_bootcache.db import start
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.policy import Step
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages

_GRANULARITY = 4096
_QUOTA = 1 << 30
_OWNER, _MARKER = 'project', 'login:'


class StorageSide:
    """A storage service without Glance and RPC; made in its child.

    :param home: a short directory, of its files.
    :param address: at which hosts reach its exporter and its image server.
    """

    def __init__(self, home: str, address: str):
        for name in ('state', 'run'):
            os.makedirs(f'{home}/{name}')
        self._conf: Any = configured(home, address, gateway_socket=GATEWAY_SOCKET)
        database = start.wait_for(self._conf)
        self._store = storedimages.opened(self._conf, database)
        self._exporters = Exporters(self._conf, f'{home}/clients.json')
        self._exporters.start()
        self._tiers = StorageTiers(self._conf, self._store, self._exporters,
                                   LastUses(database))
        self._tiers.start(())
        running = Running(1)
        self._facts: dict[str, ImageFacts] = {}
        glance: Any = types.SimpleNamespace(get=self._facts.get)
        nothing: Any = None
        self._work = ImageWork(
            self._conf, self._store, glance, self._exporters, self._tiers, nothing,
            DiskRoom(self._store, running, self._exporters, self._tiers), nothing,
            ServiceMetrics())
        # It is not started: no image is looked at.
        controller = Controller(self._conf, self._store, glance, self._work, running, nothing,
                                nothing, nothing)
        self._boots = ReportedBoots(self._conf, self._store, self._exporters, controller, running,
                                    self._tiers)
        self._files: dict[str, str] = {}
        self._images = ImageServer(self._files)
        threading.Thread(target=self._images.serve_forever, daemon=True).start()

    def add(self, image_id: str, path: str, parent: str = '') -> None:
        """Have an image's qcow2 file, as Glance's store does.

        :param parent: the image that a snapshot's server was made of.
        """
        size, content = os.path.getsize(path), f'sha512:{image_id[:8]}'
        properties = {'image_type': 'snapshot', 'base_image_ref': parent} if parent else {}
        self._files[image_id] = path
        self._facts[image_id] = ImageFacts(image_id, 'active', 'qcow2', 'bare', size, content, 0, 0,
                                           properties, owner=_OWNER)
        storedimages.put(self._store, Manifest(image_id, Standing.DONE, made=Made(
            base_path=path, base_hash=content, image_format='qcow2', stored_bytes=size,
            base_export=naming.content_export_name(image_id, content),
            virtual_bytes=virtual_bytes(path, 'qcow2'))).wishing(
                quota=_QUOTA, owner=_OWNER, boot_marker=_MARKER))

    def learn(self, image_id: str, extents: Sequence[Extent]) -> None:
        """Have a profile boot's working set of an image."""
        manifest = self._known(image_id)
        sha256 = self._store.save_working_set(image_id, WorkingSet(
            image_id, manifest.made.base_hash, manifest.made.virtual_bytes, _GRANULARITY,
            tuple(extents)))
        storedimages.put(self._store, manifest.making(working_set=WorkingSetInfo(
            sha256, workingset.total_bytes(extents), len(extents), _GRANULARITY, 'nova', 'marker',
            1.0, _MARKER)))

    def build(self, image_id: str) -> dict[str, Any]:
        """Build a cache image, of a snapshot with its parent's working set and what differs.

        :returns: ``answer``, as hosts are told of it, ``seconds`` that all of it took, and
            ``difference_seconds`` of those for what differs.
        :raises BootcacheError: if it cannot be built.
        """
        job = ImageJob(image_id, Step.BUILD)
        began = time.monotonic()
        if self._known(image_id).made.working_set is None:
            self._work.inheriting.inherit(self._facts[image_id], job)
        self._work.build(self._facts[image_id], job)
        seconds = time.monotonic() - began
        manifest = self._known(image_id)
        assert manifest.made.cache_image is not None
        return {'answer': self._boots.plan_boot(PlanBoot(image_id, 'host', '')),
                'seconds': seconds,
                'difference_seconds': seconds - manifest.made.cache_image.build_seconds}

    def stop(self) -> None:
        """End what runs."""
        self._images.shutdown()
        self._images.server_close()
        self._tiers.stop()
        self._exporters.stop()

    def _known(self, image_id: str) -> Manifest:
        manifest = self._store.load(image_id)
        assert manifest is not None
        return manifest
