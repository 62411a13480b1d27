"""Coverage-guided fuzzing of what reads a tenant's file in Python, by atheris, where that is there.

``python -m bench.fuzzparsers SECONDS [FOLDER]`` has atheris change files until the time is over;
what finds new ways is kept in the folder, by default while it runs. Whatever comes out of a parser
but ``ImageRefused`` is written into the current folder, and ends the run with an error.
"""

import contextlib
import importlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time

from bench import fuzz
from bootcache import exception

# What is longer finds no more ways, only the same ones more slowly.
_LONGEST = 70000
# Of CPU time; and of time, as a machine with other work may not run this for a minute.
_SECONDS_A_FILE, _LONGEST_SECONDS = 10, 600
_MEGABYTES = 1024


def _seeds(directory: str) -> None:
    """Write small files to begin with: the first clusters of what qemu-img makes."""
    with tempfile.TemporaryDirectory() as made:
        for number, path in enumerate(fuzz.make_bases(made)):
            with open(path, 'rb') as source, open(f'{directory}/{number}', 'wb') as target:
                target.write(source.read(_LONGEST))


def main() -> int:
    """Run it until its time is over; 2 is returned where atheris is not installed.

    It runs in a fork: what a program is told of its largest memory, and libFuzzer's limit looks at,
    begins with that of whoever started the program, as Linux keeps it across exec.
    """
    process = multiprocessing.get_context('fork').Process(target=lambda: sys.exit(_fuzz()))
    process.start()
    process.join()
    return 1 if process.exitcode is None or process.exitcode < 0 else process.exitcode


def _fuzz() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 3600
    try:
        atheris = importlib.import_module('atheris')
    except ImportError:
        print('atheris is not installed: pip install atheris, into the same environment')
        return 2
    with atheris.instrument_imports(include=['glance_bootcache.qcow2', 'oslo_utils.imageutils']):
        tables = importlib.import_module('glance_bootcache.qcow2.tables')
        reader = importlib.import_module('glance_bootcache.qcow2.header')
        probing = importlib.import_module('glance_bootcache.storage.inspection')
        fileformat = importlib.import_module('bootcache.fileformat')

    descriptor = os.memfd_create('fuzzed')
    path = f'/proc/self/fd/{descriptor}'

    def one(content: bytes) -> None:
        began = time.process_time()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
        probing.taken_for(content[:probing.PROBED_BYTES])
        with contextlib.suppress(exception.ImageRefused):
            fileformat.check_safe(fileformat.inspect(path))
        try:
            tables.check(reader.Reader(descriptor, len(content)), 16 << 40)
        except exception.ImageRefused as error:
            if not str(error):
                raise AssertionError('a refusal without a reason') from error
        if time.process_time() - began > _SECONDS_A_FILE:
            raise AssertionError(f'it takes more than {_SECONDS_A_FILE} s of CPU time')

    with tempfile.TemporaryDirectory() as seeds, tempfile.TemporaryDirectory() as found:
        _seeds(seeds)
        folder = sys.argv[2] if len(sys.argv) > 2 else found
        os.makedirs(folder, exist_ok=True)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        atheris.Setup(['fuzzparsers', folder, seeds, f'-max_total_time={seconds}',
                       f'-max_len={_LONGEST}', f'-timeout={_LONGEST_SECONDS}',
                       f'-rss_limit_mb={_MEGABYTES}', '-print_final_stats=1'], one)
        atheris.Fuzz()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
