"""Our own tests in a row's environment, and what came of them. Run by tools/matrix.sh."""

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import pytest

# They compare files with what the pinned libraries of tools/constraints.txt make.
OTHER_VERSIONS = ('tests/unit/test_docs.py::test_samples_are_up_to_date',)

def left_out(other_versions: bool) -> list[str]:
    """Return pytest's arguments for the tests that mean nothing in an environment. Pure.

    :param other_versions: whether it is not that of tools/constraints.txt.
    """
    return [f'--deselect={test}' for test in OTHER_VERSIONS if other_versions]


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
    code = pytest.main(['-q', '--continue-on-collection-errors',
                        *left_out(options.other_versions), *options.arguments], plugins=[outcomes])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        pathlib.Path(options.report).write_text(json.dumps(
            {'ran': outcomes.ran, 'passed': outcomes.passed, 'skipped': outcomes.skipped,
             'failed': outcomes.failed, 'seconds': round(time.monotonic() - begin)}, indent=1))
    return int(code)


if __name__ == '__main__':
    sys.exit(main())
