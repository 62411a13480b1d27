"""A pytest plugin by which several pytest processes share out the files of their tests.

Each collects all of them. Before it runs a file it claims it, by making a file of that name in a
directory that all have in common; who is first runs it. The longest files are claimed first, so
that none is left to one process at the end. At its end a process writes down what it has run.

:envvar BOOTCACHE_SHARE: the directory.
:envvar BOOTCACHE_SHARE_NAME: the process's own name.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name('durations.json')
# Of a file that nobody has timed, for each test: those of the e2e tests are timed, and of the
# others those that take longest.
UNKNOWN_SECONDS = {'e2e': 30.0, 'functional': 0.5}


def order(counts, seconds):
    """Return the names of files, longest first.

    :param counts: how many tests each has.
    :param seconds: how long files took; those that are missing are taken by their tests.
    """
    def length(name):
        part = name.split('/')[1] if '/' in name else ''
        return seconds.get(name, counts[name] * UNKNOWN_SECONDS.get(part, 30.0))
    return sorted(counts, key=lambda name: (-length(name), name))


def claim(directory, name):
    """Tell whether a file is this process's to run; the first who asks has it."""
    try:
        os.close(os.open(Path(directory, name.replace('/', '%')), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def claimed(items, directory, seconds):
    """Yield the tests of one file after the other, as far as they can be claimed.

    :param items: what pytest has collected.
    """
    files = {}
    for item in items:
        files.setdefault(item.location[0], []).append(item)
    for name in order({name: len(tests) for name, tests in files.items()}, seconds):
        if claim(directory, name):
            yield from files[name]


class Share:
    """What one of the processes runs, and what came of it."""

    def __init__(self, directory, name):
        self._directory = Path(directory)
        self._name = name
        self._collected = 0
        self._ran = []
        self._seconds = Counter()

    def pytest_runtestloop(self, session):
        """Run the tests of the files that can be claimed."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f'{session.testsfailed} errors during collection')
        self._collected = len(session.items)
        if session.config.option.collectonly:
            return True
        seconds = json.loads(DURATIONS.read_text())
        tests = claimed(session.items, self._directory, seconds)
        item = next(tests, None)
        while item is not None:
            # Fixtures that the next test needs as well stay: so it has to be known.
            following = next(tests, None)
            begin = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._seconds[item.location[0]] += time.monotonic() - begin
            self._ran.append(item.nodeid)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def pytest_terminal_summary(self, terminalreporter):
        """Write down what was run."""
        stats = terminalreporter.stats
        kinds = ('failed', 'passed', 'skipped', 'xfailed', 'xpassed', 'error')
        document = {
            'collected': self._collected, 'ran': len(self._ran),
            'counts': {kind: len(stats[kind]) for kind in kinds if stats.get(kind)},
            'bad': [report.nodeid for kind in ('failed', 'error')
                    for report in stats.get(kind, ())],
            'seconds': {name: round(took) for name, took in self._seconds.items()}}
        new = self._directory / f'{self._name}.new'
        new.write_text(json.dumps(document))
        new.rename(self._directory / f'{self._name}.json')


@pytest.hookimpl
def pytest_configure(config):
    """Share, if there is somebody to share with."""
    if directory := os.environ.get('BOOTCACHE_SHARE'):
        config.pluginmanager.register(Share(directory, os.environ['BOOTCACHE_SHARE_NAME']))
