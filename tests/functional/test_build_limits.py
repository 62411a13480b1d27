"""``bootcache build`` of guests that mean harm: real ones, of one boot sector each, by TCG."""

import glob
import json
import os
import subprocess
import tempfile

import pytest
from command import BOOTCACHE, bootcache, command
from functional_tools import until

from tools import bootsectors

MIB = 1 << 20
QUICKLY = '--image-format', 'raw', '--allow-tcg', '--memory', '64'


@pytest.fixture
def image(directory):
    """Makes an image of a guest."""
    def make(guest, filled=0):
        path = os.path.join(directory, 'image')
        bootsectors.make(path, guest, filled)
        return path
    return make


def test_a_boot_that_writes_without_end_is_given_up(image, directory):
    done = bootcache(directory, 'build', image(bootsectors.WRITES), *QUICKLY, '--disk-limit',
                     '8MiB')
    assert done.returncode == 1 and not done.stdout
    last = done.stderr.splitlines()[-1]
    assert 'bytes to its disk while it booted, more than 8388608' in last \
        and '--disk-limit' in last
    assert not glob.glob(f'{directory}/bootcache-profile-*')


@pytest.fixture
def small_folder(directory):
    """A file system for temporary files with some MB; paths of sockets there have to be short."""
    path = tempfile.mkdtemp(prefix='bc', dir=os.path.dirname(directory))
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=6M', 'tmpfs', path], check=True)
    yield path
    subprocess.run(['umount', '-l', path], check=True)
    os.rmdir(path)


@pytest.mark.skipif(os.geteuid() != 0, reason='it mounts a file system')
def test_a_full_folder_for_temporary_files_is_told(image, directory, small_folder):
    """The guest's reads fail there: what it has read until then is no boot."""
    done = bootcache(small_folder, 'build', image(bootsectors.READS, 32 * MIB), *QUICKLY,
                     '--silence', '5', '-o', f'{directory}/cache')
    assert done.returncode == 1 and not done.stdout
    last = done.stderr.splitlines()[-1]
    assert 'TMPDIR' in last and small_folder in last and 'bytes free' in last
    assert not glob.glob(f'{small_folder}/bootcache-*') and not glob.glob(f'{directory}/cache*')


def test_a_folder_for_temporary_files_that_is_not_there_is_no_other_one(image, directory):
    argv, options = command(BOOTCACHE, directory, 'build', image(bootsectors.READS), *QUICKLY)
    options['env']['TMPDIR'] = f'{directory}/missing'
    done = subprocess.run(argv, capture_output=True, check=False, **options)
    assert done.returncode == 1 and not done.stdout
    assert f'TMPDIR={directory}/missing: no file can be made there' in done.stderr


def test_a_raw_disk_is_told_as_one(image, directory):
    done = bootcache(directory, 'build', image(bootsectors.READS), '--allow-tcg')
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.strip().endswith('give --image-format raw')


def test_a_console_without_end_takes_no_room(image, directory):
    argv, options = command(BOOTCACHE, directory, 'build', image(bootsectors.FLOODS), *QUICKLY,
                            '--console-limit', '64KiB', '--silence', '600')
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    try:
        def size():
            assert process.poll() is None, process.stderr.read()
            return [os.path.getsize(path) for path in
                    glob.glob(f'{directory}/bootcache-profile-*/console.log')]

        for _again in range(2):
            # It grows over the limit, is cut, and the guest goes on: by that it grows again.
            until(lambda: size() and size()[0] > 64 << 10, 'a console over the limit')
            until(lambda: size()[0] < 64 << 10, 'a console that was cut')
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize('says, told', [
    (b'Kernel panic - not syncing: no init', 'Kernel panic - not syncing: no init'),
    (b'Loading', 'read nothing from its disk but')])
def test_a_guest_that_does_not_come_up_has_not_booted(image, directory, says, told):
    """It is silent after its first reads: neither silence nor the time limit makes it a boot."""
    guest = bootsectors.speaks(b'\r\n' + says + b'\r\n')
    done = bootcache(directory, 'build', image(guest), *QUICKLY, '--silence', '2', '--timeout',
                     '12')
    assert done.returncode == 1 and not done.stdout
    assert told in done.stderr.splitlines()[-1]


def test_a_guest_that_reads_its_whole_disk_is_recorded_to_its_quota(image, directory):
    done = bootcache(directory, 'build', image(bootsectors.READS, 32 * MIB), *QUICKLY,
                     '--quota', '8MiB', '-o', f'{directory}/cache', '--format', 'json')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)['ended_by'] == 'quota', done.stdout
    assert os.path.getsize(f'{directory}/cache') <= 8 * MIB
    assert not glob.glob(f'{directory}/bootcache-profile-*')


def test_a_guest_that_reboots_for_ever_is_given_up(image, directory):
    done = bootcache(directory, 'build', image(bootsectors.REBOOTS), *QUICKLY, '--silence', '2',
                     '--timeout', '12')
    assert done.returncode == 1 and not done.stdout
    assert 'read nothing from its disk but' in done.stderr.splitlines()[-1]
    assert not glob.glob(f'{directory}/bootcache-profile-*')


def test_a_guest_has_no_network_card(image, directory):
    path = image(bootsectors.LOOKS_FOR_NETWORK)
    done = bootcache(directory, 'build', path, *QUICKLY, '--marker', f'^{bootsectors.NO_CARD}',
                     '--silence', '600', '--format', 'json')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)['ended_by'] == 'marker', done.stdout
    # It would have found one.
    with subprocess.Popen(['qemu-system-x86_64', '-display', 'none', '-nic', 'user,model=e1000',
                           '-drive', f'format=raw,file={path}', '-serial', 'stdio'],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as guest:
        try:
            found = next(line.strip() for line in guest.stdout if 'network' in line)
            assert found == bootsectors.CARD
        finally:
            guest.kill()
