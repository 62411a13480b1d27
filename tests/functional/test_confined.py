"""What reads a tenant's file, at work: whom it runs as, and what the kernel refuses it."""

import contextlib
import os
import re
import signal
import subprocess
import threading

import pytest
import rotten
from functional_tools import commands_below, until

from bootcache import confined, exception, qemuimg
from glance_bootcache.storage import inspection
from glance_bootcache.storage.inspection import Inspected

MIB = 1 << 20
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason='only root may become somebody else')


@pytest.fixture
def path(directory):
    path = f'{directory}/image'
    with open(path, 'wb') as stream:
        stream.write(b'a tenant\'s')
    os.chmod(path, 0o644)
    return path


def run(path, *command):
    return subprocess.run(confined.command(path, *command), capture_output=True, text=True)


def python(path, code):
    # Not that of the tests: its environment may be in root's home, where nobody has no way.
    return run(path, '/usr/bin/python3', '-I', '-S', '-c', code)


def test_the_file_can_be_read_also_in_a_folder_that_is_closed(path, directory):
    os.chmod(directory, 0o700)
    assert run(path, 'cat', confined.IMAGE).stdout == 'a tenant\'s'


@pytest.mark.parametrize('code', [
    'import socket; socket.socket(socket.AF_INET)', 'import socket; socket.socket(socket.AF_UNIX)',
    'import os; os.fork()', 'import os; os.posix_spawn("/bin/true", ["true"], {{}})',
    'open("{0}/new", "w")', 'open("{1}", "r+")', 'import os; os.unlink("{1}")',
    'import os; os.rename("{1}", "{1}2")', 'import os; os.chmod("{1}", 0)',
    'import os; os.symlink("x", "{0}/link")', 'import os; os.mkdir("{0}/folder")',
    'import os, signal; os.kill(os.getppid(), 0)', 'import os; os.setgid(0)'])
def test_what_a_look_has_no_need_of_is_refused(path, directory, code):
    # The folder is open to all: it is not its rights that refuse.
    os.chmod(directory, 0o777)
    os.chmod(path, 0o666)
    done = python(path, code.format(directory, path))
    assert done.returncode == 1 and 'PermissionError: [Errno 1]' in done.stderr, done
    assert os.listdir(directory) == ['image'] and os.path.getsize(path) == 10


# Of its own process, which it could do each of these to if they were not refused.
CALLS = {
    'import signal, threading; signal.pthread_kill(threading.get_ident(), 0)': 'tgkill',
    'call(129, os.getpid(), 10, queued)': 'rt_sigqueueinfo',
    'call(297, os.getpid(), os.getpid(), 10, queued)': 'rt_tgsigqueueinfo',
    'import resource; resource.prlimit(os.getpid(), resource.RLIMIT_CPU)': 'prlimit64',
    'os.setpriority(os.PRIO_PROCESS, os.getpid(), 19)': 'setpriority',
    'os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))': 'sched_setaffinity',
    'call(452, -100, path, 0o600, 0)': 'fchmodat2'}
BY_NUMBER = '''
import ctypes, os, struct
queued, path = struct.pack('@iii', 10, 0, -1).ljust(128, b'\\0'), {!r}
def call(*arguments):
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(*arguments):
        raise OSError(ctypes.get_errno(), 'call')
'''


@pytest.mark.skipif(os.uname().machine != 'x86_64', reason='numbers of x86_64')
@pytest.mark.parametrize('code', CALLS, ids=CALLS.values())
def test_others_of_its_user_are_out_of_reach(path, code):
    """The service and its exporter have the same user."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    done = python(path, BY_NUMBER.format(os.fsencode(path)) + code)
    assert done.returncode == 1 and 'PermissionError: [Errno 1]' in done.stderr, done
    assert os.stat(path).st_mode & 0o777 == 0o644


def test_threads_are_allowed(path):
    assert python(path, 'import threading; t = threading.Thread(target=print, args=("ran",));'
                        't.start(); t.join()').stdout == 'ran\n'


@AS_ROOT
@pytest.mark.parametrize('mode, owner, ids', [
    (0o644, 0, '65534 65534'), (0o640, 1234, '65534 1234'), (0o600, 1234, '1234 1234'),
    (0o600, 0, '0 0')])
def test_root_becomes_whoever_may_read_the_file(path, mode, owner, ids):
    os.chown(path, owner, owner)
    os.chmod(path, mode)
    done = run(path, 'cat', '/proc/self/status', confined.IMAGE)
    assert done.returncode == 0, done
    told = dict(line.split(':\t', 1) for line in done.stdout.splitlines() if ':\t' in line)
    assert f'{told["Uid"].split()[0]} {told["Gid"].split()[0]}' == ids
    assert not told['Groups'].strip() and told['NoNewPrivs'] == '1' and told['Seccomp'] == '2'
    if not ids.startswith('0'):
        assert int(told['CapEff'], 16) == int(told['CapPrm'], 16) == 0


@AS_ROOT
def test_it_still_ends_with_who_started_it(path):
    """The kernel forgets that with a change of user."""
    code = 'import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n));' \
        'print(n.value)'
    told = subprocess.run(['setpriv', '--pdeathsig', 'KILL', *confined.command(
        path, '/usr/bin/python3', '-I', '-S', '-c', code)], capture_output=True, text=True)
    assert told.stdout == f'{int(signal.SIGKILL)}\n', told


def test_a_file_that_is_not_there_is_no_begin(directory):
    done = run(f'{directory}/absent', 'true')
    assert done.returncode == 126 and 'is not begun' in done.stderr


def status(word, path):
    """Return the state of the process that looks at a file, once it is confined; its pid too.

    And its limits.
    """
    def found():
        for pid, words in commands_below().items():
            # What starts it has all of its words too, and the shell's that sets the limits.
            if word in words and 'sh' not in words and any(
                    path in one or confined.IMAGE in one for one in words):
                with contextlib.suppress(OSError), open(f'/proc/{pid}/status') as stream, \
                        open(f'/proc/{pid}/limits') as limits:
                    told = read(stream.read() + limits.read())
                    if told.get('Seccomp') == '2':
                        return pid, told
        return None

    return until(found, f'{word}, confined')


def read(text):
    """Read what /proc tells of a process: its state, and after "Max" its limits."""
    return dict(re.findall(r'^(\w+):\t(.*)$', text, re.M)) \
        | dict(re.findall(r'^Max (\w+ \w+) +(\w+) ', text, re.M))


def check(told, seconds, memory, written, files=None):
    """Check that a process is unprivileged, and has these limits.

    :param memory: bytes.
    :param written: bytes of a file.
    """
    assert (told['NoNewPrivs'], told['Seccomp']) == ('1', '2')
    if os.geteuid() == 0:
        assert told['Uid'].split() == ['65534'] * 4 and int(told['CapEff'], 16) == 0
    # Whole KiB, and blocks of 512 bytes.
    assert told['cpu time'] == str(seconds) and told['address space'] == str(memory)
    assert told['file size'] == str(written)
    assert files is None or told['open files'] == str(files)


def test_the_look_at_tables_is_confined(path):
    rotten.make_bomb(path, 4 << 40)
    seen = []

    def look():
        pid, told = status(inspection._LOOK, path)
        seen.append(told)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        with pytest.raises(exception.Interrupted):
            inspection.inspect(path, 'qcow2')
    finally:
        thread.join()
    check(seen[0], inspection._LOOK_SECONDS, inspection._LOOK_MEMORY, 0, inspection._LOOK_FILES)


def test_the_reading_of_all_is_confined(path):
    rotten.make_bomb(path, 64 << 30)
    seen = []

    def look():
        seen.append(status('convert', path)[1])
        raise exception.Cancelled('seen')

    with pytest.raises(exception.Cancelled):
        inspection.read_all(path, Inspected('qcow2', 64 << 30), os.path.getsize(path), look)
    check(seen[0], inspection.cpu_seconds(os.path.getsize(path), 64 << 30), qemuimg._READ_MEMORY,
          qemuimg._READ_SAYS)


def test_the_look_at_the_header_is_confined(path, directory, monkeypatch):
    """It is over too soon to be looked at: in its place a program of that name tells what it is."""
    rotten.make(path, 8 * MIB)
    os.chmod(directory, 0o755)
    with open(f'{directory}/qemu-img', 'w') as stream:
        # What is absent has it fail, so that all of this is the reason.
        stream.write('#!/bin/sh\nexec cat /proc/self/status /proc/self/limits absent >&2\n')
    os.chmod(f'{directory}/qemu-img', 0o755)
    monkeypatch.setenv('PATH', f'{directory}:{os.environ["PATH"]}')
    with pytest.raises(exception.ImageRefused) as refused:
        inspection.inspect(path, 'qcow2')
    limits = qemuimg.INSPECT_LIMITS
    check(read(str(refused.value)), limits.cpu_seconds, limits.memory_bytes, 0)


@pytest.mark.parametrize('program', ['qemu-img', 'qemu-nbd', 'qemu-io', 'qemu-storage-daemon'])
def test_no_program_that_opens_images_has_a_sandbox_of_its_own(program):
    """So the filter is ours; QEMU itself has one."""
    done = subprocess.run([program, '-sandbox', 'on'], capture_output=True, text=True)
    assert done.returncode
    told = subprocess.run([program, '--help'], capture_output=True, text=True)
    assert 'sandbox' not in told.stdout
