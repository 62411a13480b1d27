"""Commands that read what a tenant made: as nobody in particular, with few system calls."""

import contextlib
import errno
import functools
import importlib
import os
import sys
import tempfile
from types import ModuleType

from oslo_log import log as logging

from bootcache import confining

LOG = logging.getLogger(__name__)

IMAGE = confining.IMAGE
# libseccomp's own binding, as distributions have it; PyPI's has the same names.
_BINDING = 'seccomp'
# Those that reach others, change files or the machine, or look into processes. None of them is
# needed to read a file, by QEMU's programs or by Python.
_REFUSED = (
    'socket', 'socketpair', 'connect', 'bind', 'listen', 'accept', 'accept4', 'sendto', 'sendmsg',
    'sendmmsg', 'recvfrom', 'recvmsg', 'recvmmsg',
    'fork', 'vfork', 'execveat', 'kill', 'tkill', 'tgkill', 'rt_sigqueueinfo', 'rt_tgsigqueueinfo',
    'pidfd_open', 'pidfd_getfd', 'pidfd_send_signal', 'process_madvise', 'process_mrelease',
    'migrate_pages', 'move_pages', 'ptrace', 'process_vm_readv', 'process_vm_writev', 'kcmp',
    'creat', 'truncate', 'ftruncate', 'fallocate', 'link', 'linkat', 'symlink', 'symlinkat',
    'unlink', 'unlinkat', 'rename', 'renameat', 'renameat2', 'mkdir', 'mkdirat', 'rmdir', 'mknod',
    'mknodat', 'chmod', 'fchmod', 'fchmodat', 'chown', 'fchown', 'lchown', 'fchownat', 'utime',
    'utimes', 'utimensat', 'futimesat', 'setxattr', 'lsetxattr', 'fsetxattr', 'removexattr',
    'lremovexattr', 'fremovexattr', 'fanotify_init', 'inotify_init', 'inotify_init1',
    'mount', 'umount2', 'pivot_root', 'chroot', 'unshare', 'setns', 'open_tree', 'move_mount',
    'fsopen', 'fsconfig', 'fsmount', 'fspick', 'name_to_handle_at', 'open_by_handle_at',
    'bpf', 'perf_event_open', 'userfaultfd', 'keyctl', 'add_key', 'request_key',
    'init_module', 'finit_module', 'delete_module', 'kexec_load', 'kexec_file_load', 'reboot',
    'swapon', 'swapoff', 'acct', 'quotactl', 'syslog', 'settimeofday', 'clock_settime',
    'clock_adjtime', 'adjtimex', 'sethostname', 'setdomainname', 'ioperm', 'iopl', 'personality',
    'shmget', 'shmat', 'shmctl', 'semget', 'semop', 'msgget', 'msgsnd', 'mq_open', 'vhangup',
    'setuid', 'setgid', 'setreuid', 'setregid', 'setresuid', 'setresgid', 'setgroups', 'setfsuid',
    'setfsgid', 'capset', 'memfd_secret')
# Of later kernels, by their numbers, which are the same on all machines: a libseccomp that does not
# know the name of one refuses it all the same.
_REFUSED_NUMBERS = {
    'mount_setattr': 442, 'quotactl_fd': 443, 'fchmodat2': 452, 'setxattrat': 463,
    'removexattrat': 466, 'open_tree_attr': 467, 'file_setattr': 469}
# With the place of the process in their arguments: of itself a program may change these.
_OF_OTHERS = {'prlimit64': 0, 'setpriority': 1, 'ioprio_set': 1, 'sched_setaffinity': 0,
              'sched_setattr': 0, 'sched_setparam': 0, 'sched_setscheduler': 0}
# What programs try first, and do without: they are told that the kernel does not know it.
_UNKNOWN = ('clone3', 'openat2', 'io_uring_setup', 'io_uring_enter', 'io_uring_register')
_CLONE_THREAD = 0x10000
_SECCOMP_LINE = 'Seccomp:'


def command(path: str, *arguments: str) -> list[str]:
    """Return the command that runs another one confined, in the same process.

    The other one opens the file as ``IMAGE``.

    :param path: of what a tenant made.
    """
    return [sys.executable, '-I', '-S', '-B', os.path.abspath(confining.__file__),
            filter_program().hex(), os.path.abspath(path), *arguments]


@functools.cache
def filter_program() -> bytes:
    """Return seccomp's filter for this machine, as its kernel has it.

    Empty where the kernel or libseccomp is without it, which is told once.
    """
    try:
        with open('/proc/self/status') as stream:
            known = any(line.startswith(_SECCOMP_LINE) for line in stream)
        if not known:
            raise OSError(errno.ENOSYS, 'the kernel is without seccomp')
        return _made(_binding())
    except (ImportError, RuntimeError, OSError) as error:
        LOG.warning('images are looked at without a filter of system calls: %s; python3-seccomp'
                    ' or pyseccomp, with libseccomp, brings it', error)
        return b''


def _binding() -> ModuleType:
    try:
        return importlib.import_module(_BINDING)
    except ImportError:
        # It looks for the library at once, and is not to be had without it.
        import pyseccomp
        found: ModuleType = pyseccomp
        return found


def _made(seccomp: ModuleType) -> bytes:
    made, refused = seccomp.SyscallFilter(seccomp.ALLOW), seccomp.ERRNO(errno.EPERM)

    def refuse(action: int, name: str | int, *arguments: object) -> None:
        # A library does not know the latest kernel's; it passes over those of other machines.
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            made.add_rule(action, name, *arguments)

    for name in _REFUSED:
        refuse(refused, name)
    for number in _REFUSED_NUMBERS.values():
        refuse(refused, number)
    for name, place in _OF_OTHERS.items():
        refuse(refused, name, seccomp.Arg(place, seccomp.NE, 0))
    for name in _UNKNOWN:
        refuse(seccomp.ERRNO(errno.ENOSYS), name)
    # Threads, but no processes.
    refuse(refused, 'clone', seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, 0))
    for name, place in (('open', 1), ('openat', 2)):
        for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
            refuse(refused, name, seccomp.Arg(place, seccomp.MASKED_EQ, flag, flag))
    with tempfile.TemporaryFile() as stream:
        made.export_bpf(stream)
        stream.seek(0)
        return stream.read()
