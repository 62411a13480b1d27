"""The rows of the report by their names, and how they are asked for."""

import re
import subprocess
from pathlib import Path

import pytest

from bench.replay import __main__ as replay
from bench.replay import rows

TOP = Path(__file__).resolve().parents[3]
NAMES = [part.NAME for part in rows.modules()]
TITLES = [part.TITLE for part in rows.modules()]


def test_a_row_is_named_as_its_module_is():
    assert [f'{rows.__name__}.{name.replace("-", "")}' for name in NAMES] == [
        part.__name__ for part in rows.modules()]


def test_every_module_that_is_a_row_is_in_the_report():
    folder = Path(rows.__file__).parent
    assert {path.stem for path in folder.glob('*.py') if re.search(
        r'^TITLE = ', path.read_text(), re.M)} == {name.replace('-', '') for name in NAMES}


def test_without_a_name_all_are_measured():
    assert replay.chosen([], NAMES) == ['check', *NAMES]


def test_a_row_has_its_name_and_its_place():
    assert replay.chosen(['under-stress', 'check', 'row1', 'row9'], NAMES) == [
        'under-stress', 'check', 'many-hosts', 'alternatives']


def test_a_name_that_is_none_is_told_with_those_that_are():
    with pytest.raises(ValueError, match='row13, stress: not one of check, many-hosts, '):
        replay.chosen(['quota', 'stress', 'row13'], NAMES)


@pytest.mark.parametrize('name', ['', '--quick', 'check', 'row3', *NAMES])
def test_the_tool_takes_every_name(name, tmp_path):
    # The tool's own part, until it would set up.
    script = (TOP / 'tools' / 'bench.sh').read_text().partition('"$TOP/tools/setup.sh"')[0]
    script = script.replace('$(dirname "$0")', str(TOP / 'tools'))
    done = subprocess.run(['bash', '-c', f'{script}\necho "$name $*"', 'bench.sh',
                           *filter(None, [name])], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f'replay {name}'.strip()


def test_the_page_in_the_documentation_has_the_rows_in_their_order():
    page = (TOP / 'doc' / 'source' / 'report' / 'index.md').read_text()
    assert [title for title in re.findall('^## (.*)$', page, re.M) if title in TITLES] == TITLES
    assert re.findall(r'^Run `([a-z-]+) ', page, re.M) == NAMES
    figures = re.findall(r'\]\(([^)]+)\)', page)
    assert figures and all((TOP / 'doc/source/report' / name).exists() for name in figures)
