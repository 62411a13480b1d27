"""Nova's own tests of its libvirt driver and its images, with bootcache's driver in stock's place.

Nova's tests are those of the Nova that is installed; they know nothing of bootcache. What is to
differ is in expected_differences.toml, with the reason; anything else that fails is our fault, and
so is an expected difference that has gone. Run by tools/matrix.sh, with unittest, as Nova's test
classes do not bear pytest's.
"""

import argparse
import functools
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from collections.abc import Collection
from typing import Any

PACKAGE = 'nova.tests.unit.virt.libvirt'
# The driver, and what it has of images; the driver's tests are named without their module.
SUITES = (f'{PACKAGE}.test_driver', f'{PACKAGE}.test_imagebackend', f'{PACKAGE}.test_imagecache')
EXPECTED = pathlib.Path(__file__).with_name('expected_differences.toml')


class Results(unittest.TextTestResult):
    """Notes the outcome of each test by its id."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.outcomes: dict[str, str] = {}

    def _note(self, test: unittest.TestCase, outcome: str) -> None:
        # An error in a clean-up comes after the success.
        if self.outcomes.get(test.id()) != 'failed':
            self.outcomes[test.id()] = outcome

    def addSuccess(self, test: unittest.TestCase) -> None:
        """Note it."""
        super().addSuccess(test)
        self._note(test, 'passed')

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        """Note it."""
        super().addFailure(test, err)
        self._note(test, 'failed')

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """Note it."""
        super().addError(test, err)
        self._note(test, 'failed')

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """Note it."""
        super().addSkip(test, reason)
        self._note(test, 'skipped')

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        """Note it: Nova's tests want it to fail."""
        super().addExpectedFailure(test, err)
        self._note(test, 'passed')

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        """Note it."""
        super().addUnexpectedSuccess(test)
        self._note(test, 'failed')


def expected() -> dict[str, str]:
    """Return why a test is to fail, by its id below the suite's module."""
    with open(EXPECTED, 'rb') as stream:
        groups = tomllib.load(stream)['difference']
    return {test: group['reason'] for group in groups for test in group['tests']}


def unexpected(outcomes: dict[str, str], known: dict[str, str]) -> list[str]:
    """Return the tests that failed and are not known to. Pure."""
    return sorted(test for test, outcome in outcomes.items()
                  if outcome == 'failed' and test not in known)


def judge(outcomes: dict[str, str], known: dict[str, str], stock: dict[str, str],
          loaded: Collection[str]) -> dict[str, Any]:
    """Return what the outcomes come to. Pure.

    :param outcomes: ``passed``, ``failed`` or ``skipped``, by test.
    :param known: reasons why tests are to fail with bootcache's driver.
    :param stock: outcomes of the unexpected failures with Nova's own driver.
    :param loaded: the tests that were to run.
    """
    failed = {test for test, outcome in outcomes.items() if outcome == 'failed'}
    # Not ours: the environment's, as where a test wants another Python.
    anyway = {test for test in failed if stock.get(test) == 'failed'}
    passed = {test for test, outcome in outcomes.items() if outcome == 'passed'}
    skipped = [test for test, outcome in outcomes.items() if outcome == 'skipped']
    return {'ran': len(outcomes), 'passed': len(passed), 'skipped': len(skipped),
            'failed': sorted(failed - anyway - set(known)),
            'expected': sorted(failed & set(known) - anyway),
            'gone': sorted(passed & set(known)),
            'fail in stock as well': sorted(anyway),
            'not run': sorted(set(loaded) - set(outcomes))}


def put_in_place(directory: str) -> None:
    """Let Nova's tests get bootcache's driver where they ask for Nova's.

    No gateway is started for them: there is none that answers, as on a host where it is down.
    """
    from nova.virt import libvirt
    from nova.virt.libvirt import driver
    from oslo_config import cfg

    from bootcache import conf as shared
    from nova_bootcache import conf
    from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver

    cfg.set_defaults([*conf.opts, *shared.opts], gateway_autostart=False,
                     gateway_run_dir=f'{directory}/run',
                     gateway_socket=f'{directory}/socket')
    # As if the class had no other below it: Nova's tests put methods of stock's aside by name, and
    # look in the class itself for how each is bound.
    for name, value in list(vars(driver.LibvirtDriver).items()):
        if name not in vars(BootCacheLibvirtDriver):
            setattr(BootCacheLibvirtDriver, name, value)
    driver.LibvirtDriver.__init__ = begin_once(driver.LibvirtDriver)
    driver.LibvirtDriver = libvirt.LibvirtDriver = BootCacheLibvirtDriver


def begin_once(stock: Any) -> Any:
    """Return an ``__init__`` of Nova's driver that gets at the class above it when asked again.

    Up to Nova 32 it does so by the name of its own class, which is ours now.
    """
    begin = stock.__init__
    begun = set()

    @functools.wraps(begin)
    def once(self: Any, *args: Any, **kwargs: Any) -> None:
        if id(self) in begun:
            super(stock, self).__init__(*args, **kwargs)
            return
        begun.add(id(self))
        try:
            begin(self, *args, **kwargs)
        finally:
            begun.discard(id(self))

    return once


def run(names: list[str], stock: bool) -> tuple[dict[str, str], list[str]]:
    """Run Nova's tests; return the outcome of each, and the ids of those that were to run.

    :param names: run only the tests whose ids contain one of them; all if empty.
    :param stock: whether with Nova's own driver.
    """
    # First, as it decides between native threads and eventlet.
    importlib.import_module('nova.tests.unit')
    # What nova-compute's set-up of its logs does, and Nova's tests do not. Without it a native
    # thread that logs, as the one that speaks QMP, and a green one may wait for each other.
    importlib.import_module('oslo_log.log')._fix_eventlet_logging()
    with tempfile.TemporaryDirectory() as directory:
        if not stock:
            put_in_place(directory)
        chosen = [test for test in flat(unittest.defaultTestLoader.loadTestsFromNames(SUITES))
                  if not names or any(name in test.id() for name in names)]
        # The suite forgets each test as it goes on.
        loaded = [short(test.id()) for test in chosen]
        result = unittest.TextTestRunner(resultclass=Results, verbosity=0).run(
            unittest.TestSuite(chosen))
    assert isinstance(result, Results)
    return {short(test): outcome for test, outcome in result.outcomes.items()}, loaded


def short(test: str) -> str:
    """Return a test's id below the driver's module, or below its package. Pure."""
    return test.removeprefix(f'{PACKAGE}.').removeprefix('test_driver.')


def with_stock(names: list[str]) -> dict[str, str]:
    """Return the outcomes with Nova's own driver, in a process of its own."""
    if not names:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        report = pathlib.Path(directory, 'stock.json')
        subprocess.run([sys.executable, '-W', 'ignore', '-m', __spec__.name, '--stock',
                        '--report', report, '--', *names], check=True)
        outcomes: dict[str, str] = json.loads(report.read_text())
    return outcomes


def flat(suite: Any) -> list[unittest.TestCase]:
    """Return the tests of a suite."""
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [test for part in suite for test in flat(part)]


def main() -> int:
    """Run the tests, and judge what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--report', metavar='FILE', required=True, help='write the result there')
    parser.add_argument('--stock', action='store_true',
                        help='write the outcomes with Nova\'s own driver instead')
    parser.add_argument('name', nargs='*', help='only tests whose ids contain it')
    options = parser.parse_args()
    begin = time.monotonic()
    outcomes, loaded = run(options.name, options.stock)
    if options.stock:
        pathlib.Path(options.report).write_text(json.dumps(outcomes))
        return 0
    known = expected()
    report = judge(outcomes, known, with_stock(unexpected(outcomes, known)), loaded)
    report['seconds'] = round(time.monotonic() - begin)
    pathlib.Path(options.report).write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    return 1 if report['failed'] or report['gone'] or report['not run'] else 0


if __name__ == '__main__':
    sys.exit(main())
