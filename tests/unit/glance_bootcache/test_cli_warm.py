"""``bootcache warm``, on a fake of the RPC client and of time; see fakes_cli.py."""

import json

import oslo_messaging as messaging
import pytest
from fakes_cli import IMAGE, OTHER, report

from bootcache.rpc.messages import GetWarming, WarmImage

WAITING = ('waiting', 1, '')
CACHED = ('cached', 1, '')
EXISTING = ('existing', 1, '')
ONE, TWO = (f'image {IMAGE}, aggregate racks, host {host}' for host in ('one', 'two'))


def later(cli, seconds, *reports, image=IMAGE):
    """Have the service tell something else after some time."""
    cli.time.after(seconds, lambda: cli.api.warming.update({image: list(reports)}))


def test_hosts_become_warm(cli):
    later(cli, 1, report('racks', one=WAITING, two=WAITING))
    later(cli, 4, report('racks', one=CACHED, two=WAITING))
    later(cli, 6, report('racks', True, one=CACHED, two=EXISTING))
    done = cli('warm', IMAGE, '--aggregate', 'racks', '-f', 'json')
    assert done.code == 0
    assert json.loads(done.out) == [
        {'image_id': IMAGE, 'aggregate': 'racks', 'host': host, 'outcome': outcome, 'attempts': 1,
         'reason': ''} for host, outcome in (('one', 'cached'), ('two', 'existing'))]
    # Off a terminal: one line a host, none twice.
    assert done.err.splitlines() == [
        '     0 s  waiting for Nova', '     1 s  warming  0/2 hosts',
        f'     4 s  {ONE}: cached', f'     6 s  {TWO}: existing',
        '     6 s  nova-scheduler knows of hosts that are newly warm with their next update of'
        ' resources, within a minute by default']
    assert cli.api.calls[0] == WarmImage(IMAGE, ['racks'])
    assert set(cli.api.calls[1:]) == {GetWarming(IMAGE)}


def test_images_and_aggregates_are_asked_for_once_each(cli):
    for image in (IMAGE, OTHER):
        cli.api.warming[image] = [report('racks', True, one=CACHED),
                                  report('edge', True, far=EXISTING),
                                  report('elsewhere', False, mine=WAITING)]
    rows = cli.json('warm', IMAGE, OTHER, IMAGE, '--aggregate', 'racks', '--aggregate', 'edge',
                    '--aggregate', 'racks')
    places = (('racks', 'one'), ('edge', 'far'))
    assert [(row['image_id'], row['aggregate'], row['host']) for row in rows] == [
        (image, *place) for image in (IMAGE, OTHER) for place in places]
    assert cli.api.calls == [WarmImage(image, ['racks', 'edge']) for image in (IMAGE, OTHER)]


def test_an_aggregate_has_to_be_named(cli):
    done = cli('warm', IMAGE)
    assert done.code == 2 and '--aggregate' in done.err and cli.api.calls == []


def test_a_host_that_fails_is_named_with_each_attempt_and_at_the_end(cli):
    later(cli, 1, report('racks', one=CACHED, two=('error', 1, 'no\nroom')))
    later(cli, 40, report('racks', one=CACHED, two=('waiting', 2, 'no\nroom')))
    later(cli, 45, report('racks', True, one=CACHED, two=('error', 2, 'no\nroom')))
    done = cli('warm', IMAGE, '--aggregate', 'racks', '-f', 'json')
    assert done.code == 1
    assert [(row['host'], row['outcome'], row['attempts'], row['reason'])
            for row in json.loads(done.out)] == [('one', 'cached', 1, ''),
                                                 ('two', 'error', 2, 'no room')]
    assert f'     1 s  {TWO}: error, attempt 1: no room\n' in done.err
    assert f'    45 s  {TWO}: error, attempt 2: no room\n' in done.err
    assert done.err.splitlines()[-1] == (f'image {IMAGE}, aggregate racks: not warm after all'
                                         ' attempts: two (no room)')


def test_many_hosts_that_fail_are_counted(cli):
    cli.api.warming[IMAGE] = [report('racks', True, **{
        f'host{number:02}': ('unsupported', 1, '') for number in range(25)})]
    done = cli('warm', IMAGE, '--aggregate', 'racks')
    assert done.code == 1
    assert done.err.rstrip().endswith('host19 (unsupported) and 5 more')
    assert 'host24' in done.out


def test_time_runs_out(cli):
    later(cli, 1, report('racks', one=CACHED, two=('error', 1, 'no room'), three=WAITING))
    done = cli('warm', IMAGE, '--aggregate', 'racks', '--timeout', '20', '-f', 'json')
    assert done.code == 1 and cli.time.now == 1020
    assert [row['outcome'] for row in json.loads(done.out)] == ['cached', 'error', 'waiting']
    assert done.err.splitlines()[-1] == (
        f'image {IMAGE}, aggregate racks: not warm after 20 s: two (no room), three; the storage'
        ' service goes on trying, and the same command watches it')


@pytest.mark.parametrize(('reason', 'message'), [
    ('', 'no host is asked yet after 5 s'),
    ('Nova does not answer: 503', 'no host is asked yet after 5 s (Nova does not answer: 503)')])
def test_time_runs_out_before_hosts_are_known(cli, reason, message):
    cli.api.warming[IMAGE] = [report('racks', reason=reason)]
    done = cli('warm', IMAGE, '--aggregate', 'racks', '--timeout', '5', '-f', 'json')
    assert done.code == 1
    assert json.loads(done.out) == [{'image_id': IMAGE, 'aggregate': 'racks', 'host': None,
                                     'outcome': 'waiting', 'attempts': 0, 'reason': reason}]
    assert f'image {IMAGE}, aggregate racks: {message}; the storage service goes on' in done.err


def test_hosts_that_are_warm_before_time_runs_out_are_not_named(cli):
    """The last host may be warm, and the job not noted as done yet."""
    later(cli, 1, report('racks', one=CACHED))
    done = cli('warm', IMAGE, '--aggregate', 'racks', '--timeout', '3')
    assert done.code == 0, done.err


def test_an_aggregate_without_hosts(cli):
    later(cli, 2, report('racks', True, 'aggregate racks has no hosts'))
    done = cli('warm', IMAGE, '--aggregate', 'racks', '-f', 'json')
    assert done.code == 1 and json.loads(done.out)[0]['outcome'] == 'error'
    assert done.err.splitlines()[-1].endswith('aggregate racks: aggregate racks has no hosts')


def test_not_to_wait(cli):
    rows = cli.json('warm', IMAGE, '--aggregate', 'racks', '--no-wait')
    assert [(row['host'], row['outcome']) for row in rows] == [(None, 'waiting')]
    assert cli.time.now == 1000 and len(cli.api.calls) == 1


def test_what_is_refused_for_one_image_stops_no_other(cli):
    cli.api.refused[IMAGE] = f'image {IMAGE} has no cache image'
    cli.api.warming[OTHER] = [report('racks', True, one=CACHED)]
    for more in ([], ['--no-wait']):
        done = cli('warm', IMAGE, OTHER, '--aggregate', 'racks', '-f', 'json', *more)
        assert done.code == 1
        assert [row['image_id'] for row in json.loads(done.out)] == [OTHER]
        assert done.err.splitlines()[-1] == ('the storage service refused: image'
                                             f' {IMAGE} has no cache image')


def test_a_service_that_was_restarted_is_asked_again(cli):
    later(cli, 1, report('racks', one=CACHED, two=WAITING))
    cli.time.after(3, cli.api.warming.clear)
    later(cli, 6, report('racks', True, one=EXISTING, two=CACHED))
    done = cli('warm', IMAGE, '--aggregate', 'racks')
    assert done.code == 0
    assert f'image {IMAGE}: the storage service was restarted; it is asked again' in done.err
    assert cli.api.calls.count(WarmImage(IMAGE, ['racks'])) == 2


def test_a_service_that_was_restarted_may_refuse(cli):
    later(cli, 1, report('racks', one=CACHED, two=WAITING))
    cli.time.after(3, cli.api.warming.clear)
    cli.time.after(3, lambda: cli.api.refused.update({IMAGE: 'it is skipped'}))
    done = cli('warm', IMAGE, '--aggregate', 'racks', '-f', 'json')
    assert done.code == 1
    assert [row['outcome'] for row in json.loads(done.out)] == ['cached', 'error']
    assert 'two (the storage service refused: it is skipped)' in done.err


def test_a_service_that_is_away_for_a_while(cli):
    error = messaging.MessagingTimeout('10 s')
    cli.time.after(2, lambda: setattr(cli.api, 'fails', error))
    cli.time.after(9, lambda: setattr(cli.api, 'fails', None))
    later(cli, 9, report('racks', True, one=CACHED))
    done = cli('warm', IMAGE, '--aggregate', 'racks')
    assert done.code == 0
    assert done.err.count('does not answer') == 1


def test_a_service_that_stays_away(cli):
    later(cli, 1, report('racks', one=CACHED, two=WAITING))
    cli.time.after(2, lambda: setattr(cli.api, 'fails', messaging.MessagingTimeout('10 s')))
    done = cli('warm', IMAGE, '--aggregate', 'racks', '--timeout', '9', '-f', 'json')
    assert done.code == 1
    assert [row['outcome'] for row in json.loads(done.out)] == ['cached', 'waiting']
    assert 'does not answer' in done.err.splitlines()[-1]
    assert 'not warm after 9 s: two' in done.err.splitlines()[-1]


def test_quiet(cli):
    later(cli, 1, report('racks', True, one=CACHED))
    assert cli('-q', 'warm', IMAGE, '--aggregate', 'racks').err == ''
    cli.api.warming[IMAGE] = [report('racks', True, one=('error', 1, 'no room'))]
    # Errors are not progress.
    assert cli('-q', 'warm', IMAGE, '--aggregate', 'racks').err.count('\n') == 1
