"""Reports of boots count for the servers that they are of, also where one is sent twice."""

import pytest
from test_reports import IMAGE, KNOWN, MORE, NEW, ask, boot, learned, report
from test_reports import cold as cold  # the fixture


def test_a_report_that_is_sent_again_confirms_nothing(cold, caplog):
    """Its answer was lost, and another server of the only host has begun to boot meanwhile."""
    assert boot(cold, [KNOWN]) == 1
    ask(cold, server='greedy')
    assert report(cold, [NEW, MORE], server='greedy') == 1
    cold.clock.now += 1
    ask(cold, server='other')
    cold.clock.now += 9
    with caplog.at_level('INFO'):
        assert report(cold, [NEW, MORE], server='greedy') == 1
    assert 'no report of that server\'s boot was asked for' in caplog.text
    assert report(cold, [NEW], server='other') == 2, 'its own counts'
    assert learned(cold) == [0, 131072]


def test_of_servers_that_boot_side_by_side_each_report_counts_for_its_own(cold, caplog):
    """The one that was asked for first need not come first: its owner is another one."""
    assert boot(cold, [KNOWN]) == 1
    ask(cold, server='slow', owner='one')
    ask(cold, server='fast', owner='two')
    with caplog.at_level('INFO'):
        assert report(cold, [NEW], server='fast') == 1
        assert report(cold, [MORE], server='slow') == 1
    assert [(taken.server_id, taken.owner) for taken in
            cold.hosts._earlier(cold.store.load(IMAGE))] == [('fast', 'two'), ('slow', 'one')]


@pytest.mark.parametrize(('ended_by', 'doubt'), [
    ('marker', ''), ('silence', 'has read nothing new'), ('quota', 'has read as much as'),
    ('timeout', 'is not known to have booted'), ('shutdown', 'was stopped, moved or deleted')])
def test_what_is_made_of_a_boot_that_may_be_none_says_so(cold, ended_by, doubt):
    """A guest that had halted after 3 MiB was ready without a word."""
    ask(cold)
    assert report(cold, [[0, 65536]], ended_by=ended_by) == 1
    found = cold.operators.get_image(IMAGE)
    assert found['state'] == 'ready' and found['working_set']['ended_by'] == ended_by
    assert doubt in found['reason'] and bool(doubt) is ('bootcache_boot_marker' in found['reason'])
