"""Stands for Keystone, Nova and Glance, which a functional test cannot have: their answers to a
service's first questions, over HTTP, and some images. tests/e2e asks the real ones. Barbican, which
no test has, gives out certificates."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSWORD = 'right'
REGION = 'RegionOne'
TOKEN = 'a-token'


class _Handler(BaseHTTPRequestHandler):
    def _answer(self, code, document, **headers):
        body = json.dumps(document).encode()
        self.send_response(code)
        for name, value in {'Content-Type': 'application/json', 'Content-Length': str(len(body)),
                            **headers}.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        document = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        url = f'http://127.0.0.1:{self.server.server_port}'
        if self.path != '/v3/auth/tokens':
            return self._answer(404, {})
        if document['auth']['identity']['password']['user']['password'] != PASSWORD:
            return self._answer(401, {'error': {
                'code': 401, 'title': 'Unauthorized',
                'message': 'The request you have made requires authentication.'}})
        catalog = [{'type': name, 'id': name, 'name': name, 'endpoints': [
            {'interface': interface, 'region': REGION, 'region_id': REGION, 'id': 'x',
             'url': f'{url}/{name}'} for interface in ('public', 'internal', 'admin')]}
            for name in ('compute', 'image', 'key-manager')]
        return self._answer(201, {'token': {
            'methods': ['password'], 'expires_at': '2099-01-01T00:00:00.000000Z',
            'issued_at': '2026-01-01T00:00:00.000000Z', 'user': {'id': 'u', 'name': 'bootcache',
            'domain': {'id': 'default', 'name': 'Default'}},
            'project': {'id': 'p', 'name': 'service',
                        'domain': {'id': 'default', 'name': 'Default'}},
            'roles': [{'id': 'r', 'name': 'admin'}], 'catalog': catalog}}, X_Subject_Token=TOKEN)

    def do_GET(self):
        path = self.path.partition('?')[0]
        flavor = {'id': '1', 'name': 'm1.tiny', 'ram': 512, 'disk': 1, 'vcpus': 1, 'links': [],
                  'os-flavor-access:is_public': True, 'extra_specs': {}}
        answers = {
            '/compute': {'version': {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.96',
                                     'min_version': '2.1', 'links': []}},
            '/compute/flavors/detail': {'flavors': [flavor]},
            '/compute/os-availability-zone': {'availabilityZoneInfo': [
                {'zoneName': 'nova', 'zoneState': {'available': True}, 'hosts': None}]},
            '/compute/servers/detail': {'servers': []}, '/image/v2/images': {'images': []},
            '/image/v2/schemas/image': {'name': 'image', 'properties': {
                'min_disk': {'type': 'integer'}, 'min_ram': {'type': 'integer'},
                'size': {'type': 'integer'}}, 'additionalProperties': {'type': 'string'}}}
        for image_id, content in self.server.images.items():
            if path == f'/image/v2/images/{image_id}/file':
                return self._send(content)
            answers[f'/image/v2/images/{image_id}'] = {
                'id': image_id, 'status': 'active', 'disk_format': 'raw', 'visibility': 'public',
                'container_format': 'bare', 'size': len(content), 'owner': 'p', 'min_disk': 0,
                'min_ram': 0, 'os_hash_algo': 'sha512',
                'os_hash_value': hashlib.sha512(content).hexdigest(),
                **self.server.properties.get(image_id, {})}
        url = f'http://127.0.0.1:{self.server.server_port}/key-manager'
        answers['/key-manager'] = answers['/key-manager/'] = {'versions': [{
            'id': 'v1', 'status': 'CURRENT', 'min_version': '1.0', 'max_version': '1.1',
            'links': [{'rel': 'self', 'href': f'{url}/v1/'}]}]}
        for name, certificate in self.server.certificates.items():
            secret = f'/key-manager/v1/secrets/{name}'
            if path == f'{secret}/payload':
                return self._send(certificate)
            if path == secret:
                self.server.asked.append((name, self.headers['X-Auth-Token']))
                answers[path] = {
                    'status': 'ACTIVE', 'secret_type': 'certificate', 'name': name,
                    'algorithm': None, 'bit_length': None, 'mode': None, 'expiration': None,
                    'created': '2026-01-01T00:00:00', 'updated': '2026-01-01T00:00:00',
                    'content_types': {'default': 'application/octet-stream'},
                    'secret_ref': f'{url}/v1/secrets/{name}'}
        return self._answer(200 if path in answers else 404, answers.get(path, {
            'code': 404, 'title': 'Not Found', 'description': 'Not found.'}))

    def _send(self, content):
        self.send_response(200)
        self.send_header('Content-Type', 'application/octet-stream')
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_PATCH(self):
        """An image's properties change, which nobody looks at."""
        self.rfile.read(int(self.headers['Content-Length']))
        self.do_GET()

    def log_message(self, *_arguments):
        """Say nothing."""


@contextlib.contextmanager
def keystone(images=(), properties=None, certificates=None, asked=None):
    """Serve on a port of its own; gives the URL for ``auth_url``.

    :param images: bytes of raw images by id, for Glance.
    :param properties: of images, by id, beside those that each has.
    :param certificates: PEM by id, for Barbican.
    :param asked: gets the id and the token of who asks for one.
    """
    server = ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
    server.images = dict(images)
    server.properties, server.certificates = properties or {}, certificates or {}
    server.asked = [] if asked is None else asked
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f'http://127.0.0.1:{server.server_port}/v3'
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
