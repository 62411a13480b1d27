"""A compute host, its storage node and a firewall between them, each in a network of its own."""

import contextlib
import ctypes
import os
import subprocess
from pathlib import Path

_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
# Of the networks that RFC 5737 keeps for examples.
HOST, HOST_GATE = '192.0.2.2', '192.0.2.1'
STORAGE, STORAGE_GATE = '198.51.100.2', '198.51.100.1'
# The most that a link takes at once, and that a narrow one does.
LINK_BYTES, NARROW_BYTES = 1500, 1300


def _check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _here():
    return os.open('/proc/thread-self/ns/net', os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def _inside(network):
    """This thread is in a network, and so are the processes and threads that it starts."""
    before = _here()
    _check(_LIBC.setns(network, _NEWNET))
    try:
        yield
    finally:
        _check(_LIBC.setns(before, _NEWNET))
        os.close(before)


class Way:
    """The way from a compute host to a storage node, over a firewall that forwards.

    This thread is in the host's network, and goes back to the one before with the end of the
    block.
    """

    def __init__(self):
        self._before, self._made = _here(), []

    def __enter__(self):
        self._host, self._firewall, self._storage = (self._make() for _network in range(3))
        _check(_LIBC.setns(self._host, _NEWNET))
        self._link('to-host', HOST_GATE, self._host, HOST)
        self._link('to-storage', STORAGE_GATE, self._storage, STORAGE)
        self._set('ipv4/ip_forward', 1)
        # Of connections those pass that the firewall has seen from their start and still knows.
        self._filter('-P', 'FORWARD', 'DROP')
        self._filter('-A', 'FORWARD', '-p', 'tcp', '--syn', '-j', 'ACCEPT')
        self._filter('-A', 'FORWARD', '-m', 'conntrack', '--ctstate', 'ESTABLISHED', '-j', 'ACCEPT')
        return self

    def __exit__(self, *_error):
        _check(_LIBC.setns(self._before, _NEWNET))
        for network in (*self._made, self._before):
            os.close(network)

    def _make(self):
        with _inside(self._before):
            _check(_LIBC.unshare(_NEWNET))
            subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
            self._made.append(_here())
        return self._made[-1]

    def _link(self, name, gate, network, address):
        with _inside(self._firewall):
            self._run('ip', 'link', 'add', name, 'type', 'veth', 'peer', 'name', 'card', 'netns',
                      f'/proc/{os.getpid()}/fd/{network}')
            self._run('ip', 'address', 'add', f'{gate}/24', 'dev', name)
            self._run('ip', 'link', 'set', name, 'up', 'mtu', str(LINK_BYTES))
        with _inside(network):
            self._run('ip', 'address', 'add', f'{address}/24', 'dev', 'card')
            self._run('ip', 'link', 'set', 'card', 'up')
            self._run('ip', 'route', 'add', 'default', 'via', gate)

    def _run(self, *command):
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def _filter(self, *rule):
        path = f'{os.environ["PATH"]}:/usr/sbin'
        with _inside(self._firewall):
            subprocess.run(['iptables', '-w', *rule], check=True, env={'PATH': path})

    def _set(self, name, value):
        with _inside(self._firewall):
            Path('/proc/sys/net', name).write_text(str(value))

    def at_storage(self):
        """Be the storage node within the block."""
        return _inside(self._storage)

    def forget_soon(self):
        """Have each connection forgotten that is idle for a second from its next packet on."""
        self._set('netfilter/nf_conntrack_tcp_timeout_established', 1)

    def known(self):
        """Return how many established connections the firewall knows."""
        with _inside(self._firewall):
            return Path('/proc/thread-self/net/nf_conntrack').read_text().count(' ESTABLISHED ')

    def narrow(self):
        """Make the link to the host narrower, and let nobody be told."""
        self._filter('-A', 'OUTPUT', '-p', 'icmp', '-j', 'DROP')
        with _inside(self._firewall):
            self._run('ip', 'link', 'set', 'to-host', 'mtu', str(NARROW_BYTES))
