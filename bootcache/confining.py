"""What a process gives up before it reads what a tenant made: root, new privileges, system calls.

As a program, ``confining.py FILTER PATH COMMAND...`` does it and becomes the command, for which the
file is ``IMAGE``: whoever it is then may have no way to the path. The standard library alone is
imported, so that it takes some milliseconds.
"""

import ctypes
import errno
import os
import pwd
import resource
import stat
import struct
import sys

# Opened by whom the service runs as, so that a store which is closed to others can be read.
_DESCRIPTOR = 3
IMAGE = f'/proc/self/fd/{_DESCRIPTOR}'
_NOBODY = 'nobody'
_NOT_BEGUN = 126
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 2, 22, 38
_SECCOMP_MODE_FILTER = 2
_INSTRUCTION_BYTES = 8


def readers(mode: int, owner: int, group: int, nobody: tuple[int, int]) -> tuple[int, int]:
    """Return the user and group that may read a file, and little else. Pure.

    :param mode: the file's.
    :param owner: the file's user, and its group.
    :param nobody: the user and group of nobody.
    """
    if mode & stat.S_IROTH:
        return nobody
    if mode & stat.S_IRGRP:
        return nobody[0], group
    return owner, group


def _leave_root(descriptor: int) -> None:
    if os.geteuid() != 0:
        return
    try:
        found = pwd.getpwnam(_NOBODY)
    except KeyError:
        return
    about = os.fstat(descriptor)
    user, group = readers(about.st_mode, about.st_uid, about.st_gid,
                          (found.pw_uid, found.pw_gid))
    try:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    except OSError:
        # A container's root may not, or has no nobody in its user namespace (EINVAL); what it may
        # do is bounded by that already.
        return


def _prctl(library: ctypes.CDLL, option: int, first: int, second: object = 0) -> None:
    if library.prctl(option, ctypes.c_ulong(first), second, 0, 0):
        raise OSError(ctypes.get_errno(), f'prctl {option}')


def confine(descriptor: int, program: bytes) -> None:
    """Have this process be unprivileged from now on, and what it starts.

    Where it is root, and may, it becomes nobody, with the file's group where nobody may not read
    it, or else the file's owner.

    :param descriptor: of the file that it is to read.
    :param program: seccomp's filter, as the kernel has it; empty for none.
    :raises OSError: if the kernel does not do it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL(None, use_errno=True)
    # The kernel forgets with a change of user that this process ends with the one that started it.
    at_its_end, parent = ctypes.c_int(), os.getppid()
    if library.prctl(_PR_GET_PDEATHSIG, ctypes.byref(at_its_end)):
        raise OSError(ctypes.get_errno(), 'prctl PR_GET_PDEATHSIG')
    _leave_root(descriptor)
    _prctl(library, _PR_SET_PDEATHSIG, at_its_end.value)
    if at_its_end.value and os.getppid() != parent:
        raise OSError(errno.ESRCH, 'who started this has gone')
    _prctl(library, _PR_SET_NO_NEW_PRIVS, 1)
    if program:
        content = ctypes.create_string_buffer(program, len(program))
        told = struct.pack('@HP', len(program) // _INSTRUCTION_BYTES, ctypes.addressof(content))
        _prctl(library, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER,
               ctypes.create_string_buffer(told, len(told)))


def _found(name: str) -> str:
    for directory in os.get_exec_path():
        if os.access(found := os.path.join(directory, name), os.X_OK):
            return found
    return name


def main(program: str, path: str, *command: str) -> None:
    """Become a confined command.

    :param program: seccomp's filter in hexadecimal digits.
    :param path: of the file that the command opens as ``IMAGE``.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if opened == _DESCRIPTOR:
            os.set_inheritable(opened, True)
        else:
            os.dup2(opened, _DESCRIPTOR)
        # What is not read yet may be out of nobody's reach.
        found = _found(command[0])
        confine(_DESCRIPTOR, bytes.fromhex(program))
        os.execv(found, command)
    except OSError as error:
        print(f'{command[0]} is not begun: {error}', file=sys.stderr)
        sys.exit(_NOT_BEGUN)


if __name__ == '__main__':
    main(*sys.argv[1:])
