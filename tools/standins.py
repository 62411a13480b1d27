"""Stands for Keystone, Nova, Glance and Barbican, where a test or benchmark cannot have them.

Answers a service's first questions over HTTP, gives out images, and certificates as Barbican does.
tests/e2e has the real services.
"""

import contextlib
import functools
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PASSWORD = 'right'
REGION = 'RegionOne'
TOKEN = 'a-token'
_IMAGE = re.compile(r'/image/v2/images/([^/]+)(/file)?')
_SECRET = re.compile(r'/key-manager/v1/secrets/([^/]+)(/payload)?')
_ABSENT = {'code': 404, 'title': 'Not Found', 'description': 'Not found.'}
_FLAVOR = {'id': '1', 'name': 'm1.tiny', 'ram': 512, 'disk': 1, 'vcpus': 1, 'links': [],
           'os-flavor-access:is_public': True, 'extra_specs': {}}
_FIXED = {
    '/compute': {'version': {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.96',
                             'min_version': '2.1', 'links': []}},
    '/compute/flavors/detail': {'flavors': [_FLAVOR]},
    '/compute/os-availability-zone': {'availabilityZoneInfo': [
        {'zoneName': 'nova', 'zoneState': {'available': True}, 'hosts': None}]},
    '/compute/servers/detail': {'servers': []},
    '/compute/os-services': {'services': []},
    '/image/v2/schemas/image': {'name': 'image', 'properties': {
        'min_disk': {'type': 'integer'}, 'min_ram': {'type': 'integer'},
        'size': {'type': 'integer'}}, 'additionalProperties': {'type': 'string'}}}


class StandIns(ThreadingHTTPServer):
    """The server of all four; ``serving`` runs it.

    :param images: bytes of raw images by id, for Glance; images that are added later are there.
    :param properties: of images, by id, beside those that each has.
    :param certificates: PEM by id, for Barbican.
    :param asked: gets the id and the token of each request for a certificate.
    :param lists_images: whether Glance's list has the images.
    """

    # Of a burst of a service's requests.
    request_queue_size = 128

    def __init__(self, images: Mapping[str, bytes],
                 properties: Mapping[str, Mapping[str, Any]] | None = None,
                 certificates: Mapping[str, bytes] | None = None,
                 asked: list[tuple[str, str | None]] | None = None, lists_images: bool = False):
        super().__init__(('127.0.0.1', 0), _Handler)
        self.images, self.properties = images, properties or {}
        self.certificates = certificates or {}
        self.asked = [] if asked is None else asked
        self.lists_images = lists_images
        self.url = f'http://127.0.0.1:{self.server_port}'

    def image(self, image_id: str) -> dict[str, Any]:
        """Return an image as Glance shows it."""
        content = self.images[image_id]
        return {'id': image_id, 'status': 'active', 'disk_format': 'raw', 'visibility': 'public',
                'container_format': 'bare', 'size': len(content), 'owner': 'p', 'min_disk': 0,
                'min_ram': 0, 'os_hash_algo': 'sha512', 'os_hash_value': _sha512(content),
                **self.properties.get(image_id, {})}


@functools.cache
def _sha512(content: bytes) -> str:
    return hashlib.sha512(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: StandIns

    def _answer(self, code: int, document: Any, **headers: str) -> None:
        self._send(json.dumps(document).encode(), 'application/json', code, headers)

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        if self.path != '/v3/auth/tokens':
            return self._answer(404, {})
        if document['auth']['identity']['password']['user']['password'] != PASSWORD:
            return self._answer(401, {'error': {
                'code': 401, 'title': 'Unauthorized',
                'message': 'The request you have made requires authentication.'}})
        catalog = [{'type': name, 'id': name, 'name': name, 'endpoints': [
            {'interface': interface, 'region': REGION, 'region_id': REGION, 'id': 'x',
             'url': f'{self.server.url}/{name}'}
            for interface in ('public', 'internal', 'admin')]}
            for name in ('compute', 'image', 'key-manager')]
        return self._answer(201, {'token': {
            'methods': ['password'], 'expires_at': '2099-01-01T00:00:00.000000Z',
            'issued_at': '2026-01-01T00:00:00.000000Z', 'user': {'id': 'u', 'name': 'bootcache',
            'domain': {'id': 'default', 'name': 'Default'}},
            'project': {'id': 'p', 'name': 'service',
                        'domain': {'id': 'default', 'name': 'Default'}},
            'roles': [{'id': 'r', 'name': 'admin'}], 'catalog': catalog}}, X_Subject_Token=TOKEN)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path in _FIXED:
            return self._answer(200, _FIXED[url.path])
        if url.path == '/image/v2/images':
            hidden = parse_qs(url.query).get('os_hidden', ['false'])[0].lower() == 'true'
            is_wanted = self.server.lists_images and not hidden
            return self._answer(200, {'images': [
                self.server.image(image_id) for image_id in list(self.server.images)
                if is_wanted]})
        if (image := _IMAGE.fullmatch(url.path)) and image[1] in self.server.images:
            if image[2]:
                return self._send(self.server.images[image[1]])
            return self._answer(200, self.server.image(image[1]))
        if url.path.rstrip('/') == '/key-manager':
            return self._answer(200, {'versions': [{
                'id': 'v1', 'status': 'CURRENT', 'min_version': '1.0', 'max_version': '1.1',
                'links': [{'rel': 'self', 'href': f'{self.server.url}/key-manager/v1/'}]}]})
        if (secret := _SECRET.fullmatch(url.path)) and secret[1] in self.server.certificates:
            return self._give_secret(secret[1], bool(secret[2]))
        return self._answer(404, _ABSENT)

    def _give_secret(self, name: str, payload: bool) -> None:
        if payload:
            return self._send(self.server.certificates[name])
        self.server.asked.append((name, self.headers['X-Auth-Token']))
        return self._answer(200, {
            'status': 'ACTIVE', 'secret_type': 'certificate', 'name': name,
            'algorithm': None, 'bit_length': None, 'mode': None, 'expiration': None,
            'created': '2026-01-01T00:00:00', 'updated': '2026-01-01T00:00:00',
            'content_types': {'default': 'application/octet-stream'},
            'secret_ref': f'{self.server.url}/key-manager/v1/secrets/{name}'})

    def _send(self, content: bytes, kind: str = 'application/octet-stream', code: int = 200,
              headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {'Content-Type': kind, 'Content-Length': str(len(content)),
                            **(headers or {})}.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        self.wfile.write(content)

    def do_PATCH(self) -> None:
        """An image's properties change, which nobody looks at."""
        self.rfile.read(int(self.headers['Content-Length']))
        self.do_GET()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(*arguments: Any, **options: Any) -> Iterator[str]:
    """Serve on a port of the loopback interface; gives the URL for ``auth_url``.

    The arguments are those of ``StandIns``.
    """
    server = StandIns(*arguments, **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f'{server.url}/v3'
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
