"""The table of tools/matrix.sh: what ran on which release, and what came of it."""

import json
import pathlib
import sys
from typing import Any

HEAD = ('row', 'what', 'ran', 'passed', 'failed', 'expected differences', 'stock\'s own', 'skipped',
        'seconds')
PARTS = {'unit': 'our unit tests', 'driver': 'Nova\'s driver tests',
         'functional': 'our functional tests', 'uefi': 'a UEFI guest', 'demo': 'the demo'}
ROWS = {'debian13': ('Debian 13', ('unit', 'functional', 'uefi', 'demo')),
        'lowest': ('lowest', ('unit', 'functional'))}


def row_of(name: str) -> tuple[str, tuple[str, ...]]:
    """Return how a row is called, and its parts. Pure."""
    return ROWS.get(name, (f'Nova {name}', ('unit', 'driver')))


def lines(results: dict[tuple[str, str], dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table's lines. Pure.

    :param results: what came of each part, by row and part.
    """
    return [(row, PARTS[part], *(str(number) for number in (
        found['ran'], found['passed'], len(wrong(found)), len(found.get('expected', ())),
        len(found.get('fail in stock as well', ())), found.get('skipped', 0),
        found.get('seconds', '-'))))
            for (row, part), found in results.items()]


def wrong(found: dict[str, Any]) -> list[str]:
    """Return what is not as it should be, each with what it is."""
    return [*found['failed'],
            *(f'{test}: an expected difference that has gone' for test in found.get('gone', ())),
            *(f'{test}: did not run' for test in found.get('not run', ()))]


def main(directory: str, *rows: str) -> int:
    """Print the table, and below it all that is wrong."""
    results = {(name, part): json.loads(
        (pathlib.Path(directory) / row / f'{part}.json').read_text())
        for row in rows for name, parts in [row_of(row)] for part in parts}
    table = [HEAD, *lines(results)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    for line in table:
        cells = [cell.ljust(width) if column < 2 else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(line, widths, strict=True))]
        print('  '.join(cells).rstrip())
    bad = [f'{row}, {PARTS[part]}: {what}' for (row, part), found in results.items()
           for what in wrong(found)]
    if bad:
        print(*bad, sep='\n')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
