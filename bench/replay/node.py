"""The storage node: the product's exporter with bases and cache images, and an image server.

Runs in a child in its own namespace. The tap (tap.py) stands before the exporter, and is what
hosts are told to connect to.
"""

import contextlib
import dataclasses
import hashlib
import http.server
import os
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oslo_config import cfg

from bench.replay import exchangeprocess, netns
from bootcache import cacheimage, cachelayout, naming
from bootcache import conf as bootcache_conf
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression
from bootcache.exchange.client import ExchangeClient
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from bootcache.workingset import Extent
from glance_bootcache import conf as glance_conf
from glance_bootcache.ceph.opening import OpenClones
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.smallca import SmallCA
from glance_bootcache.storage.exporter import Exporter
from tools import storedimages

PORT, TAP_PORT, IMAGE_PORT = 10809, 10810, 8080
# Of exporters that are reached past the tap: without TLS, and by TLS.
_DIRECT_PORTS = 10811, 10812
# For which the storage node's exchange gives a cache image.
_GIVE_SECONDS = 7200.0
# Of those of bases in a Ceph each, also past the tap.
_CEPH_PORTS = 10813, 10814
# Where every host of this run (children are forked) sees its own files: its gateway's socket is in
# the header of each cache image.
HOST_DIRECTORY = f'/tmp/bcr-{os.getpid()}-seen'
GATEWAY_SOCKET = f'{HOST_DIRECTORY}/g/nbd'
# How the product stores cache images unless an operator says otherwise.
PRODUCTS_OWN = Compression(next(
    option.default for option in glance_conf.opts if option.name == 'compression'))


def _exporter(conf: cfg.ConfigOpts) -> Exporter:
    return Exporter(conf, OpenClones(conf))


class ImageServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Sends image files as Glance does, and counts the bytes. From the page cache, by sendfile."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, files: dict[str, str]):
        super().__init__((netns.STORAGE_ADDRESS, IMAGE_PORT), _ImageHandler)
        self.files = files
        self.sent: list[int] = []


class _ImageHandler(http.server.BaseHTTPRequestHandler):
    server: ImageServer

    def do_GET(self) -> None:
        with open(self.server.files[self.path.lstrip('/')], 'rb') as stream:
            self.send_response(200)
            self.send_header('Content-Length', str(os.fstat(stream.fileno()).st_size))
            self.end_headers()
            self.wfile.flush()
            self.server.sent.append(self.connection.sendfile(stream))

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


class Node:
    """A storage node; made in its child.

    :param directory: of its files; short.
    """

    def __init__(self, directory: str):
        self.directory = Path(directory)
        self.exporter = _exporter(self._conf(
            'run', export_host='127.0.0.1', export_port=PORT,
            advertise_host=netns.STORAGE_ADDRESS, advertise_port=TAP_PORT))
        self.exporter.start()
        self._direct: dict[bool, Exporter] = {}
        # Of bases in Ceph, by the path of its configuration file.
        self._in_ceph: dict[str, tuple[Exporter, OpenClones]] = {}
        self.log = self.directory / 'tap.log'
        self._messages = open(self.directory / 'tap.err', 'w+b')  # noqa: SIM115
        self._tap = subprocess.Popen(
            ['nbdkit', '--foreground', '--ipaddr', netns.STORAGE_ADDRESS, '--port', str(TAP_PORT),
             '--filter=log', 'nbd', 'hostname=127.0.0.1', f'port={PORT}', 'dynamic-export=true',
             f'logfile={self.log}'], stdin=subprocess.DEVNULL,
            stderr=self._messages)
        deadline = time.monotonic() + 20
        while not self.log.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._files: dict[str, str] = {}
        self._built: dict[str, Path] = {}
        self._images = ImageServer(self._files)
        self._manifests: dict[str, Manifest] = {}
        # The storage node's exchange, and the path of its socket.
        self._exchange: tuple[subprocess.Popen[bytes], str] | None = None
        threading.Thread(target=self._images.serve_forever, daemon=True).start()

    def _conf(self, run_dir: str, **options: Any) -> cfg.ConfigOpts:
        """Return the product's configuration."""
        conf = cfg.ConfigOpts()
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        for name, value in {
                'state_dir': f'{self.directory}/state', 'run_dir': f'{self.directory}/{run_dir}',
                'gateway_socket': GATEWAY_SOCKET, **options}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        return conf

    def serve_directly(self, image_id: str, speaks_tls: bool) -> tuple[dict[str, Any], str]:
        """Serve an image past the tap, by an exporter of its own; nobody counts what it sends.

        :returns: what a host is told, and the directory of its certificates, empty without TLS.
        """
        pki = SmallCA(str(self.directory / 'pki'))
        exporter = self._direct.get(speaks_tls)
        if exporter is None:
            options = {'tls_directory': pki.issue('storage-1', [netns.STORAGE_ADDRESS])} \
                if speaks_tls else {}
            exporter = self._direct[speaks_tls] = _exporter(self._conf(
                f'direct{speaks_tls:d}', export_host=netns.STORAGE_ADDRESS,
                export_port=_DIRECT_PORTS[speaks_tls], **options))
            exporter.start()
        built = self._built.get(image_id)
        exporter.ensure(self._manifests[image_id], str(built) if built else None)
        return exporter.describe(self._manifests[image_id]), \
            pki.issue('compute-1') if speaks_tls else ''

    def give(self, image_id: str, names: Sequence[str]) -> tuple[bytes, dict[str, str]]:
        """Give a cache image to hosts by exchange.

        :returns: its torrent, and by host the directory of its certificates.
        """
        pki = SmallCA(str(self.directory / 'pki'))
        if self._exchange is None:
            self._exchange = exchangeprocess.start(
                self.directory / 'exchange', netns.STORAGE_ADDRESS, pki.issue('storage-exchange'))
        client, path = ExchangeClient(self._exchange[1]), str(self._built[image_id])
        torrent, _name = client.describe(path)
        client.give(torrent, path, _GIVE_SECONDS)
        return torrent, {name: pki.issue(name) for name in names}

    def serve_in_ceph(self, image_id: str, path: str, conf: str) -> dict[str, Any]:
        """Serve an image whose base is in a Ceph, by an exporter of its own past the tap.

        :param path: the image as a raw file; it is put where Glance's RBD store would put it.
        :param conf: path of the Ceph's configuration file.
        :returns: what a host is told.
        """
        options = {'rbd_store_pool': 'images', 'rbd_store_ceph_conf': conf}
        if conf not in self._in_ceph:
            port = _CEPH_PORTS[len(self._in_ceph)]
            own = self._conf(f'ceph{port}', export_host=netns.STORAGE_ADDRESS, export_port=port,
                             **options)
            clones = OpenClones(own)
            self._in_ceph[conf] = Exporter(own, clones), clones
            self._in_ceph[conf][0].start()
        exporter, clones = self._in_ceph[conf]
        with open(path, 'rb') as stream:
            digest = hashlib.file_digest(stream, 'sha512').hexdigest()
        for command in (('import', '--no-progress', '--object-size', '8M', path,
                         f'images/{image_id}'),
                        ('snap', 'create', '--no-progress', f'images/{image_id}@snap'),
                        ('snap', 'protect', f'images/{image_id}@snap')):
            subprocess.run(['rbd', '--conf', conf, *command], check=True, capture_output=True)
        size = os.path.getsize(path)
        facts = ImageFacts(image_id, 'active', 'raw', 'bare', size, f'sha512:{digest}', 0, 0, {})
        own = self._conf('', state_dir=f'{self.directory}/state', **options)
        base = CephBases(own).obtain(
            facts, storedimages.opened(own).files, lambda: None, lambda count: None)
        if base is None:
            raise RuntimeError(f'{image_id} cannot be read in Ceph')
        made = dataclasses.replace(
            self._manifests[image_id].made, base_path=base, base_hash=facts.image_hash,
            image_format='raw', stored_bytes=size, virtual_bytes=size,
            base_export=naming.content_export_name(image_id, facts.image_hash))
        manifest = dataclasses.replace(self._manifests[image_id], made=made)
        built = self._built.get(image_id)
        exporter.ensure(manifest, str(built) if built else None)
        return {**exporter.describe(manifest), **clones.told(manifest),
                'image_hash': facts.image_hash}

    def direct_pid(self, speaks_tls: bool) -> int | None:
        """Return the process id of one of these exporters."""
        return self._direct[speaks_tls]._daemon.pid()

    def add_image(self, image_id: str, path: str, image_format: str,
                  virtual_bytes: int) -> dict[str, Any]:
        """Serve an image's base and its file; what a host is told that asks for it."""
        self._files[image_id] = path
        self._manifests[image_id] = Manifest(image_id, Standing.DONE, made=Made(
            image_format=image_format, virtual_bytes=virtual_bytes, base_path=path,
            base_export=naming.export_name(naming.EXPORT_BASE, image_id)))
        return self._serve(image_id, None)

    def build(self, image_id: str, extents: Sequence[Extent], quota: int,
              cluster_bytes: int, place: str, compression: Compression) -> dict[str, Any]:
        """Build a cache image as the storage service does, and serve it; what a host is told.

        :param place: directory of its file.
        :param compression: of its clusters.
        """
        manifest = self._manifests[image_id]
        uri = naming.nbd_unix_uri(GATEWAY_SOCKET, naming.export_name(naming.EXPORT_BASE, image_id))
        path = Path(place) / f'cache-{image_id}-{time.monotonic_ns()}' \
            f'{cachelayout.file_suffix(compression)}'
        began = time.monotonic()
        built = cacheimage.build(
            Base(manifest.made.base_path, manifest.made.image_format, manifest.made.virtual_bytes),
            extents, str(path), quota=quota, cluster_bytes=cluster_bytes, backing_uri=uri,
            compression=compression)
        self._built[image_id] = path
        self._manifests[image_id] = manifest.making(cache_image=CacheInfo(
            path.name, built.bytes, built.data_bytes, len(built.extents), built.sha256,
            built.virtual_bytes, cluster_bytes, quota, uri, time.monotonic() - began,
            cacheimage.VERIFY_RULES))
        return self._serve(image_id, str(path))

    def serve_from(self, image_ids: Sequence[str], place: str) -> None:
        """Have cache images be served from another tier, as the storage service does.

        :param place: directory of that tier; where they were built, or where they are copied to.
        """
        for image_id in image_ids:
            path = Path(place) / self._built[image_id].name
            if not path.exists():
                shutil.copyfile(self._built[image_id], path)
            self.exporter.switch_cache(self._manifests[image_id], str(path))

    def _serve(self, image_id: str, cache_path: str | None) -> dict[str, Any]:
        manifest = self._manifests[image_id]
        self.exporter.ensure(manifest, cache_path)
        answer = self.exporter.describe(manifest)
        return {'action': 'cache' if 'cache_image' in answer else 'cold', 'watch': None,
                'image_hash': 'sha512:00', **answer}

    def check_tap(self) -> None:
        """See that the tap still runs.

        :raises RuntimeError: with its exit status and its last words.
        """
        status = self._tap.poll()
        if status is not None:
            self._messages.seek(0)
            words = self._messages.read()[-400:].decode(errors='replace')
            raise RuntimeError(f'the tap ended with status {status}: {words}')

    def sent(self) -> list[int]:
        """Return what the image server has sent since the last call: bytes of each answer."""
        sent, self._images.sent = self._images.sent, []
        return sent

    def stop(self) -> None:
        """End what runs."""
        self._images.shutdown()
        self._images.server_close()
        # By SIGTERM it would wait for its connections.
        if self._exchange is not None:
            self._exchange[0].kill()
            self._exchange[0].wait()
        self._tap.kill()
        self._tap.wait()
        for exporter in (self.exporter, *self._direct.values(),
                         *(exporter for exporter, _clones in self._in_ceph.values())):
            exporter.stop()
        for _exporter, clones in self._in_ceph.values():
            clones.stop()
        with contextlib.suppress(FileNotFoundError):
            self.log.unlink()
