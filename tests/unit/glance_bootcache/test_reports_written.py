"""Reports of servers' boots while the storage service's database cannot be written."""

import pytest
from fakes_database import locked
from test_reports import ask, report
from test_reports import cold as cold  # the fixture

from bootcache.exception import DatabaseAway


def test_a_report_that_cannot_be_written_is_taken_when_it_comes_again(cold, database):
    """Its host sends it again."""
    ask(cold)
    with locked(database):
        for _again in range(2):
            with pytest.raises(DatabaseAway, match='locked'):
                report(cold, [[0, 65536]])
    assert report(cold, [[0, 65536]]) == 1
    assert report(cold, [[0, 65536], [131072, 65536]]) == 1, 'it counts once'
