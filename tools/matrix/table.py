"""The table of tools/matrix.sh: what ran on which release, and what came of it."""

import json
import pathlib
import sys
from typing import Any

HEAD = ('row', 'what', 'ran', 'passed', 'failed', 'expected differences')
PARTS = {'unit': 'our unit tests', 'driver': 'Nova\'s driver tests'}


def lines(results: dict[tuple[str, str], dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table's lines. Pure.

    :param results: what came of each part, by row and part.
    """
    return [(row, PARTS[part], *(str(number) for number in (
        found['ran'], found['passed'], len(wrong(found)), len(found.get('expected', ())))))
            for (row, part), found in results.items()]


def wrong(found: dict[str, Any]) -> list[str]:
    """Return what is not as it should be, each with what it is."""
    return [*found['failed'],
            *(f'{test}: an expected difference that has gone' for test in found.get('gone', ())),
            *(f'{test}: did not run' for test in found.get('not run', ()))]


def main(directory: str, *rows: str) -> int:
    """Print the table, and below it all that is wrong."""
    results = {(f'Nova {row}', part): json.loads(
        (pathlib.Path(directory) / row / f'{part}.json').read_text())
        for row in rows for part in PARTS}
    table = [HEAD, *lines(results)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    for line in table:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print('  '.join(cells).rstrip())
    bad = [f'{row}, {PARTS[part]}: {what}' for (row, part), found in results.items()
           for what in wrong(found)]
    print(*bad, sep='\n')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
