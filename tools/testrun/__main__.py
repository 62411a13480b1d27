"""Run tests in lanes beside each other: python -m tools.testrun [unit|functional|e2e ...] [-- ...]

Each lane has a network and a process namespace of its own, and ends with this process, whatever
becomes of it; with the first process of a namespace the kernel ends all others, and takes mounts
and network away. Lanes of the e2e tests have a cloud each, in a directory of their own.
"""

import contextlib
import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PARTS = ('unit', 'functional', 'e2e')
# Without this process a lane is nothing; without its first process a namespace is none. The shell
# is that first process: it stays, and waits for the orphans too. libvirt's locks of terminals and
# the names of network namespaces have processes' numbers, which mean nothing in another namespace:
# each lane has its own of both.
NAMESPACES = ('setpriv', '--pdeathsig', 'KILL', 'unshare', '--net', '--pid', '--fork',
              '--kill-child=KILL', '--mount-proc', '--propagation', 'private',
              'sh', '-c', 'mount -t tmpfs locks "$(readlink -f /var/lock)" && mkdir -p /run/netns'
              ' && mount -t tmpfs names /run/netns && ip link set lo up && "$@"; exit $?', 'sh')
# A cloud is taken down in that time when the run is interrupted.
GRACE_SECONDS = 120
NO_TESTS = 5


class Lane:
    """One pytest process at a time, for one part after the other.

    :param name: for people, and of its files.
    :param parts: folders below tests.
    :param home: BOOTCACHE_HOME of its own, where it has a cloud.
    """

    def __init__(self, name: str, parts: list[str], home: Path):
        self.name = name
        self.parts = parts
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self.codes: list[int] = []
        self.pending = b''

    def start(self, share: Path, arguments: list[str]) -> None:
        """Start the next part."""
        part = self.parts.pop(0)
        directory = share / part
        directory.mkdir(exist_ok=True)
        environment = {
            **os.environ, 'BOOTCACHE_HOME': str(self.home), 'BOOTCACHE_SHARE': str(directory),
            'BOOTCACHE_SHARE_NAME': self.name, 'PYTHONUNBUFFERED': '1'}
        command = [*NAMESPACES, sys.executable, '-W', 'ignore', '-m', 'pytest', '-p',
                   'tools.testrun.share', '-p', 'no:cacheprovider', '-v', '--no-header']
        named = any(argument.startswith(f'tests/{part}') for argument in arguments)
        # There are too many of these to see each of them.
        if part == 'unit':
            command.append('-q')
        self.process = subprocess.Popen(
            [*command, *([] if named else [f'tests/{part}']), *arguments], cwd=TOP, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True)

    def write(self, data: bytes) -> None:
        """Show what it has written, line by line, with its name."""
        *lines, self.pending = (self.pending + data).split(b'\n')
        for line in lines:
            say(f'{self.name:5} | {line.decode(errors="replace")}')

    def interrupt(self) -> None:
        """Have the tests end as Ctrl-C has them: with their fixtures."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End all that runs in it."""
        self._signal(signal.SIGKILL)

    def _signal(self, signum: int) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signum)


class Run:
    """All lanes, until the last has ended."""

    def __init__(self, lanes: list[Lane], share: Path, arguments: list[str]):
        self._lanes = lanes
        self._share = share
        self._arguments = arguments
        self._first_only = bool({'-x', '--exitfirst', '--maxfail=1'} & set(arguments))
        self._deadline = 0.0

    @property
    def interrupted(self) -> bool:
        """Whether it was ended before its time."""
        return bool(self._deadline)

    def stop(self, *_signal: object) -> None:
        """End soon; asked again, at once."""
        if self._deadline:
            self._deadline = time.monotonic()
            return
        self._deadline = time.monotonic() + GRACE_SECONDS
        say('== interrupted: the clouds are taken down; once more ends them at once')
        for lane in self._lanes:
            lane.parts.clear()
            lane.interrupt()

    def execute(self) -> None:
        """Run all."""
        with selectors.DefaultSelector() as selector:
            for lane in self._lanes:
                self._next(lane, selector)
            while selector.get_map():
                for key, _events in selector.select(1):
                    if data := os.read(key.fd, 1 << 16):
                        key.data.write(data)
                    else:
                        selector.unregister(key.fileobj)
                        self._ended(key.data, selector)
                if self._deadline and time.monotonic() >= self._deadline:
                    for lane in self._lanes:
                        lane.kill()

    def _next(self, lane: Lane, selector: selectors.BaseSelector) -> None:
        lane.start(self._share, self._arguments)
        assert lane.process is not None and lane.process.stdout is not None
        selector.register(lane.process.stdout, selectors.EVENT_READ, lane)

    def _ended(self, lane: Lane, selector: selectors.BaseSelector) -> None:
        assert lane.process is not None and lane.process.stdout is not None
        lane.process.stdout.close()
        lane.codes.append(lane.process.wait())
        if lane.pending:
            lane.write(b'\n')
        if lane.codes[-1] not in (0, NO_TESTS) and self._first_only and not self._deadline:
            self.stop()
        elif lane.parts:
            self._next(lane, selector)


def say(text: str) -> None:
    """Write a line, to be seen at once."""
    print(text, flush=True)


def summary(share: Path) -> tuple[Counter[str], list[tuple[str, str]], list[str], dict[str, int]]:
    """Return what all lanes have run: counts, failures with their lanes, what is wrong, seconds.

    Wrong is a file of tests that no lane has told of.
    """
    counts: Counter[str] = Counter()
    bad: list[tuple[str, str]] = []
    wrong: list[str] = []
    seconds: dict[str, int] = {}
    for part in sorted(path for path in share.iterdir() if path.is_dir()):
        told = {path.stem: json.loads(path.read_text()) for path in part.glob('*.json')}
        for lane, document in sorted(told.items()):
            counts.update(document['counts'])
            bad += [(lane, test) for test in document['bad']]
            seconds.update(document['seconds'])
        collected = max((document['collected'] for document in told.values()), default=0)
        ran = sum(document['ran'] for document in told.values())
        if ran < collected:
            wrong.append(f'{part.name}: {collected - ran} of {collected} tests were not run')
    return counts, bad, wrong, seconds


def last_line(counts: Counter[str], seconds: float) -> str:
    """Return the summary as pytest words it."""
    words = [f'{counts[kind]} {kind}{"s" if kind == "error" and counts[kind] > 1 else ""}'
             for kind in ('failed', 'passed', 'skipped', 'xfailed', 'xpassed', 'error')
             if counts[kind]]
    return f'{", ".join(words) or "no tests ran"} in {seconds:.0f}s'


def lane_home(home: Path, number: int) -> Path:
    """Return a lane's BOOTCACHE_HOME, emptied of a cloud that a killed run left there."""
    lane = home / f'test{number}'
    shutil.rmtree(lane / 'cloud', ignore_errors=True)
    lane.mkdir(exist_ok=True)
    for shared in ('venv', 'images'):
        link = lane / shared
        if not link.is_symlink():
            link.symlink_to(Path('..') / shared)
    return lane


def default_clouds(memory: int) -> int:
    """Return how many clouds a machine bears: a test mostly waits, also where processors are few.

    :param memory: bytes; a cloud takes some two GiB.
    """
    return 3 if memory >= 12 << 30 else 2


def lanes_of(parts: list[str], clouds: int, home: Path) -> list[Lane]:
    """Return the lanes: one a cloud, and one for the parts that need none.

    Who has no more of its own goes on with the functional tests that nobody has claimed.
    """
    local = [part for part in parts if part != 'e2e']
    lanes = [Lane('local', list(local), home)] if local else []
    if 'e2e' in parts:
        then = [part for part in local if part == 'functional']
        lanes += [Lane(f'e2e-{number}', ['e2e', *then], lane_home(home, number))
                  for number in range(1, clouds + 1)]
    return lanes


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; pytest's exit status."""
    cut = arguments.index('--') if '--' in arguments else len(arguments)
    parts, more = arguments[:cut] or list(PARTS), arguments[cut + 1:]
    home = Path(os.environ['BOOTCACHE_HOME'])
    clouds = int(os.environ.get('BOOTCACHE_E2E_CLOUDS') or default_clouds(
        os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')))
    begin = time.monotonic()
    with open(home / 'test.lock', 'w') as lock, tempfile.TemporaryDirectory() as directory:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f'error: another run of the tests has its clouds in {home};'
                ' give this one a BOOTCACHE_HOME of its own')
            return 2
        share = Path(directory)
        lanes = lanes_of(parts, clouds, home)
        run = Run(lanes, share, more)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, run.stop)
        run.execute()
        counts, bad, wrong, seconds = summary(share)
    for name, took in sorted(seconds.items(), key=lambda pair: -pair[1])[:12]:
        say(f'== {took:5} s {name}')
    (home / 'test-durations.json').write_text(json.dumps(seconds, indent=1, sort_keys=True))
    for lane, test in bad:
        logs = f', logs in {home / lane.replace("e2e-", "test") / "e2e-log"}'
        say(f'FAILED {test} ({lane}{logs if lane.startswith("e2e-") else ""})')
    codes = {code for lane in lanes for code in lane.codes}
    for lane in lanes:
        wrong += [f'{lane.name}: pytest ended with {code}' for code in lane.codes
                  if code not in (0, 1, NO_TESTS)]
    for text in wrong:
        say(f'error: {text}')
    say(f'== {last_line(counts, time.monotonic() - begin)}')
    if run.interrupted:
        return 130
    if bad or wrong:
        return 1
    return NO_TESTS if codes == {NO_TESTS} else max(codes - {NO_TESTS}, default=0)


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))
