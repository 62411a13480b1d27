"""A network of hosts on one machine: a namespace each, a switch, and links of a stated rate.

All of it is in namespaces whose names begin with ``bcr`` and the id of the process that made them,
the switch too, so that nothing of the machine's own network changes. What a process that was
killed left behind is removed by the next one.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator

_NAME = re.compile(r'bcr(\d+)-\w+')
_NEWNET, _NEWNS = 0x40000000, 0x00020000
_LIBC = ctypes.CDLL(None, use_errno=True)
STORAGE_ADDRESS = '10.77.0.1'


class NetworkError(Exception):
    """The network cannot be made."""


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise NetworkError(f'{" ".join(command)} failed: {done.stderr.strip()}'
                           f' {(text or "")[:200]}')
    return done.stdout


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise NetworkError(f'{name}: {os.strerror(number)}')


def enter(name: str) -> None:
    """Move this thread, and what it starts from now on, into a namespace."""
    with open(f'/run/netns/{name}') as stream:
        _call('setns', stream.fileno(), _NEWNET)


def see_as(directory: str, path: str) -> None:
    """Have this process, and what it starts, see a directory under another path as well.

    So each host has its files at the same place, as real hosts do.

    :param path: of an empty directory.
    """
    _call('unshare', _NEWNS)
    private, bind = 1 << 18, 4096
    recursive = 1 << 14
    _call('mount', b'none', b'/', None, ctypes.c_ulong(private | recursive), None)
    _call('mount', os.fsencode(directory), os.fsencode(path), None, ctypes.c_ulong(bind), None)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _call('prctl', 1, ctypes.c_ulong(signal.SIGKILL))


def sharp_timers() -> None:
    """Have this thread's short sleeps end on time: within a microsecond, not fifty."""
    _call('prctl', 29, ctypes.c_ulong(1000))


def kill_all(name: str) -> None:
    """Kill the processes of a namespace of ours, and wait until they are gone."""
    if not _NAME.fullmatch(name):
        raise NetworkError(f'{name} is not ours')
    deadline = time.monotonic() + 20
    while pids := _run('ip', 'netns', 'pids', name).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise NetworkError(f'processes {pids} in {name} do not end')
        time.sleep(0.02)


def _names() -> list[str]:
    listed = _run('ip', 'netns', 'list').splitlines()
    return [line.split()[0] for line in listed if line.split() and _NAME.fullmatch(line.split()[0])]


def remove_stale() -> None:
    """Remove the namespaces of processes that are gone, with what still runs in them."""
    for name in _names():
        match = _NAME.fullmatch(name)
        assert match is not None
        if not os.path.exists(f'/proc/{match.group(1)}'):
            kill_all(name)
            _run('ip', 'netns', 'delete', name)


class Network:
    """The namespaces of one run.

    :ivar storage: name of the storage node's.
    :ivar hosts: names of the hosts'.
    :ivar machines: names of those of other machines.
    """

    def __init__(self, hosts: int, machines: int = 0):
        self._prefix = f'bcr{os.getpid()}'
        self._switch = f'{self._prefix}-switch'
        self.storage = f'{self._prefix}-storage'
        self.hosts = [f'{self._prefix}-h{number}' for number in range(1, hosts + 1)]
        self.machines = [f'{self._prefix}-m{number}' for number in range(1, machines + 1)]

    def make(self) -> None:
        """Make namespaces, switch and links, not yet shaped.

        :raises NetworkError: if the machine does not let us.
        """
        for name in (self._switch, *self._all):
            _run('ip', 'netns', 'add', name)
            _run('ip', '-n', name, 'link', 'set', 'lo', 'up')
        lines = ['link add br0 type bridge stp_state 0', 'link set br0 up']
        for number, name in enumerate(self._all):
            lines += [f'link add p{number} type veth peer name eth0 netns {name}',
                      f'link set p{number} master br0', f'link set p{number} up']
        _run('ip', '-n', self._switch, '-batch', '-', text='\n'.join(lines) + '\n')
        for name in self._all:
            _run('ip', '-n', name, '-batch', '-', text=(
                f'addr add {self.address(name)}/16 dev eth0\nlink set eth0 up\n'))

    @property
    def _all(self) -> list[str]:
        return [self.storage, *self.hosts, *self.machines]

    def address(self, name: str) -> str:
        """Return the address that a machine has in this network."""
        number = self._all.index(name) + 1
        return f'10.77.{number >> 8}.{number & 255}'

    def sent(self, name: str) -> int:
        """Return how many bytes a machine has sent so far, headers included."""
        shown = json.loads(_run('ip', '-n', name, '-j', '-s', 'link', 'show', 'dev', 'eth0'))
        return int(shown[0]['stats64']['tx']['bytes'])

    def shape(self, rate: int) -> None:
        """Limit each link, both ways.

        :param rate: bits a second; 0 for no limit.
        """
        verb = f'replace dev {{}} root tbf rate {rate}bit burst 128kb latency 400ms'
        if not rate:
            verb = 'replace dev {} root pfifo'
        ports = [f'qdisc {verb.format(f"p{number}")}' for number in range(len(self._all))]
        _run('tc', '-n', self._switch, '-batch', '-', text='\n'.join(ports) + '\n')
        for name in self._all:
            _run('tc', '-n', name, 'qdisc', *verb.format('eth0').split())

    def remove(self) -> None:
        """End what runs in the namespaces, and remove them."""
        present = set(_names())
        for name in (*self.hosts, *self.machines, self.storage, self._switch):
            if name in present:
                kill_all(name)
                _run('ip', 'netns', 'delete', name)


@contextlib.contextmanager
def network(hosts: int, rate: int, machines: int = 0) -> Iterator[Network]:
    """Make a network, and remove it whatever happens.

    :param rate: of each link, bits a second; 0 for no limit.
    :param machines: how many others there are beside hosts and storage node.
    """
    if os.geteuid():
        raise NetworkError('network namespaces are made by root; run this as root')
    remove_stale()
    made = Network(hosts, machines)
    try:
        made.make()
        made.shape(rate)
        yield made
    finally:
        made.remove()
