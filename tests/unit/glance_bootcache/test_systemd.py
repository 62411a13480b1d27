"""What systemd is told: sd_notify(3)."""

import os
import socket

import pytest

from glance_bootcache import systemd


@pytest.fixture(params=['path', 'abstract'])
def heard(request, tmp_path, monkeypatch):
    """systemd's socket."""
    name = f'@bootcache-test-{os.getpid()}' if request.param == 'abstract' \
        else str(tmp_path / 'notify')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace('@', '\0') if name.startswith('@') else name)
        receiver.settimeout(10)
        monkeypatch.setenv('NOTIFY_SOCKET', name)
        yield receiver


def test_a_state_is_told(heard):
    systemd.notify('READY=1')
    assert heard.recv(100) == b'READY=1'


def test_nobody_needs_to_hear_it(monkeypatch, tmp_path):
    monkeypatch.delenv('NOTIFY_SOCKET', raising=False)
    systemd.notify('READY=1')
    monkeypatch.setenv('NOTIFY_SOCKET', str(tmp_path / 'gone'))
    systemd.notify('READY=1')


@pytest.mark.parametrize('told, seconds', [
    ({}, None), ({'WATCHDOG_USEC': '3000000'}, 3.0),
    ({'WATCHDOG_USEC': '3000000', 'WATCHDOG_PID': '1'}, None),
    ({'WATCHDOG_USEC': '500000', 'WATCHDOG_PID': str(os.getpid())}, 0.5),
    ({'WATCHDOG_USEC': 'soon'}, None)])
def test_within_which_seconds_it_is_to_be_told(monkeypatch, told, seconds):
    for name in ('WATCHDOG_USEC', 'WATCHDOG_PID'):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert systemd.watchdog_seconds() == seconds
