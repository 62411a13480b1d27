"""Mutated qcow2 files through the whole opening path: what becomes of each, and at what cost.

``python -m bench.fuzz`` makes files that qemu-img writes, changes each in a few places, and has the
storage service's own functions inspect and read them, as at registration. A file follows from seed
and number alone: ``--only NUMBER --keep PATH`` makes one again.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import random
import re
import resource
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from bootcache import exception
from glance_bootcache.storage import inspection

MIB = 1 << 20
_OFFSET = 0x00fffffffffffe00
_BASES: tuple[tuple[str, ...], ...] = (
    (), ('-o', 'compat=0.10'), ('-c',), ('-c', '-o', 'compression_type=zstd'),
    ('-o', 'cluster_size=4k'), ('-o', 'cluster_size=512'), ('-o', 'refcount_bits=1'),
    ('-c', '-o', 'cluster_size=4k'), ('-o', 'preallocation=metadata'), ('bitmap',), ('snapshot',))
# Where a header has 32 bits, and where 64; extensions follow from 104 or 112 on.
_HALVES, _WORDS = (4, 20, 32, 36, 56, 60, 96, 100, 112, 116), (8, 24, 40, 48, 64, 72, 80, 88, 120)
_VALUES = (0, 1, 2, 3, 7, 9, 16, 21, 22, 63, 64, 65, 255, 511, 512, 4096, 65535, 65536, 131072,
           1 << 20, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 50,
           (1 << 56) - 512, 1 << 61, 1 << 62, 1 << 63, (1 << 63) | 65536, (1 << 64) - 1)
# The outcomes that are a fault of the product, or have to be looked at.
ACCEPTED, REFUSED, CRASHED, TIMEOUT, ESCAPED = 'accepted', 'refused', 'crashed', 'timeout', 'error'
_BY_SIGNAL = re.compile(r'exit -\d+|[Aa]ssertion|Traceback')


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one file.

    :ivar number: of the file.
    :ivar kind: one of the words above.
    :ivar reason: why it was not accepted.
    :ivar seconds: that it took.
    """

    number: int
    kind: str
    reason: str
    seconds: float


def make_bases(directory: str) -> list[str]:
    """Have qemu-img make the files that are mutated; return their paths."""
    content, source = f'{directory}/content', random.Random(1)
    with open(content, 'wb') as stream:
        stream.write(source.randbytes(1024) * 4 * 64)
        stream.seek(MIB)
        stream.write(b'x' * 70000)
        stream.truncate(2 * MIB)

    def qemu_img(*arguments: str) -> None:
        subprocess.run(['qemu-img', *arguments], check=True, capture_output=True)

    paths = []
    for number, kind in enumerate(_BASES):
        paths.append(path := f'{directory}/base-{number}')
        options = kind if kind and kind[0].startswith('-') else ()
        qemu_img('convert', '-f', 'raw', '-O', 'qcow2', *options, content, path)
        if kind == ('bitmap',):
            qemu_img('bitmap', '--add', path, 'b')
        elif kind == ('snapshot',):
            qemu_img('snapshot', '-c', 's', path)
    return paths


def _word(content: bytearray, offset: int) -> int:
    if not 0 <= offset <= len(content) - 8:
        return 0
    word: int = struct.unpack_from('>Q', content, offset)[0]
    return word


def _put(content: bytearray, offset: int, value: int, length: int) -> None:
    if 0 <= offset <= len(content) - length:
        content[offset:offset + length] = (value % (1 << 8 * length)).to_bytes(length, 'big')


def mutated(base: bytes, chance: random.Random) -> bytes:
    """Return a qcow2 with some changes, where they hurt most of the time. Pure."""
    content = bytearray(base)
    cluster = 1 << base[23]
    tables = [_word(content, 40), _word(content, 48), _word(content, 64)]
    tables += [_word(content, tables[0]) & _OFFSET, _word(content, tables[1]) & _OFFSET]

    def value(before: int) -> int:
        return chance.choice((
            lambda: chance.choice(_VALUES), lambda: before ^ 1 << chance.randrange(64),
            lambda: before + chance.choice((-cluster, cluster, 512, -512, 1)),
            lambda: chance.choice(tables) | chance.choice((0, 1 << 63, 1 << 62)),
            lambda: chance.randrange(len(base) // cluster + 2) * cluster | 1 << 63,
            lambda: chance.getrandbits(64)))()

    def half() -> None:
        offset = chance.choice(_HALVES)
        _put(content, offset, value(_word(content, offset) >> 32), 4)

    def word() -> None:
        offset = chance.choice(_WORDS)
        _put(content, offset, value(_word(content, offset)), 8)

    def entry() -> None:
        number = chance.choice((0, 1, 2, chance.randrange(cluster // 8)))
        offset = chance.choice(tables) + 8 * number
        _put(content, offset, value(_word(content, offset)), 8)

    def noise() -> None:
        for _byte in range(chance.choice((1, 4, 64))):
            content[chance.randrange(chance.choice((128, min(len(content), 6 * cluster),
                                                    len(content))))] = chance.randrange(256)

    def piece() -> None:
        length = chance.choice((8, 512, cluster))
        source = chance.randrange(len(content)) // 8 * 8
        target = chance.randrange(len(content)) // 8 * 8
        some = content[source:source + length]
        content[target:target + len(some)] = some

    for _change in range(chance.choice((1, 1, 1, 2, 3, 8))):
        chance.choice((half, word, entry, entry, entry, noise, piece))()
    if chance.random() < 0.04:
        del content[chance.randrange(1, len(content)):]
    return bytes(content)


def make(bases: list[str], seed: int, number: int, path: str) -> None:
    """Write the file of a number.

    :param bases: of ``make_bases``.
    """
    chance = random.Random(f'{seed} {number}')
    with open(chance.choice(bases), 'rb') as stream:
        content = mutated(stream.read(), chance)
    with open(path, 'wb') as stream:
        stream.write(content)


def opened(path: str, number: int = 0) -> Outcome:
    """Put a file through the opening path of the storage service."""
    began = time.monotonic()

    def outcome(kind: str, reason: object = '') -> Outcome:
        return Outcome(number, kind, str(reason), time.monotonic() - began)

    try:
        inspected = inspection.inspect(path, 'qcow2')
        inspection.read_through(path, inspected, os.path.getsize(path), lambda: None)
    except exception.ImageRefused as error:
        return outcome(CRASHED if _BY_SIGNAL.search(str(error)) else REFUSED, error)
    except exception.Interrupted as error:
        return outcome(TIMEOUT if 'not done after' in str(error) else CRASHED, error)
    except Exception as error:
        return outcome(ESCAPED, repr(error))
    return outcome(ACCEPTED)


def _one(bases: list[str], directory: str, seed: int, number: int) -> tuple[Outcome, int, int]:
    path = f'{directory}/run-{number}'
    try:
        make(bases, seed, number, path)
        done = opened(path, number)
    finally:
        os.unlink(path)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    return done, most, len(os.listdir('/proc/self/fd'))


def _why(reason: str) -> str:
    """Return a reason without what differs from file to file. Pure."""
    return re.sub(r'\d+', 'N', re.sub(r'/\S*run-\d+', 'FILE', reason))[:110]


def summary(outcomes: Iterable[Outcome], most_bytes: int, left: int) -> dict[str, Any]:
    """Return the report of some runs. Pure.

    :param most_bytes: of memory, that one process had.
    :param left: files and descriptors that were left behind.
    """
    done = list(outcomes)
    kinds = collections.Counter(one.kind for one in done)
    slowest = max(done, key=lambda one: one.seconds)
    return {
        'runs': len(done), **{kind: kinds[kind] for kind in (
            ACCEPTED, REFUSED, CRASHED, TIMEOUT, ESCAPED)},
        'left behind': left, 'slowest': {'number': slowest.number,
                                         'seconds': round(slowest.seconds, 2)},
        'most memory': most_bytes,
        'reasons': dict(collections.Counter(
            _why(one.reason) for one in done if one.kind == REFUSED).most_common()),
        'to be looked at': [dataclasses.asdict(one) for one in done if one.kind in (
            CRASHED, TIMEOUT, ESCAPED)][:200]}


def run(runs: int, seed: int, workers: int, seconds: float,
        tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Make files and open them; no more are begun after a time.

    :param seconds: after which none is begun.
    :returns: the report, see ``summary``.
    """
    outcomes: list[Outcome] = []
    most, descriptors, began = 0, {}, time.monotonic()
    with tempfile.TemporaryDirectory(prefix='bootcache-fuzz-') as directory:
        # Others are to look into it, who may be nobody.
        os.chmod(directory, 0o755)
        bases = make_bases(directory)
        known = set(os.listdir(directory))
        # One process opens one file at a time; a fork of threads is none.
        with concurrent.futures.ProcessPoolExecutor(
                workers, multiprocessing.get_context('spawn')) as pool:
            work = functools.partial(_one, bases, directory, seed)
            waiting: set[concurrent.futures.Future[tuple[Outcome, int, int]]] = set()
            number = 0
            while waiting or number < runs:
                while len(waiting) < 2 * workers and number < runs:
                    if time.monotonic() - began > seconds:
                        runs = number
                        break
                    waiting.add(pool.submit(work, number))
                    number += 1
                ended, waiting = concurrent.futures.wait(
                    waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                for one in ended:
                    outcome, memory, open_files = one.result()
                    outcomes.append(outcome)
                    most = max(most, memory)
                    descriptors[outcome.number] = open_files
                    if not len(outcomes) % 500:
                        tell(f'{len(outcomes)} of {runs} after {time.monotonic() - began:.0f} s')
        left = len(set(os.listdir(directory)) - known)
    counts = [descriptors[number] for number in sorted(descriptors)]
    report = summary(outcomes, most, left + max(0, counts[-1] - counts[0]))
    return {'seed': seed, 'seconds': round(time.monotonic() - began), **report}


def main() -> int:
    """Run it; 1 is returned where something is to be looked at."""
    parser = argparse.ArgumentParser(prog='tools/fuzz.sh', description=__doc__)
    parser.add_argument('--runs', type=int, default=10000, help='files (default: %(default)s)')
    parser.add_argument('--seed', type=int, default=1, help='of chance (default: %(default)s)')
    parser.add_argument('--workers', type=int, default=os.cpu_count() or 1,
                        help='files at a time (default: %(default)s)')
    parser.add_argument('--seconds', type=float, default=7200,
                        help='none is begun after that (default: %(default)s)')
    parser.add_argument('--report', default='fuzz-report', help='folder (default: %(default)s)')
    parser.add_argument('--only', type=int, help='a file\'s number: open this one alone')
    parser.add_argument('--keep', help='where that one is to stay')
    given = parser.parse_args()
    if given.only is not None:
        with tempfile.TemporaryDirectory() as directory:
            path = given.keep or f'{directory}/image'
            make(make_bases(directory), given.seed, given.only, path)
            print(opened(path, given.only))
        return 0
    report = run(given.runs, given.seed, given.workers, given.seconds,
                 lambda line: print(line, flush=True))
    os.makedirs(given.report, exist_ok=True)
    with open(f'{given.report}/fuzz.json', 'w') as stream:
        json.dump(report, stream, indent=1)
    print(json.dumps(report, indent=1))
    return 1 if report['to be looked at'] or report['left behind'] else 0


if __name__ == '__main__':
    raise SystemExit(main())
