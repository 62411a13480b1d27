"""Stands for Keystone and Nova, which a functional test cannot have: their answers to a service's
first questions, over HTTP. tests/e2e asks the real ones."""

import contextlib
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
            for name in ('compute', 'image')]
        return self._answer(201, {'token': {
            'methods': ['password'], 'expires_at': '2099-01-01T00:00:00.000000Z',
            'issued_at': '2026-01-01T00:00:00.000000Z', 'user': {'id': 'u', 'name': 'bootcache',
            'domain': {'id': 'default', 'name': 'Default'}},
            'project': {'id': 'p', 'name': 'service',
                        'domain': {'id': 'default', 'name': 'Default'}},
            'roles': [{'id': 'r', 'name': 'admin'}], 'catalog': catalog}}, X_Subject_Token=TOKEN)

    def do_GET(self):
        path = self.path.partition('?')[0]
        flavor = {'id': '1', 'name': 'm1.tiny', 'ram': 512, 'disk': 1, 'vcpus': 1, 'links': []}
        answers = {
            '/compute': {'version': {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.96',
                                     'min_version': '2.1', 'links': []}},
            '/compute/flavors/detail': {'flavors': [flavor]},
            '/compute/os-availability-zone': {'availabilityZoneInfo': [
                {'zoneName': 'nova', 'zoneState': {'available': True}, 'hosts': None}]},
            '/compute/servers/detail': {'servers': []}, '/image/v2/images': {'images': []}}
        return self._answer(200 if path in answers else 404, answers.get(path, {}))

    def log_message(self, *_arguments):
        """Say nothing."""


@contextlib.contextmanager
def keystone():
    """Serve on a port of its own; gives the URL for ``auth_url``."""
    server = ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f'http://127.0.0.1:{server.server_port}/v3'
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
