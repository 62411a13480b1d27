"""The report's page, in the documentation."""

from pathlib import Path

import pytest

from bench.replay import report, rows

TITLES = 'One row', 'Another row'


@pytest.fixture
def measured(tmp_path):
    """A report's directory, with the first of two rows."""
    directory = tmp_path / 'report'
    directory.mkdir()
    (directory / report.PAGE).write_text(
        '# Page\n\nMeasured now.\n\n## What is compared\n\n| peer |\n\n## One row\n\nRun `b`\n\n'
        '![Lower is better.](one-b.svg)\n')
    (directory / 'one-b.svg').write_text('b')
    return directory


def test_a_first_page_is_the_report(measured, tmp_path):
    report.publish(measured, tmp_path / 'doc', TITLES)
    assert (tmp_path / 'doc' / 'index.md').read_text() == (measured / report.PAGE).read_text()
    assert (tmp_path / 'doc' / 'one-b.svg').read_text() == 'b'


def test_what_was_not_measured_stays_as_it_is(measured, tmp_path):
    target = tmp_path / 'doc'
    target.mkdir()
    (target / 'index.md').write_text(
        '# Page\n\nMeasured before.\n\n## What is compared\n\n| old |\n\n'
        '## Whether a replay is the real boot\n\n| image |\n\n## A row that is no more\n\n'
        '![Gone.](gone.svg)\n\n## One row\n\nRun `a`\n\n![Lower.](one-a.svg)\n\n'
        '## Another row\n\nRun `a`\n\n![Lower.](another.svg)\n')
    for name in 'gone', 'one-a', 'another':
        (target / f'{name}.svg').write_text('a')
    report.publish(measured, target, TITLES)
    assert (target / 'index.md').read_text() == (
        '# Page\n\nMeasured now.\n\n## What is compared\n\n| peer |\n\n'
        '## Whether a replay is the real boot\n\n| image |\n\n'
        '## One row\n\nRun `b`\n\n![Lower is better.](one-b.svg)\n\n'
        '## Another row\n\nRun `a`\n\n![Lower.](another.svg)\n')
    assert sorted(path.name for path in target.glob('*.svg')) == ['another.svg', 'one-b.svg']


def test_the_documentation_s_page_has_the_rows_titles():
    page = report._sections(
        (Path(__file__).parents[3] / 'doc' / 'source' / 'report' / 'index.md').read_text())
    assert set(page) - {'', *report._FIRST} <= {part.TITLE for part in rows.modules()}
