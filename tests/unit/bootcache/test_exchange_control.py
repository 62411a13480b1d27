"""Messages between services and their host's exchange."""

import contextlib
import os
import socket
import threading

import pytest

from bootcache import exception
from bootcache.exchange import control


@pytest.fixture
def ends():
    """The two ends of a connection."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with first, second:
        yield first, second


def open_files():
    return len(os.listdir('/proc/self/fd'))


def send_aside(connection, data, descriptors=()):
    """Send what is too much for the socket's buffer, or for whoever reads it."""
    def run():
        with contextlib.suppress(OSError):
            sent = socket.send_fds(connection, [data[:1000]], descriptors)
            connection.sendall(data[sent:])
            connection.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_message_comes_as_it_was_sent_with_its_file(ends, tmp_path):
    (tmp_path / 'file').write_text('content')
    with open(tmp_path / 'file') as stream:
        control.send(ends[0], {'method': 'give', 'text': 'ä' * 1000}, stream.fileno())
    message, descriptor = control.receive_with_file(ends[1])
    assert message == {'method': 'give', 'text': 'ä' * 1000}
    with open(descriptor) as stream:
        assert stream.read() == 'content'


def test_a_long_message_comes_whole(ends):
    message = {'torrent': 'x' * (1 << 20)}
    thread = threading.Thread(target=control.send, args=(ends[0], message))
    thread.start()
    assert control.receive(ends[1]) == message
    thread.join()


@pytest.mark.parametrize('data, says', [
    (b'', 'too early'), (b'{"method": "lo', 'too early'), (b'[]\n', 'no object'),
    (b'nonsense\n', 'cannot be read'), (b'\xff\n', 'cannot be read'),
    (b'[' * 100_000 + b'\n', 'cannot be read'), (b'x' * (control.LONGEST + 100_000), 'too long')])
def test_what_is_no_message_is_refused_and_its_file_closed(ends, data, says):
    before = open_files()
    thread = send_aside(ends[0], data or b' ', [0])
    with pytest.raises(exception.ExchangeFailed, match=says):
        control.receive_with_file(ends[1])
    ends[1].close()
    thread.join()
    assert open_files() == before - 1
