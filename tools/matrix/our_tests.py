"""Our own tests in a row's environment, and what came of them. Run by tools/matrix.sh."""

import argparse
import json
import pathlib
import re
import sys
import time
from importlib import metadata
from typing import Any

import pytest
from packaging.version import Version

# They compare files with what the pinned libraries of tools/constraints.txt make.
OTHER_VERSIONS = ('tests/unit/test_docs.py::test_samples_are_up_to_date',)

# The commands choose native threads, which came with that version. Beside a Nova and a Glance that
# have an earlier one are the driver, the scheduler's plugins and the hook; the storage service has
# an environment of its own.
THREADING = Version('4.2')
COMMANDS = (
    # The test cloud and devstack run them.
    '--ignore-glob=tests/unit/test_devstack*.py',
    '--ignore=tests/unit/test_cloud_tls.py',
    '--deselect=tests/unit/test_docs.py::test_commands_that_pages_name_exist',
    *('--deselect=tests/unit/test_imports.py::test_a_program_can_begin_with_it'
      f'[glance_bootcache.cli.{module}]' for module in ('service', 'main')))
THEIR_MODULES = re.compile(r'^(from|import) (glance_bootcache\.cli|fakes_cli)\b', re.MULTILINE)
THEIR_FIXTURE = 'cli'


def left_out(other_versions: bool, service: str) -> list[str]:
    """Return pytest's arguments for the tests that mean nothing in an environment. Pure.

    :param other_versions: whether it is not that of tools/constraints.txt.
    :param service: the version of its oslo.service.
    """
    return [*(f'--deselect={test}' for test in OTHER_VERSIONS if other_versions),
            *(COMMANDS if Version(service) < THREADING else ())]


class WithoutCommands:
    """A plugin of pytest's that leaves out the tests that run commands."""

    def pytest_ignore_collect(self, collection_path: pathlib.Path) -> bool | None:
        """A file that imports them cannot be loaded."""
        is_theirs = collection_path.match('test_*.py') \
            and THEIR_MODULES.search(collection_path.read_text())
        return True if is_theirs else None

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Others ask for the fixture that imports them."""
        theirs = [item for item in items if THEIR_FIXTURE in getattr(item, 'fixturenames', ())]
        config.hook.pytest_deselected(items=theirs)
        items[:] = [item for item in items if item not in theirs]


class Outcomes:
    """A plugin of pytest's that counts."""

    def __init__(self) -> None:
        self.ran = 0
        self.passed = 0
        self.skipped = 0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test once; an error around it is a failure."""
        if report.when == 'call' or report.skipped:
            self.ran += 1
            self.passed += report.passed
            self.skipped += report.skipped
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be loaded fails."""
        if report.failed:
            self.failed.append(report.nodeid)


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--report', required=True, help='where the result goes')
    parser.add_argument('--other-versions', action='store_true',
                        help='the environment is not that of tools/constraints.txt')
    parser.add_argument('arguments', nargs='+', help='for pytest')
    options = parser.parse_args()
    outcomes = Outcomes()
    begin = time.monotonic()
    service = metadata.version('oslo.service')
    plugins = [outcomes, *([WithoutCommands()] if Version(service) < THREADING else [])]
    code = pytest.main(['-q', '--continue-on-collection-errors',
                        *left_out(options.other_versions, service), *options.arguments],
                       plugins=plugins)
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        pathlib.Path(options.report).write_text(json.dumps(
            {'ran': outcomes.ran, 'passed': outcomes.passed, 'skipped': outcomes.skipped,
             'failed': outcomes.failed, 'seconds': round(time.monotonic() - begin)}, indent=1))
    return int(code)


if __name__ == '__main__':
    sys.exit(main())
