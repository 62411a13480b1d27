"""Real guests for tests: a private libvirtd in namespaces of its own, its domains and consoles.

Run as a program it moves a guest's disk and dies where it is told to.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import libvirt
from functional_tools import PATIENCE, processes_of, qemu_img, until

from bootcache import qemuimg
from bootcache.storagedaemon import StorageDaemon, UnixListener
from nova_bootcache.settling import livedisk, pivot, pivotstate, rebase
from nova_bootcache.settling.pivot import Pivot
from tools import libvirtd
from tools.libvirtd import connect

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MEMORY_MIB = 160


def _xml(name, disk, console, policies):
    # As Nova 34 has it: cache none, an I/O thread, discard.
    return f"""<domain type='qemu'>
  <name>{name}</name><memory unit='MiB'>{MEMORY_MIB}</memory><vcpu>1</vcpu>
  <iothreads>1</iothreads>
  <os><type arch='x86_64' machine='pc'>hvm</type><boot dev='hd'/></os>
  <features><acpi/><apic/></features>
  <on_poweroff>destroy</on_poweroff><on_crash>destroy</on_crash>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='none' discard='unmap' iothread='1'
              {policies}/>
      <source file='{disk}'/><target dev='vda' bus='virtio'/></disk>
    <serial type='unix'><source mode='bind' path='{console}'/><target port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>"""


class Images:
    """An image, its full base, a cache image, and the gateway that serves what this lacks."""

    def __init__(self, home):
        image = subprocess.run([f'{TOP}/tools/images/make.sh', 'small'], check=True,
                               capture_output=True, text=True).stdout.strip()
        self.full, self.cache = f'{home}/full', f'{home}/cacheimage'
        qemu_img('convert', '-f', 'qcow2', '-O', 'raw', image, self.full)
        self.virtual_bytes = os.path.getsize(self.full)
        self.gateway_socket = f'{home}/gateway/nbd'
        self.gateway = StorageDaemon('gateway', f'{home}/gateway',
                                     UnixListener(self.gateway_socket))
        self.serve()
        qemuimg.create_overlay(self.cache, self.virtual_bytes,
                               f'nbd+unix:///base?socket={self.gateway_socket}', 'raw',
                               cluster_bytes=65536)

    def serve(self):
        """Start the gateway, if it does not run."""
        if self.gateway.ensure_running():
            self.gateway.add_nodes({'driver': 'file', 'node-name': 'base', 'read-only': True,
                                    'filename': self.full})
            self.gateway.add_export('base', 'base')

    def land(self):
        """Have a cache image with all of the data take the place of the one that has the name."""
        coming = f'{self.cache}.partial'
        qemuimg.create_overlay(coming, self.virtual_bytes,
                               f'nbd+unix:///base?socket={self.gateway_socket}', 'raw',
                               cluster_bytes=65536)
        qemu_img('convert', '-n', '-f', 'raw', '-O', 'qcow2', self.full, coming)
        os.rename(coming, self.cache)

    def overlay(self, path):
        """Make a server's overlay on the cache image, as the driver does."""
        qemuimg.create_overlay(path, self.virtual_bytes, self.cache, 'qcow2',
                               cluster_bytes=128 << 10, subclusters=True)


class Guest:
    """A server with a directory of its own."""

    def __init__(self, home, connection, images, name, policies=''):
        self.home, self.images, self.name = home, images, name
        self.connection = connection
        self.directory = f'{home}/instances/{name}'
        self.disk = f'{self.directory}/disk'
        os.makedirs(self.directory)
        images.overlay(self.disk)
        self._console = f'{home}/{name}.console'
        # Whether it is moved from an earlier cache image to the one that has its name now.
        self.lands = False
        self.domain = connection.defineXML(_xml(name, self.disk, self._console, policies))
        self._socket, self._heard = None, b''

    def boot(self):
        """Start it and wait until it can be spoken to; it checks its boot files by itself."""
        self.domain.create()
        self.connect()
        self.log_in()

    def connect(self):
        """Listen to its console."""
        self._socket, self._heard = socket.socket(socket.AF_UNIX), b''
        self._socket.settimeout(PATIENCE)
        self._socket.connect(self._console)

    def log_in(self):
        """Wait until it has booted, and its boot files are right."""
        assert 'bootcache-check: ok' in self._hear('small login: ')
        # The mark is missing at the very first boot.
        self._socket.sendall(b'\n')
        self._hear('small> ')

    def _hear(self, text):
        while text.encode() not in self._heard:
            more = self._socket.recv(65536)
            assert more, f'the guest ended: {self._heard!r}'
            self._heard += more
        end = self._heard.index(text.encode()) + len(text)
        heard, self._heard = self._heard[:end], self._heard[end:]
        return heard.decode(errors='replace')

    def tell(self, command):
        """Give it a command without waiting for the answer."""
        self._socket.sendall(command.encode() + b'\n')

    def answer(self, command):
        """Return what it answered to a command."""
        self._hear(f'{command.split()[0]}: ')
        return self._hear('small> ').split('\r\n')[0]

    def ask(self, command):
        """Give it a command and return the answer, such as ``ok``."""
        self.tell(command)
        return self.answer(command)

    def find_domain(self):
        """Return its domain, as Nova does."""
        return self.domain

    @property
    def pid(self):
        """QEMU's process id."""
        with open(f'{self.home}/run/qemu/{self.name}.pid') as stream:
            return int(stream.read())

    def kill(self):
        """End QEMU as a crash does."""
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.domain.isActive(), 'the end of QEMU')

    def stop(self):
        """End QEMU, if it runs."""
        with contextlib.suppress(libvirt.libvirtError):
            self.domain.destroy()

    @property
    def backing(self):
        """What its disk is on by its header, and the format of that."""
        details = qemuimg.info(self.disk, 'qcow2')
        return details['full-backing-filename'], details['backing-filename-format']

    def way(self):
        """Where its disk can be moved to, and from where: the full base, or back."""
        images = self.images
        if self.lands:
            return [(images.cache, 'qcow2')] * 2
        pair = [(images.full, 'raw'), (images.cache, 'qcow2')]
        return pair if self.backing[0] == images.cache else pair[::-1]

    def pivot(self, rate=0):
        """Return a pivot to where its disk is not now."""
        (base, base_format), (cache_image, _format) = self.way()
        return Pivot(self.find_domain, self.directory, base, base_format, cache_image, rate)

    def files(self):
        """The names in its directory."""
        return sorted(os.listdir(self.directory))

    def child(self, action, kill_at=0, kills=(), functions=(), rate=0):
        """Move its disk in a process of its own, which dies at a line.

        :param action: ``move``, ``recover`` or ``rebase``.
        :param kill_at: number of the line, among those of ``functions``; 0 for none.
        :param kills: processes that die just before, as on a host that crashes.
        :returns: the lines that were begun, and whether it came to its end.
        """
        (base, base_format), (cache_image, _format) = self.way()
        order = {'home': self.home, 'name': self.name, 'directory': self.directory, 'base': base,
                 'base_format': base_format, 'cache_image': cache_image, 'rate': rate,
                 'action': action, 'kill_at': kill_at, 'kills': kills, 'functions': functions}
        done = subprocess.run([sys.executable, '-W', 'ignore', __file__, json.dumps(order)],
                              cwd=TOP, capture_output=True, text=True, timeout=PATIENCE,
                              env={**os.environ, 'PYTHONPATH': TOP})
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.stdout.split(), done.returncode == 0


MODULES = {module.__file__ for module in (livedisk, pivot, pivotstate, rebase)}


def move_of(host, guest, rate=0):
    """A move of a guest to where its disk is not, as the settler makes it.

    :param host: the host's calls to libvirt.
    """
    moved = guest.pivot(rate)
    moved._find_domain = lambda: host.find(guest.domain.UUIDString())
    return moved


def move(host, guest):
    """Move a guest to where its disk is not."""
    moved = move_of(host, guest)
    moved.begin()
    moved.wait_ready(threading.Event())
    moved.finish()


def _die_at(kill_at, kills, functions):
    """Have this process killed when it begins the ``kill_at``-th line of some functions."""
    begun = 0

    def trace(frame, event, _argument):
        nonlocal begun
        if frame.f_code.co_filename not in MODULES or frame.f_code.co_name not in functions:
            return None
        if event == 'line':
            begun += 1
            print(f'{frame.f_code.co_name}:{frame.f_lineno}', flush=True)
            if begun == kill_at:
                for pid in kills:
                    os.kill(pid, signal.SIGKILL)
                    while os.path.exists(f'/proc/{pid}/exe'):
                        time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def _main(order):
    import threading
    domain = connect(order['home']).lookupByName(order['name'])
    _die_at(order['kill_at'], order['kills'], order['functions'])
    if order['action'] == 'recover':
        pivot.recover(order['directory'], domain)
    elif order['action'] == 'rebase':
        rebase.rebase_stopped(order['directory'], order['cache_image'], order['base'],
                              order['base_format'], domain)
    else:
        moved = Pivot(lambda: domain, order['directory'], order['base'], order['base_format'],
                      order['cache_image'], order['rate'])
        moved.begin()
        moved.wait_ready(threading.Event())
        moved.finish()


@contextlib.contextmanager
def at_home(prefix):
    """A maker of guests: a short directory with a libvirtd, and images with a gateway.

    :param prefix: of the directory's name.
    """
    # Unix socket paths end at 107 bytes.
    home = tempfile.mkdtemp(prefix=prefix, dir='/tmp')
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home)
        process, connection = libvirtd.start(home)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        images = Images(home)
        stack.callback(images.gateway.stop)

        def make(name, *more):
            images.serve()
            guest = Guest(home, connection, images, name, *more)
            stack.callback(guest.stop)
            return guest

        yield make
    assert processes_of(home) == []


if __name__ == '__main__':
    _main(json.loads(sys.argv[1]))
