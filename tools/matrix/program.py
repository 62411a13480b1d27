"""A program as one test, and what came of it. Run by tools/matrix.sh."""

import argparse
import json
import pathlib
import subprocess
import sys
import time
from typing import Any


def outcome(command: list[str], code: int, seconds: float) -> dict[str, Any]:
    """Return what a program's end comes to. Pure.

    :param code: its exit status, negative if a signal ended it.
    """
    failed = [f'{command[0]} ended with {code}'] if code else []
    return {'ran': 1, 'passed': 1 - len(failed), 'failed': failed, 'seconds': round(seconds)}


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--report', required=True, help='where the result goes')
    parser.add_argument('command', nargs='+', help='the program and its arguments, after --')
    options = parser.parse_args()
    begin = time.monotonic()
    code = subprocess.run(options.command, check=False).returncode
    pathlib.Path(options.report).write_text(json.dumps(
        outcome(options.command, code, time.monotonic() - begin), indent=1))
    return code


if __name__ == '__main__':
    sys.exit(main())
