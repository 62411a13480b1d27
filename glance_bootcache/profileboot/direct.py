"""Profile boots by libvirt on this machine, for clouds' storage nodes and for the command line.

QEMU without KVM is not a security boundary (QEMU's own security page), so an image boots here with
TCG only if whoever asks says so.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from xml.sax import saxutils

from oslo_log import log as logging

from bootcache import ending, exception, naming, properties, qemuimg
from bootcache.bootend import BootEnd, BootMarker, FoundEnd
from bootcache.cacheimage import Base
from bootcache.ending import ProfileJudge
from bootcache.growingstore import StoreKeeper
from bootcache.recording import Recording
from bootcache.storagedaemon import StorageDaemon, UnixListener
from bootcache.workingset import Extent
from glance_bootcache.profileboot import acceleration, notbooted

LOG = logging.getLogger(__name__)

EMBEDDED = 'embedded'
DISK_LIMIT = 4 << 30
CONSOLE_LIMIT = 16 << 20
_POLL_SECONDS = 0.5
# libvirt's VIR_DOMAIN_PAUSED: nothing but an error of its disk has a machine of ours stop.
_PAUSED = 3
# What a machine writes a second at most: its overlay is looked at twice in that time.
_WRITE_RATE = 256 << 20
_QEMU_CONF = """\
security_driver = "none"
user = "{user}"
group = "{group}"
dynamic_ownership = 0
remember_owner = 0
stdio_handler = "file"
namespaces = []
cgroup_controllers = []
"""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine that an image boots on.

    :ivar connection: a libvirt URI, or ``embedded`` for a private QEMU driver in this process;
        libvirt allows a process one of those in its life.
    :ivar memory: MiB.
    :ivar vcpus: how many.
    :ivar allow_tcg: boot it although KVM does not run guests here.
    :ivar disk_limit: bytes that it may write to its disk; a boot that writes more is given up.
    :ivar console_limit: bytes of its console that are kept on this machine's disk, about; what is
        older is dropped.
    """

    connection: str = EMBEDDED
    memory: int = 1024
    vcpus: int = 1
    allow_tcg: bool = False
    disk_limit: int = DISK_LIMIT
    console_limit: int = CONSOLE_LIMIT


def domain_xml(name: str, machine: Machine, accelerator: str, disk: str, console: str,
               config_drive: str | None) -> str:
    """Return the domain's definition: disk by virtio, console to a file, no network. Pure.

    :param accelerator: kvm or qemu.
    """
    quote = saxutils.quoteattr
    cpu = "<cpu mode='host-model'/>" if accelerator == 'kvm' else ''
    seed = '' if config_drive is None else (
        f"<disk type='file' device='disk'><driver name='qemu' type='raw'/>"
        f"<source file={quote(config_drive)}/><target dev='vdb' bus='virtio'/><readonly/></disk>")
    return f"""<domain type='{accelerator}'>
  <name>{saxutils.escape(name)}</name>
  <memory unit='MiB'>{machine.memory}</memory><vcpu>{machine.vcpus}</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><boot dev='hd'/></os>
  <features><acpi/><apic/></features>{cpu}
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='unsafe'
        error_policy='stop' rerror_policy='stop'/>
      <source file={quote(disk)}/><target dev='vda' bus='virtio'/>
      <iotune><write_bytes_sec>{_WRITE_RATE}</write_bytes_sec></iotune></disk>{seed}
    <serial type='file'><source path={quote(console)} append='on'/><target port='0'/></serial>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
  </devices>
</domain>"""


def record(base: Base, name: str, policy: properties.Policy, limits: ending.BootLimits,
           machine: Machine,
           tell: Callable[[str], None] = lambda text: None) -> tuple[list[Extent], FoundEnd]:
    """Boot an image on this machine and record what it reads; nothing is left behind.

    :param name: a UUID that names nodes and exports.
    :param tell: called about once a second with how far it is.
    :returns: what it read, in first-read order, to ``recording.GRANULARITY``; and how it ended.
    :raises ProfileBootFailed: with what went wrong and the cure.
    """
    accelerator = 'kvm' if acceleration.kvm_works() else 'qemu'
    if accelerator == 'qemu' and not machine.allow_tcg:
        raise exception.ProfileBootFailed(
            'KVM does not run guests on this machine, and QEMU without it does not keep a hostile'
            ' image in; if you trust the image, allow it with --allow-tcg')
    # In /tmp, whose path is short: unix socket paths end at 107 bytes.
    scratch = tempfile.mkdtemp(prefix='bootcache-profile-')
    socket_path = os.path.join(scratch, 'nbd')
    daemon = StorageDaemon('profile', scratch, UnixListener(socket_path))
    keeper: StoreKeeper[Recording] = StoreKeeper()
    try:
        daemon.ensure_running()
        recording = Recording(daemon, name, base.nodes('base'), base.virtual_bytes,
                              os.path.join(scratch, 'store.qcow2'))
        overlay = os.path.join(scratch, 'overlay.qcow2')
        with _connection(machine, scratch) as connection:
            begin = recording.open()
            keeper.add(recording)
            qemuimg.create_overlay(overlay, base.virtual_bytes,
                                   naming.nbd_unix_uri(socket_path, recording.export), 'raw',
                                   cluster_bytes=128 << 10, subclusters=True)
            console = os.path.join(scratch, 'console.log')
            tail = functools.partial(_tail, console)
            xml = domain_xml(f'bootcache-profile-{name}', machine, accelerator, overlay, console,
                             _config_drive(scratch, name))
            judge = ProfileJudge(limits)
            began = time.monotonic()
            domain = _create(connection, xml)
            end = BootEnd(recording, begin, judge, BootMarker(policy.boot_marker, name),
                          tail, began)
            try:
                found = _watch(domain, end, tail, tell,
                               lambda: _keep_limits(overlay, console, machine), scratch)
                notbooted.check(found.ended_by, judge.line, end.recorded_bytes)
            finally:
                with contextlib.suppress(Exception):
                    domain.destroy()
        return recording.extents_between(begin, recording.mark()), found
    finally:
        keeper.stop()
        daemon.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _watch(domain: Any, end: BootEnd, console: Callable[[], str], tell: Callable[[str], None],
           keep_limits: Callable[[], None], scratch: str) -> FoundEnd:
    told = 0.0
    while True:
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        if not domain.isActive():
            raise notbooted.switched_off(ending.upset(console()))
        if domain.state()[0] == _PAUSED:
            free = shutil.disk_usage(scratch).free
            raise exception.ProfileBootFailed(
                f'the disk of the image\'s machine could not be read or written, with {free} bytes'
                f' free in {scratch}; the folder for temporary files (TMPDIR) takes what the boot'
                ' reads and writes: name one with more room there, if it is full')
        keep_limits()
        found = end.look(now)
        if now - told >= 1:
            told = now
            tell(f'{end.recorded_bytes / 1e6:.1f} MB recorded')
        if found is not None:
            return found


def _keep_limits(overlay: str, console: str, machine: Machine) -> None:
    """Bound what a guest makes this machine write.

    :raises ProfileBootFailed: if it wrote more to its disk than it may.
    """
    written = os.stat(overlay).st_blocks * 512
    if written > machine.disk_limit:
        raise exception.ProfileBootFailed(
            f'the image wrote {written} bytes to its disk while it booted, more than'
            f' {machine.disk_limit}; if it is meant to, raise --disk-limit')
    with contextlib.suppress(FileNotFoundError):
        if os.path.getsize(console) > machine.console_limit:
            # QEMU appends, so the next line is the first one then.
            os.truncate(console, 0)


def _tail(path: str) -> str:
    try:
        with open(path, 'rb') as stream:
            stream.seek(max(0, os.path.getsize(path) - (64 << 10)))
            return stream.read().decode(errors='replace')
    except OSError:
        return ''


def _config_drive(directory: str, name: str) -> str | None:
    """Make a config drive as Nova does, so that cloud-init finds what it would find there."""
    tree = os.path.join(directory, 'config')
    for version in ('latest', '2018-08-27'):
        os.makedirs(os.path.join(tree, 'openstack', version))
        with open(os.path.join(tree, 'openstack', version, 'meta_data.json'), 'w') as stream:
            json.dump({'uuid': str(uuid.UUID(name)), 'name': 'profile', 'hostname': 'profile',
                       'launch_index': 0}, stream)
    target = os.path.join(directory, 'config.iso')
    try:
        subprocess.run(['genisoimage', '-quiet', '-o', target, '-ldots', '-allow-lowercase',
                        '-allow-multidot', '-l', '-V', 'config-2', '-r', '-J', tree], check=True,
                       stdin=subprocess.DEVNULL, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        LOG.warning('no config drive, cloud-init may wait for one: %s', error)
        return None
    return target


def _create(connection: Any, xml: str) -> Any:
    import libvirt
    try:
        return connection.createXML(xml, 0)
    except libvirt.libvirtError as error:
        raise exception.ProfileBootFailed(f'libvirt cannot start the image: {error}') from error


@contextlib.contextmanager
def _connection(machine: Machine, scratch: str) -> Iterator[Any]:
    # The embedded driver would tell its start-up on standard error; errors are raised anyway. The
    # library looks at this when it is loaded.
    os.environ.setdefault('LIBVIRT_LOG_OUTPUTS', f'3:file:{scratch}/libvirt.log')
    try:
        import libvirt
    except ImportError as error:
        raise exception.ProfileBootFailed(
            f'libvirt\'s Python binding is missing ({error}); install python3-libvirt, and link'
            ' libvirt.py and libvirtmod*.so into the virtual environment if there is one'
        ) from error
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    uri = machine.connection
    stopped = threading.Event()
    if uri == EMBEDDED:
        root = os.path.join(scratch, 'libvirt')
        os.makedirs(os.path.join(root, 'etc'))
        with open(os.path.join(root, 'etc', 'qemu.conf'), 'w') as stream:
            stream.write(_QEMU_CONF.format(user=f'+{os.geteuid()}', group=f'+{os.getegid()}'))
        uri = f'qemu:///embed?root={root}'
        libvirt.virEventRegisterDefaultImpl()

        def loop() -> None:
            while not stopped.is_set():
                libvirt.virEventRunDefaultImpl()

        # The embedded driver speaks to QEMU in this process, and needs its event loop to turn.
        timer = libvirt.virEventAddTimeout(200, lambda *_arguments: None, None)
        thread = threading.Thread(target=loop, name='bootcache-libvirt', daemon=True)
        thread.start()
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        stopped.set()
        raise exception.ProfileBootFailed(f'libvirt at {uri}: {error}') from error
    try:
        yield connection
    finally:
        connection.close()
        if machine.connection == EMBEDDED:
            stopped.set()
            thread.join(timeout=5)
            libvirt.virEventRemoveTimeout(timer)


