"""The HTTP listener that services are watched by: real requests, also under eventlet."""

import contextlib
import http.client
import importlib.util
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.exception import ConfigurationError
from bootcache.http import listener
from bootcache.http.listener import HttpListener
from tools.ports import free_port

PATIENCE = 60


def conf(port=None, address='127.0.0.1'):
    found = cfg.ConfigOpts()
    found([], default_config_files=[], default_config_dirs=[])
    bootcache_conf.register_opts(found)
    found.set_override('metrics_port', port or free_port(), bootcache_conf.GROUP)
    found.set_override('metrics_address', address, bootcache_conf.GROUP)
    return found


def says(text):
    def app(environ, start_response):
        start_response('200 OK', [('Content-Type', 'text/plain')])
        return [text.encode()]

    return app


def fails(environ, start_response):
    raise ValueError('no answer')


def get(port, path, address='127.0.0.1'):
    with urllib.request.urlopen(f'http://{address}:{port}{path}', timeout=PATIENCE) as answer:
        return answer.read().decode()


@pytest.fixture
def watched():
    found = HttpListener(conf(), {'/one': says('first'), '/two': says('second'), '/bad': fails})
    yield found
    found.stop()


def test_each_path_has_its_answer(watched):
    assert get(watched.port, '/one') == 'first'
    assert get(watched.port, '/two?name=x') == 'second'
    with pytest.raises(urllib.error.HTTPError) as error:
        get(watched.port, '/other')
    assert error.value.code == 404 and b'/one and /two' in error.value.read().replace(
        b'/bad and ', b'')


def test_an_application_that_fails_ends_nothing_else(watched):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(watched.port, '/bad')
    assert error.value.code == 500
    assert get(watched.port, '/one') == 'first'


def test_who_says_nothing_holds_up_nobody_and_not_all_are_let_in(watched):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(('127.0.0.1', watched.port)))
                  for _number in range(listener._MOST_CONNECTIONS - 1)]
        assert get(watched.port, '/one') == 'first'
        # The place of the answered one may not be free yet.
        while watched._places._value != 1:
            threading.Event().wait(0.01)
        silent.append(stack.enter_context(socket.create_connection(('127.0.0.1', watched.port))))
        while watched._places._value != 0:
            threading.Event().wait(0.01)
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
            get(watched.port, '/one')
    while watched._places._value != listener._MOST_CONNECTIONS:
        threading.Event().wait(0.01)
    assert get(watched.port, '/one') == 'first'


def test_who_says_little_now_and_then_is_let_go(watched, monkeypatch):
    monkeypatch.setattr(listener, '_LONGEST_SECONDS', 0.2)
    with socket.create_connection(('127.0.0.1', watched.port)) as client:
        client.settimeout(0.01)
        for _byte in range(6000):
            try:
                if not client.recv(4096):
                    break
            except TimeoutError:
                with contextlib.suppress(ConnectionError):
                    client.send(b'G')
            except ConnectionError:
                break
        else:
            pytest.fail('it was not let go')
    monkeypatch.undo()
    assert get(watched.port, '/one') == 'first'


def test_what_is_no_request_ends_nothing(watched):
    with socket.create_connection(('127.0.0.1', watched.port)) as client:
        client.sendall(b'\0\xff' * 1000 + b'\r\n\r\n')
        while client.recv(4096):
            pass
    assert get(watched.port, '/one') == 'first'


def test_a_stopped_one_gives_its_port_back():
    settings = conf()
    for _start in range(2):
        found = HttpListener(settings, {'/': says('here')})
        assert get(settings.bootcache.metrics_port, '/') == 'here'
        found.stop()
    with pytest.raises(urllib.error.URLError):
        get(settings.bootcache.metrics_port, '/')


def test_ipv6_is_an_address_as_well():
    with contextlib.suppress(OSError), socket.create_server(('::1', 0), family=socket.AF_INET6):
        found = HttpListener(conf(address='::1'), {'/': says('here')})
        assert get(found.port, '/', '[::1]') == 'here'
        found.stop()


@pytest.mark.parametrize('address', ['127.0.0.1', '192.0.2.10', 'no.such.name.invalid',
                                     'no..name'])
def test_where_nothing_can_listen_the_options_are_named(address):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError) as error:
            HttpListener(conf(port, address), {})
    said = str(error.value)
    assert f'[bootcache]metrics_address={address}' in said and f'metrics_port={port}' in said
    assert 'set metrics_port to 0' in said


# The process has one native thread: who blocks it gets no answer.
GREEN = '''
import eventlet
eventlet.monkey_patch()
import sys
sys.path.insert(0, 'tests/unit/bootcache')
import test_http_listener as tests
from bootcache.util import threads
assert threads.is_green()
found = tests.HttpListener(tests.conf(), {'/': tests.says('green')})
silent = tests.socket.create_connection(('127.0.0.1', found.port))
for _number in range(3):
    assert tests.get(found.port, '/') == 'green'
tests.listener._LONGEST_SECONDS = 0.01
late = tests.socket.create_connection(('127.0.0.1', found.port))
assert late.recv(1) == b''
found.stop()
print('done')
'''


@pytest.mark.skipif(importlib.util.find_spec('eventlet') is None, reason='eventlet is not there')
def test_under_eventlet_nothing_blocks():
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', GREEN], capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.stdout == 'done\n', done.stderr
