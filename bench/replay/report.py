"""The report: report.json, figures, and a page in Markdown that the documentation includes.

Made of the journals in the report's directory, one a row, so that rows may be measured apart. All
figures in it come from there; each row names its run.
"""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.replay import peers
from bench.replay.setting import read

CHECK = 'check.json'
PAGE = 'report.md'
_COMPARED, _CHECKED = 'What is compared', 'Whether a replay is the real boot'
_FIRST = _COMPARED, _CHECKED
_PREFACE = [
    '# The papers\' figures and today\'s alternatives, side by side', '',
    'Boots of real guests, recorded once, are replayed through the real block path: real overlays,'
    ' cache images that the product made, its gateway and exporter, NBD, and a network namespace'
    ' with a shaped link for each host. Each figure is a ratio within one run; seconds are never'
    ' compared across runs. Spread is the largest less the smallest of the rounds.', '',
    '`tools/bench.sh --quick` measures all of it anew, `tools/bench.sh many-hosts` a part.', '']


def assemble(directory: Path, parts: list[ModuleType]) -> dict[str, Any]:
    """Put the report together from the journals that are there, and write it.

    :param directory: of the journals; report.json, page and figures go there.
    :param parts: the modules of the rows, in the report's order.
    :returns: the document of report.json.
    """
    document: dict[str, Any] = {'rows': [], 'targets': [], 'runs': [], 'check': []}
    page = [*_PREFACE, *_peers()]
    if (directory / CHECK).exists():
        document['check'] = json.loads((directory / CHECK).read_text())
        page += _checks(document['check'])
    for part in parts:
        path = directory / f'{part.NAME}.jsonl'
        if not path.exists():
            continue
        head, runs = read(path)
        if not runs:
            continue
        rows, targets = part.rows(head, runs), part.targets(head, runs)
        document['rows'] += rows
        document['targets'] += targets
        document['runs'].append(head)
        page += _section(part, head, rows, targets, part.draw(head, rows, directory))
    (directory / 'report.json').write_text(json.dumps(document, indent=1) + '\n')
    (directory / PAGE).write_text('\n'.join(page))
    return document


def publish(directory: Path, target: Path, titles: Sequence[str]) -> None:
    """Copy the page and its figures to where the documentation has them.

    Parts that were not measured this time stay as they are there: all of them take hours.

    :param directory: of the report.
    :param target: of the documentation's page, ``index.md``, and its figures.
    :param titles: of parts, in the report's order; what the page has of others goes.
    """
    target.mkdir(parents=True, exist_ok=True)
    index = target / 'index.md'
    measured = _sections((directory / PAGE).read_text())
    before = _sections(index.read_text()) if index.exists() else {}
    parts = [measured.get(title) or before.get(title, '') for title in ('', *_FIRST, *titles)]
    text = '\n\n'.join(filter(None, parts)) + '\n'
    figures = _pictures(text)
    for name in _pictures(''.join(measured.values())) & figures:
        shutil.copy(directory / name, target / name)
    for path in target.glob('*.svg'):
        if path.name not in figures:
            path.unlink()
    index.write_text(text)


def _sections(page: str) -> dict[str, str]:
    """Return a page's parts by their titles; what comes before the first one by none. Pure."""
    parts = re.split(r'^(?=## )', page, flags=re.MULTILINE)
    return {part.split('\n', 1)[0][3:] if part.startswith('## ') else '': part.strip()
            for part in parts}


def _pictures(text: str) -> set[str]:
    return set(re.findall(r'!\[[^]]*\]\(([^)/]+)\)', text))


def _table(names: list[str], lines: list[list[Any]]) -> list[str]:
    page = [names, ['---'] * len(names), *lines]
    return [*('| ' + ' | '.join(str(value).replace('|', '/') for value in line) + ' |'
              for line in page), '']


def _peers() -> list[str]:
    known = peers.capabilities()
    names = list(dict.fromkeys(name for can in known.values() for name in can))

    def say(value: bool | str) -> str:
        return value if isinstance(value, str) else 'yes' if value else 'no'

    return [f'## {_COMPARED}', '', *_table(
        ['peer', *names], [[peer, *(say(can.get(name, '')) for name in names)]
                           for peer, can in known.items()])]


def _checks(checks: list[dict[str, Any]]) -> list[str]:
    page = [f'## {_CHECKED}', '',
            'A trace that was recorded of a real guest is played on the setting of its recording.',
             'Order and bytes are those that the server saw; times are of issue.', '']
    return page + _table(
        ['image', 'requests', 'bytes and order', 'boot time', 'median lag', 'worst lag'],
        [[one['image'], one['requests'], 'exact' if one['exact'] else 'differ',
          f'{one["boot_error"]:+.2%}', f'{one["median_lag"] * 1e3:.1f} ms',
          f'{one["worst_lag"] * 1e3:.1f} ms'] for one in checks])


def _number(value: float) -> str:
    return f'{value:.2f}' if value < 100 else f'{value:.0f}'


def _megabytes(value: float) -> str:
    return f'{value / 1e6:.1f}' if value else '0'


def _intro(head: dict[str, Any]) -> str:
    setting = head['setting']
    return (f'Links of {setting["rate"] / 1e6:.0f} Mbit/s, think times x {setting["scale"]:g}: it'
            f' stands for {setting["stands_for"]}, and all times are {setting["dilation"]:g} times'
            ' longer.')


def _columns(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    more = [name for name in ('image', 'images', 'cluster_bytes', 'part')
            if len({row.get(name) for row in rows}) > 1]
    return (['peer', 'hosts', *more, 'ratio', 'spread', 'base, MB', 'cache images, MB',
             'whole images, MB', 'player, CPU s'],
            [[row['peer'], row['hosts'], *(row.get(name, '') for name in more), row['ratio'],
              row['spread'], _megabytes(row['base_bytes']), _megabytes(row['cache_bytes']),
              _megabytes(row['copied_bytes']), row['player_cpu_seconds']] for row in rows])


def _section(part: ModuleType, head: dict[str, Any], rows: list[dict[str, Any]],
             targets: list[dict[str, Any]], pictures: list[tuple[str, str]]) -> list[str]:
    page = [f'## {part.TITLE}', '']
    rounds = head['setting'].get('repeats')
    page += [f'Run `{head["run"]}` on {head["cpus"]} CPUs'
             + (f', {rounds} interleaved rounds. ' if rounds else '. ')
             + getattr(part, 'intro', _intro)(head), '']
    for name, caption in pictures:
        page += [f'![{caption}]({name})', '', f'*{caption}*', '']
    page += _table(*getattr(part, 'table', _columns)(rows))
    return page if not targets else page + _table(
        ['target', 'at most', 'measured', 'met', 'because'],
        [[one['name'], '' if one['target'] is None else one['target'], _number(one['value']),
          'told' if one['target'] is None else 'yes' if one['met'] else '**missed**',
          one['reason']] for one in targets])
