"""Whether Glance lets a server's user download an image, asked by Nova's own client over HTTP.

A small HTTP server stands for Glance, so that a test can see how much of the image it sends."""

import http.server
import threading

import pytest
from functional_tools import until
from nova import context as nova_context
from nova.virt.libvirt import imagebackend

from nova_bootcache.novadriver import downloads

CONF = imagebackend.CONF
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
PIECE = bytes(1 << 20)
MOST_PIECES = 1000


class Glance(http.server.BaseHTTPRequestHandler):
    """Answers with ``status``; data never ends, unless whoever reads it goes."""

    status, asked, sent, ended = 200, [], 0, False

    def do_GET(self):
        """A download."""
        self.asked.append((self.path, self.headers['X-Auth-Token']))
        self.send_response(self.status)
        self.send_header('Content-Type', 'application/octet-stream')
        pieces = MOST_PIECES if self.status == 200 else 0
        self.send_header('Content-Length', str(pieces * len(PIECE)))
        self.end_headers()
        try:
            for _piece in range(pieces):
                self.wfile.write(PIECE)
                type(self).sent += 1
        except OSError:
            type(self).ended = True

    def log_message(self, *_words):
        """Say nothing."""


@pytest.fixture
def glance():
    """Nova's Glance is this one."""
    kind = type('OneGlance', (Glance,), {'asked': []})
    CONF([], project='nova', default_config_files=[], default_config_dirs=[])
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        CONF.set_override('endpoint_override', f'http://127.0.0.1:{server.server_port}', 'glance')
        CONF.set_override('num_retries', 0, 'glance')
        yield kind
        CONF.clear_override('endpoint_override', 'glance')
        CONF.clear_override('num_retries', 'glance')
        server.shutdown()


@pytest.fixture
def context():
    """Of a request of a user who is nobody special."""
    return nova_context.RequestContext('user', 'project', is_admin=False, auth_token='the-users')


def test_a_user_who_may_download_it_does_not(glance, context):
    assert downloads.refusal(context, IMAGE) == ''
    assert glance.asked == [(f'/v2/images/{IMAGE}/file', 'the-users')]
    until(lambda: glance.ended, 'the end of the download')
    # What fits into the buffers on the way.
    assert glance.sent < MOST_PIECES / 4


@pytest.mark.parametrize('status', [403, 404])
def test_one_who_may_not(glance, context, status):
    glance.status = status
    assert IMAGE in downloads.refusal(context, IMAGE)


@pytest.mark.parametrize('status', [401, 409, 500, 503])
def test_a_glance_that_does_not_say_so_does_not_refuse(glance, context, status, caplog):
    glance.status = status
    assert downloads.refusal(context, IMAGE) == ''
    assert 'does not say' in caplog.text


def test_without_a_request_nobody_is_asked(glance, caplog):
    assert downloads.refusal(None, IMAGE) == '' and 'does not say' in caplog.text


def test_a_glance_that_hangs_holds_up_no_server(glance, context, monkeypatch, caplog):
    """It takes the question, and says nothing: Nova's own patience has no end."""
    goes_on = threading.Event()
    monkeypatch.setattr(glance, 'do_GET', lambda self: goes_on.wait(60))
    monkeypatch.setattr(downloads, '_PATIENCE_SECONDS', 0.5)
    try:
        assert downloads.refusal(context, IMAGE) == '' and 'does not say' in caplog.text
    finally:
        goes_on.set()
