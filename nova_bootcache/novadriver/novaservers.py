"""What is needed of Nova for settling and guests that are paused.

Its servers on this host, their domains, its locks.
"""

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any

import nova.privsep.path
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from nova.virt import storage_users
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_concurrency import lockutils
from oslo_log import log as logging
from oslo_utils import timeutils

from bootcache import exception
from nova_bootcache.libvirtcalls import BoundedDomain, LibvirtCalls
from nova_bootcache.novadriver import diskconf, signatures
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.standstill import errorstop

LOG = logging.getLogger(__name__)
CONF = imagebackend.CONF

# Suspended ones have their memory on disk, with the chain that they had.
_SETTLES = frozenset({vm_states.ACTIVE, vm_states.PAUSED, vm_states.STOPPED})
# In which a guest runs, if nothing is done with its server.
_RUNS = frozenset({vm_states.ACTIVE, vm_states.RESCUED, vm_states.RESIZED, vm_states.ERROR})
# What does not change that: its disk is copied while it runs. Uploading may take an hour.
_COPIES = frozenset({
    task_states.IMAGE_SNAPSHOT, task_states.IMAGE_SNAPSHOT_PENDING, task_states.IMAGE_BACKUP,
    task_states.IMAGE_PENDING_UPLOAD, task_states.IMAGE_UPLOADING})
# At whose end Nova has it run; for most it waits until libvirt says so, without end.
_STARTS = frozenset({
    task_states.SPAWNING, task_states.POWERING_ON, task_states.REBOOTING,
    task_states.REBOOT_STARTED, task_states.REBOOTING_HARD, task_states.REBOOT_STARTED_HARD,
    task_states.RESUMING, task_states.RESCUING, task_states.UNRESCUING, task_states.RESIZE_FINISH,
    task_states.RESIZE_REVERTING, task_states.REBUILD_SPAWNING, task_states.UNSHELVING,
    task_states.RESTORING})


def make_writable(path: str) -> None:
    """Have Nova's user own a stopped server's disk that libvirt has given to root.

    It does so with ``remember_owner=0``, and where there are no trusted extended attributes; the
    next start gives it to QEMU's user again. Stock Nova does the same with a snapshot's delta.

    :raises BootcacheError: if that is not possible.
    """
    if os.access(path, os.W_OK):
        return
    try:
        nova.privsep.path.chown(path, uid=os.getuid())
    except Exception as error:
        raise exception.BootcacheError(
            f'{path} belongs to user {os.stat(path).st_uid}, and cannot be given to Nova\'s by its'
            f' privsep helper: {error}') from error


# A bound of memory: servers come and go.
_MOST_REMEMBERED = 1000


class NovaServers:
    """This host's servers, as settling asks for them.

    :param host: Nova's connection to libvirt.
    """

    def __init__(self, host: Any):
        self._host = host
        # Those of settling, beside Nova's.
        self._calls = LibvirtCalls(self.connect)
        # Servers whose guests wait for their disks, with libvirt's number of that run.
        self._waits: dict[str, int] = {}
        self.base_directory = os.path.join(CONF.instances_path,
                                           CONF.image_cache.subdirectory_name)
        self.force_raw = bool(CONF.force_raw_images)
        self.keep_free = int(CONF.reserved_host_disk_mb) << 20

    def servers(self) -> list[LocalServer]:
        """Return this host's servers."""
        found = objects.InstanceList.get_by_host(nova_context.get_admin_context(), CONF.host,
                                                 expected_attrs=[])
        return [self._local(instance) for instance in found]

    def server(self, server_id: str) -> LocalServer | None:
        """Return one of them, as it is now; None if it is gone."""
        try:
            instance = objects.Instance.get_by_uuid(nova_context.get_admin_context(), server_id,
                                                    expected_attrs=[])
        except nova_exception.InstanceNotFound:
            return None
        return self._local(instance) if instance.host == CONF.host else None

    @staticmethod
    def _local(instance: Any) -> LocalServer:
        started = instance.launched_at or datetime.datetime.now(datetime.UTC)
        directory = libvirt_utils.get_instance_path(instance)
        age = (timeutils.utcnow(with_timezone=True) - started).total_seconds()
        return LocalServer(instance.uuid, instance.image_ref or '',
                           instance.task_state is None and instance.vm_state in _SETTLES,
                           age, directory,
                           os.path.basename(instance.root_device_name or 'vda'),
                           instance.task_state or instance.vm_state,
                           instance.task_state in _STARTS or (
                               instance.vm_state in _RUNS
                               and instance.task_state in {None, *_COPIES}))

    def needs_stock_base(self, server_id: str) -> bool:
        """Tell whether only stock Nova may get a server's base: it checks signatures."""
        if signatures.are_checked(CONF):
            return True
        try:
            instance = objects.Instance.get_by_uuid(
                nova_context.get_admin_context(), server_id,
                expected_attrs=['system_metadata', 'trusted_certs'])
        except nova_exception.InstanceNotFound:
            return False
        return bool(instance.trusted_certs) or signatures.is_signed(instance.system_metadata)

    def bounded_domain(self, server_id: str, urgent: bool = False) -> BoundedDomain | None:
        """Return its libvirt domain, None if it has none; none of its calls waits for long.

        :param urgent: its QEMU is asked however many others do not answer.
        :raises LibvirtHangs: if libvirt does not answer.
        :raises libvirtError: if it does not tell.
        """
        try:
            return self._calls.find(server_id, urgent)
        # Nova's own libvirt, whatever that is: it is what the connection raises.
        except libvirt_host.libvirt.libvirtError as error:
            if error.get_error_code() == libvirt_host.libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    def sees_errors(self, server_id: str) -> bool:
        """Tell whether its guest runs, and would see an I/O error instead of waiting.

        It came from a host with stock Nova's driver, or was started by that. No if libvirt does not
        tell, or QEMU does not answer. Neither changes that while it runs, and one that waits is
        started as one that waits again: it is asked once a run at most.
        """
        try:
            domain = self.bounded_domain(server_id)
            run = -1 if domain is None else domain.ID()
            if domain is None or run < 0:
                self._waits.pop(server_id, None)
                return False
            if self._waits.get(server_id) == run:
                return False
            if not errorstop.waits_at(domain.XMLDesc(0)):
                return True
            if len(self._waits) >= _MOST_REMEMBERED:
                self._waits.clear()
            self._waits[server_id] = run
            return False
        except Exception as error:
            LOG.debug('bootcache: whether the guest of server %s waits for its disk is not known:'
                      ' %s', server_id, error)
            return False

    @staticmethod
    def shared_storage(cache_directory: str, host: str) -> str:
        """Return why cache images cannot be served from this host's directories, if so."""
        if not diskconf.has_overlays(CONF):
            return ''
        kinds = diskconf.types({'[DEFAULT]instances_path': CONF.instances_path,
                                    '[bootcache]cache_directory': cache_directory})
        return diskconf.refusal(
            kinds, storage_users.get_storage_users(CONF.instances_path), host)

    def connect(self) -> Any:
        """Open a connection to libvirt beside Nova's, whose answers its calls cannot lose.

        As Nova does it: under eventlet its calls are made in threads of the system's.
        """
        return self._host._connect(self._host._uri, False)

    @contextlib.contextmanager
    def instance_lock(self, server_id: str, waits: bool = True) -> Iterator[bool]:
        """Take Nova's lock of a server, as its compute manager does.

        :param waits: until nobody else has it; otherwise, where somebody has, it is not taken.
        """
        try:
            with lockutils.lock(server_id, lock_file_prefix='nova-', blocking=waits):
                yield True
        except lockutils.AcquireLockFailedException:
            yield False

    @contextlib.contextmanager
    def base_lock(self, name: str) -> Iterator[None]:
        """Take Nova's lock of a base, as its image backends do."""
        path = os.path.join(CONF.instances_path, 'locks')
        with lockutils.lock(name, lock_file_prefix='nova-', external=True, lock_path=path):
            yield

    @staticmethod
    def make_writable(path: str) -> None:
        """Have Nova's user own a stopped server's disk: see the function."""
        make_writable(path)

    @staticmethod
    def directory(server_id: str) -> str:
        """Return the path of a server's directory, which need not be there."""
        return os.path.join(CONF.instances_path, server_id)

    def directories(self) -> list[str]:
        """Return the directories of all servers that have one on this host."""
        with contextlib.suppress(FileNotFoundError):
            return [entry.path for entry in os.scandir(CONF.instances_path)
                    if entry.is_dir() and not entry.name.startswith('_')]
        return []
