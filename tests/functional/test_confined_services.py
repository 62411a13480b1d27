"""The tests' cloud runs our services as their units say: user, files, rights, system calls."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools.cloud.bootcache import UNITS
from tools.cloud.confine import directives
from tools.cloud.layout import TOOLS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='to become another user takes root')

PROBE = """
import ctypes, errno, grp, json, os, pwd, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def number(call, *arguments):
    try:
        done = call(*arguments)
    except OSError as error:
        return error.errno
    return ctypes.get_errno() if done == -1 else 0
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
print(json.dumps({
    'user': pwd.getpwuid(os.geteuid()).pw_name, 'group': grp.getgrgid(os.getegid()).gr_name,
    'groups': [grp.getgrgid(one).gr_name for one in os.getgroups()], 'umask': os.umask(0),
    'bounds': int(status['CapBnd'], 16), 'no_new_privs': int(status['NoNewPrivs']),
    'unix': number(socket.socket, socket.AF_UNIX), 'packet': number(socket.socket, 17, 3),
    'namespace': number(libc.unshare, 0x10000000), 'read_only': os.statvfs('/usr').f_flag & 1,
    'executable': number(libc.mprotect, ctypes.c_void_p(id(sys) & ~4095), 4096, 7),
    'personality': number(libc.personality, 8), 'devices': sorted(os.listdir('/dev')),
    'suid': number(os.chmod, sys.argv[1], 0o4700), 'here': os.access(sys.argv[1], os.R_OK),
    'tmp': os.listdir('/tmp')}))
"""


def run(*options, path, probe=PROBE):
    """What a process finds that runs as a service does; it sees a path in a closed folder."""
    done = subprocess.run(
        [sys.executable, '-P', TOOLS / 'confine.py', f'--show={path}', *options, '--',
         '/usr/bin/python3', '-c', probe, str(path)], check=False, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, cwd='/')
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def shown(tmp_path):
    """A folder of what is to be seen, in a home that nobody else may enter."""
    home = tmp_path / 'home'
    (home / 'shown').mkdir(parents=True)
    (home / 'secret').touch()
    home.chmod(0o700)
    return home / 'shown'


@pytest.mark.parametrize('unit', sorted(UNITS.glob('*.service')), ids=lambda unit: unit.stem)
def test_a_service_has_what_its_unit_leaves_it(shown, unit):
    said = directives(unit)
    with tempfile.NamedTemporaryFile(dir='/tmp') as others:
        found = run(f'--unit={unit}', path=shown)
    assert (found['user'], found['group']) == (said['User'], said['Group'])
    assert found['umask'] == int(said['UMask'], 8)
    assert found['groups'] == [] and found['bounds'] == 0 and found['no_new_privs'] == 1
    assert found['unix'] == 0 and found['packet'] == errno.EAFNOSUPPORT
    assert found['read_only'] == 1 and found['personality'] == found['suid'] == errno.EPERM
    # What is shown is there also where it has a /tmp of its own.
    assert found['here'] is True
    assert (Path(others.name).name in found['tmp']) is ('PrivateTmp' not in said)
    if 'RestrictNamespaces' in said:
        assert found['namespace'] == errno.EPERM
    if 'MemoryDenyWriteExecute' in said:
        assert found['executable'] == errno.EPERM
    if 'PrivateDevices' in said:
        assert {'null', 'urandom'} <= set(found['devices']) and 'kmsg' not in found['devices']


def test_a_user_sees_of_a_closed_home_what_is_shown_and_the_machine_keeps_all(shown):
    probe = PROBE.replace("print(json.dumps({", "print(json.dumps({'home': os.listdir("
                          "os.path.dirname(sys.argv[1])), ")
    found = run('--user=nova', '--groups=kvm', path=shown, probe=probe)
    assert found['user'] == 'nova' and found['groups'] == ['kvm'] and found['no_new_privs'] == 0
    assert found['here'] and found['home'] == ['shown']
    assert (shown.parent / 'secret').exists()


def test_an_unknown_directive_is_an_error(tmp_path):
    unit = tmp_path / 'x.service'
    unit.write_text('[Service]\nUser=nova\nRestrictEverything=yes\n')
    with pytest.raises(SystemExit, match='RestrictEverything'):
        directives(unit)


CONTAINER = """
import json, os, signal, sys
closed = os.path.dirname(sys.argv[1])
print(json.dumps({'pid': os.getpid(), 'processes': [one for one in os.listdir('/proc')
                                                    if one.isdigit()],
                  'seen': os.listdir(closed), 'user': os.geteuid()}), flush=True)
if sys.argv[2:] == ['wait']:
    signal.signal(signal.SIGTERM, lambda *_about: os._exit(7))
    print('waits', flush=True)
    signal.pause()
"""


def container(shown, *arguments):
    """A process with mounts and process numbers of its own, as containers.py has it."""
    return subprocess.Popen(
        [sys.executable, '-P', TOOLS / 'confine.py', f'--show={shown}', f'--close={shown.parent}',
         '--pid', '--user=nova', '--', '/usr/bin/python3', '-c', CONTAINER, str(shown), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd='/')


def test_a_container_sees_its_own_processes_and_what_it_shares(shown):
    # Closed though others may enter it.
    shown.parent.chmod(0o755)
    with container(shown) as process:
        found = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert found['pid'] == 1 and found['processes'] == ['1']
    assert found['seen'] == ['shown'] and found['user'] != 0


def test_a_container_ends_when_it_is_told_or_killed(shown):
    with container(shown, 'wait') as process:
        assert process.stdout.readline() and process.stdout.readline() == 'waits\n'
        process.terminate()
        assert process.wait(20) == 7, 'it was told itself'
    with container(shown, 'wait') as process:
        assert process.stdout.readline() and process.stdout.readline() == 'waits\n'
        process.kill()
        # All that it had closes the pipe.
        assert process.stdout.read() == ''
