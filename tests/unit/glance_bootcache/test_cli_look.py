"""Commands that look, and what all commands share: output, bad input, a service that is away.

The RPC client is a fake; see fakes_cli.py.
"""

import json

import oslo_messaging as messaging
import pytest
from fakes_cli import IMAGE, OTHER, bases, held, host, image, paused, refusal, unsettled

from bootcache import qemuimg
from bootcache.rpc import messages
from bootcache.rpc.messages import PinImage

HOSTS = [
    host('one', 12.4, images=3, bytes={'disk': 300, 'memory': 100},
         quotas={'disk': 1000, 'memory': 500}, paused=paused(2), rpc='2.8',
         certificates_end=1e9 + 0.5),
    host('two', 300.1, quotas={'disk': 1000})]


# Hosts.

def test_hosts_are_listed_by_tier_and_silent_ones_are_marked(cli):
    cli.api.hosts = HOSTS
    assert cli.json('host', 'list') == [
        {'host': 'one', 'seen': 12, 'state': 'reporting', 'images': 3, 'waiting': 2,
         'disk_bytes': 300, 'disk_quota': 1000, 'memory_bytes': 100, 'memory_quota': 500,
         'rpc': '2.8', 'certificates_end': '2001-09-09T01:46:40+00:00'},
        {'host': 'two', 'seen': 300, 'state': 'silent', 'images': 0, 'waiting': None,
         'disk_bytes': 0, 'disk_quota': 1000, 'memory_bytes': None, 'memory_quota': None,
         'rpc': None, 'certificates_end': None}]


def test_hosts_whose_certificates_end_first_can_come_first(cli):
    cli.api.hosts = [{**HOSTS[1], 'host': name, 'certificates_end': end}
                     for name, end in (('a', 3e9), ('b', None), ('c', 2e9), ('d', 1e9))]
    assert [row['host'] for row in cli.json('host', 'list', '--sort-column', 'certificates_end')
            ] == ['d', 'c', 'a', 'b']


def test_a_column_that_there_is_not_is_no_order(cli):
    cli.api.hosts = HOSTS
    done = cli('host', 'list', '--sort-column', 'nosuch')
    assert done.code == 1 and 'no column nosuch' in done.err and 'certificates_end' in done.err
    assert cli('host', 'list', '--sort-column', 'Certificates End').code == 0


def test_without_a_command_there_is_help_and_no_prompt(cli):
    for arguments in (), ('-q',):
        done = cli(*arguments)
        assert done.code == 2 and 'image list' in done.out


def test_tables_csv_and_columns(cli):
    cli.api.hosts = HOSTS
    table = cli('host', 'list').out
    assert table.splitlines()[1].split('|')[1:4] == [' host ', ' seen ', ' state     ']
    assert 'silent' in table.splitlines()[4]
    assert cli('host', 'list', '-f', 'csv', '-c', 'host', '-c', 'state').out.splitlines() == [
        '"host","state"', '"one","reporting"', '"two","silent"']


def test_how_a_host_reads_bases(cli):
    cli.api.bases['one'] = bases(
        4, (OTHER, '', '', 1e9, 0.0), (OTHER, '10.0.0.5:10810', 'a-0', 1e9, 1e9 + 1),
        (IMAGE, 'bootcache/one/base-x', 'b-1', 1e9, None))
    since = '2001-09-09T01:46:40+00:00'
    assert [tuple(row.values()) for row in cli.json('host', 'show', 'one')] == [
        (OTHER, None, None, since, None),
        (OTHER, '10.0.0.5:10810', 'a-0', since, '2001-09-09T01:46:41+00:00'),
        (IMAGE, 'bootcache/one/base-x', 'b-1', since, 'now'),
        (None, '1 more bases', None, None, None)]


def test_hosts_that_are_gone_are_forgotten(cli):
    cli.api.bases['one'] = bases(0)
    assert cli.json('host', 'forget', 'one') == [{'host': 'one'}]
    done = cli('host', 'forget', 'one', 'two', '-f', 'value')
    assert done.code == 1 and done.out == 'one\n'
    assert 'knows of nothing that host two needs' in done.err


@pytest.mark.parametrize('told, why', [
    ({}, 'host one has not reported'), ({'one': {'seen': 2.0, 'bases': None}}, 'does not tell')])
def test_of_a_host_that_tells_nothing_of_bases_it_is_said(cli, told, why):
    cli.api.bases = told
    done = cli('host', 'show', 'one')
    assert done.code == 1 and why in done.err


def test_no_hosts_is_no_error(cli):
    assert cli.json('host', 'list') == []


def test_a_table_has_nothing_where_there_is_no_value(cli):
    """Programs read null, as they did."""
    cli.api.hosts = HOSTS
    line = cli('host', 'list').out.splitlines()[4]
    assert line.split('|')[5:9] == ['         ', '          0 ', '       1000 ', '              ']
    assert cli('host', 'list', '--sort-column', 'waiting').out.count('silent') == 1
    cli.api.where[IMAGE] = {'storage': 'disk', 'storage_bytes': 7, 'hosts': [held('one')]}
    first, second = cli('image', 'where', IMAGE).out.splitlines()[3:5]
    assert first.split('|')[1].strip() == '(storage node)' and 'None' not in first
    assert second.split('|')[1].strip() == 'one'
    assert '(storage node)' not in cli('image', 'where', IMAGE, '-f', 'csv').out
    assert 'disk' in cli('image', 'where', IMAGE, '-c', 'tier').out


def test_who_gave_how_much_to_whom(cli):
    cli.api.where[IMAGE] = {'storage': 'disk', 'hosts': []}
    assert 'no host has told' in cli('image', 'where', IMAGE, '--exchange').err
    cli.api.where[IMAGE]['exchanged'] = [
        {'file': 'cache image', 'size': 100, 'to': 'two', 'way': 'stalled', 'copied': 25,
         'got': [['', 50], ['one', 25]]},
        {'file': 'cache image', 'size': 100, 'to': 'one', 'way': 'copied', 'copied': 100,
         'got': []}]
    told = [tuple(row.values()) for row in cli.json('image', 'where', IMAGE, '--exchange')]
    assert told == [('cache image', None, 'one', 100, 1.0, 'copied'),
                    ('cache image', None, 'two', 50, 0.5, 'stalled'),
                    ('cache image', None, 'two', 25, 0.25, 'stalled'),
                    ('cache image', 'one', 'two', 25, 0.25, 'stalled')]
    assert cli('image', 'where', IMAGE, '--exchange').out.count('(storage node)') == 3


def test_of_one_image_too_a_table_has_nothing_where_there_is_no_value(cli):
    """As of one that is waiting for its profile boot: nothing of it is known."""
    cli.api.images[IMAGE] = image(IMAGE, state='pending', settle=None)
    for command in 'show', 'build':
        told = cli('image', command, IMAGE)
        assert 'None' not in told.out
        fields = [line.split('|')[1:3] for line in told.out.splitlines() if line.startswith('|')]
        values = {name.strip(): value.strip() for name, value in fields}
        assert values['working_set_bytes'] == values['settle'] == '' and values['pinned'] == 'False'
        assert values['state'] == 'pending'
    assert cli.json('image', 'show', IMAGE)['working_set_bytes'] is None
    assert cli('image', 'show', IMAGE, '-c', 'medium', '-f', 'value').out == 'None\n'


@pytest.mark.parametrize('command, words', [
    ('host list', 'no compute host has reported'), ('image list', 'knows no image yet'),
    ('host list --unsettled', 'no compute host has reported'),
    (f'image where {IMAGE}', f'"bootcache image show {IMAGE}" says how far it is')])
def test_an_empty_list_is_told_in_words(cli, command, words):
    """It was an empty line."""
    cli.api.where[IMAGE] = {'storage': None, 'hosts': []}
    done = cli(*command.split())
    assert (done.code, done.out) == (0, '')
    (line,) = done.err.splitlines()
    assert words in line
    done = cli(*command.split(), '-f', 'json')
    assert done.out == '[]\n' and words in done.err
    assert cli('-q', *command.split()).err == ''
    assert cli(*command.split(), '--print-empty').out.startswith('+--')


def test_how_many_hosts_say_that_no_server_is_left(cli):
    cli.api.hosts = [{**one, 'unsettled': unsettled(0), 'paused': None} for one in HOSTS]
    done = cli('host', 'list', '--unsettled')
    assert done.out == '' and 'no server depends on bootcache' in done.err and '(2)' in done.err


def test_names_that_came_by_the_bus_change_no_terminal(cli):
    cli.api.hosts = [{**HOSTS[0], 'host': 'one\x1b[2J\nroot#'}]
    assert cli.json('host', 'list')[0]['host'] == 'one?[2J root#'


def test_servers_that_depend_on_bootcache(cli):
    cli.api.hosts = [
        {**HOSTS[0], 'paused': None, 'unsettled': unsettled(
            3, ('server-1', 'it is suspended: resume it'), ('server-2\n', 'it is settled soon'))},
        {**HOSTS[1], 'unsettled': unsettled(0)},
        {**HOSTS[1], 'host': 'three'}]
    rows = cli.json('host', 'list', '--unsettled')
    assert [(row['host'], row['server'], row['why']) for row in rows[:3]] == [
        ('one', 'server-1', 'it is suspended: resume it'),
        ('one', 'server-2', 'it is settled soon'),
        ('one', None, '1 more servers')]
    assert rows[3]['host'] == 'three' and rows[3]['why'].startswith('not known')
    assert rows[3]['state'] == 'silent' and len(rows) == 4
    cli.api.hosts = cli.api.hosts[1:2]
    assert cli.json('host', 'list', '--unsettled') == []


def test_servers_that_stand_still_come_first(cli):
    """Also one that is settled, which no other list names; no server is named twice."""
    cli.api.hosts = [{**HOSTS[0], 'unsettled': unsettled(
        2, ('server-1', 'it is settled soon'), ('server-2', 'it is settled soon')),
        'paused': paused(3, ('server-2', 'the exporter\ncannot be reached', 1790000000),
                         ('server-3', 'no space', 1790000060.0))}]
    rows = cli.json('host', 'list', '--unsettled')
    assert [(row['server'], row['why']) for row in rows] == [
        ('server-2', 'it has been paused since 2026-09-21T14:13:20+00:00, and waits: the exporter'
                     ' cannot be reached'),
        ('server-3', 'it has been paused since 2026-09-21T14:14:20+00:00, and waits: no space'),
        (None, '1 more servers wait'), ('server-1', 'it is settled soon')]


def test_those_of_all_hosts_that_stand_still_come_before_any_other(cli):
    cli.api.hosts = [
        {**HOSTS[0], 'paused': None, 'unsettled': unsettled(1, ('server-1', 'settled soon'))},
        {**HOSTS[1], 'unsettled': unsettled(1, ('server-2', 'settled soon')),
         'paused': paused(2, ('server-3', 'no space', 1790000000))}]
    rows = cli.json('host', 'list', '--unsettled')
    assert [(row['host'], row['server']) for row in rows] == [
        ('two', 'server-3'), ('two', None), ('one', 'server-1'), ('two', 'server-2')]


# Where an image is.

def test_where_an_image_is(cli):
    cli.api.where[IMAGE] = {'storage': 'memory', 'storage_bytes': 104857601, 'hosts': [
        held('one'), held('two', medium='memory', leaving=True)]}
    assert cli.json('image', 'where', IMAGE) == [
        {'host': None, 'tier': 'storage memory', 'bytes': 104857601, 'last_use': None, 'seen': None,
         'leaving': None},
        {'host': 'one', 'tier': 'compute disk', 'bytes': 104857600,
         'last_use': '2026-09-21T14:13:20+00:00', 'seen': 12, 'leaving': False},
        {'host': 'two', 'tier': 'compute memory', 'bytes': 104857600,
         'last_use': '2026-09-21T14:13:20+00:00', 'seen': 12, 'leaving': True}]


def test_an_image_that_is_nowhere(cli):
    cli.api.where[IMAGE] = {'storage': None, 'hosts': []}
    assert cli.json('image', 'where', IMAGE) == []
    done = cli('image', 'where', OTHER)
    assert done.code == 1
    assert done.err == (f'image {OTHER} is not known to the storage service;'
                        ' "bootcache image build" records it\n')


def test_images_are_listed_with_their_names(cli):
    cli.api.images = {IMAGE: image(IMAGE, name='Debian\x1b[2J 12'), OTHER: image(OTHER)}
    rows = cli.json('image', 'list')
    # A service of an earlier version tells none.
    assert [row['name'] for row in rows] == ['Debian?[2J 12', '']
    assert cli.json('image', 'show', IMAGE)['name'] == 'Debian?[2J 12'


def test_what_keeps_a_base(cli):
    cli.api.images = {IMAGE: image(IMAGE, kept_for=['host one', 'host t\x1bwo'], node='storage1'),
                      OTHER: image(OTHER)}
    assert cli.json('image', 'show', IMAGE)['node'] == 'storage1'
    assert cli.json('image', 'show', IMAGE)['kept_for'] == 'host one, host t?wo'
    # A service of an earlier version tells none.
    assert cli.json('image', 'show', OTHER)['kept_for'] == ''


# Pins, and what else was there before.

def test_pin_and_unpin(cli):
    cli.api.images[IMAGE] = image(IMAGE)
    for command, pinned in (('pin', True), ('unpin', False)):
        assert cli.json(command, IMAGE) == [{'image_id': IMAGE, 'pinned': pinned}]
        assert cli.api.calls[-1] == PinImage(IMAGE, pinned)
    done = cli('pin', IMAGE, OTHER)
    assert done.code == 1 and done.err == (
        f'not known to the storage service: {OTHER}; "bootcache image list" shows those that are\n')


def test_progress_of_an_image_until_it_is_done(cli):
    cli.api.images[IMAGE] = image(IMAGE, state='recording', in_hand=True,
                                  progress={'host': 'one', 'recorded_bytes': 5_000_000})
    cli.time.after(3, lambda: cli.api.images.update({IMAGE: image(IMAGE)}))
    done = cli('image', 'show', IMAGE, '--wait', '-f', 'json')
    assert json.loads(done.out)['state'] == 'ready'
    assert done.err == '     0 s  recording  5.0 MB recorded\n     3 s  ready\n'


def test_an_image_that_is_not_done_in_time(cli):
    cli.api.images[IMAGE] = image(IMAGE, state='pending', in_hand=True, reason='its turn')
    done = cli('image', 'show', IMAGE, '--wait', '--timeout', '5')
    assert done.code == 1 and not done.out
    assert f'image {IMAGE} is not done after 5 s; it is pending its turn' in done.err


def test_an_image_that_glance_does_not_have_is_not_waited_for(cli):
    done = cli('image', 'build', OTHER, '--wait')
    assert done.code == 1 and not done.out and done.err == f'Glance has no image {OTHER}\n'


def test_an_image_that_is_deleted_while_it_is_waited_for(cli):
    cli.api.images[IMAGE] = image(IMAGE, state='building', in_hand=True)
    cli.time.after(3, lambda: cli.api.images.clear())
    done = cli('image', 'show', IMAGE, '--wait')
    assert done.code == 1 and done.err.splitlines()[-1] == f'Glance has no image {IMAGE}'


def test_an_image_that_is_not_known_yet_is_waited_for_and_told(cli):
    """It was registered just now, and the storage service has not heard of it yet."""
    cli.time.after(3, lambda: cli.api.images.update({IMAGE: image(IMAGE)}))
    done = cli('image', 'show', IMAGE, '--wait', '-f', 'json')
    assert json.loads(done.out)['state'] == 'ready'
    assert done.err == ('     0 s  not known to the storage service yet\n'
                        '     3 s  ready\n')


@pytest.mark.parametrize('arguments, told', [
    (('image', 'show', IMAGE, '--wait', '--timeout', '-1'), "'-1' is not a number of seconds"),
    (('image', 'clean'), 'is required'), (('image', 'clean', IMAGE, '--all'), 'not allowed with'),
    (('build', 'disk', '--marker', '(('), 'argument --marker: ')], ids=' '.join)
def test_arguments_that_cannot_be_used_end_it_with_2(cli, capsys, arguments, told):
    done = cli(*arguments)
    assert done.code == 2 and not done.out
    assert told in done.err + capsys.readouterr().err


def test_a_file_that_is_no_working_set_is_told(cli, tmp_path):
    (tmp_path / 'disk').write_text('no JSON')
    done = cli('working-set', 'show', str(tmp_path / 'disk'))
    assert done.code == 1 and 'disk: ' in done.err and 'is it a working set' in done.err


@pytest.mark.parametrize('given, other', [('qcow2', 'raw'), ('raw', 'qcow2')])
def test_an_image_file_of_another_format_names_the_option(cli, tmp_path, given, other):
    path = tmp_path / 'disk'
    qemuimg.create_standalone(str(path), 1 << 20, 65536)
    if other == 'raw':
        path.write_bytes(bytes(1 << 20))
    done = cli('build', str(path), '--image-format', given)
    assert done.code == 1 and done.err == (
        f'{path}: the content is {other}, but --image-format says {given};'
        f' give --image-format {other}\n')


def test_the_version_names_that_of_the_messages(cli):
    """By which the upgrading page tells what goes together."""
    done = cli('--version')
    assert done.code == 0 and f'(RPC {messages.VERSION})' in done.out


# Errors.

EVERY = [('host', 'list'), ('image', 'where', IMAGE), ('warm', IMAGE, '--aggregate', 'racks'),
         ('evict', IMAGE)]


@pytest.mark.parametrize('command', EVERY, ids=' '.join)
@pytest.mark.parametrize('error', [
    messaging.UnsupportedVersion('1.2', method='m'),
    messaging.NoSuchMethod('m'),
    messaging.RemoteError('UnsupportedVersion', 'Endpoint does not support RPC version 1.2', []),
    messaging.RemoteError('NoSuchMethod', 'Endpoint does not support RPC method m', [])])
def test_an_older_service_is_named(cli, command, error):
    cli.api.fails = error
    done = cli(*command)
    assert done.code == 1 and not done.out
    assert done.err == 'the storage service is older than this command; upgrade it\n'


@pytest.mark.parametrize('command', EVERY, ids=' '.join)
@pytest.mark.parametrize('error, told', [
    (messaging.MessagingTimeout('10 s'), 'is glance-bootcache running there'),
    (messaging.MessageDeliveryFailure('no broker'), 'cannot be used: no broker')])
def test_a_service_that_is_away_is_named(cli, command, error, told):
    cli.api.fails = error
    done = cli(*command)
    assert done.code == 1 and not done.out
    (line,) = done.err.splitlines()
    assert line.startswith('the storage service does not answer') and told in line \
        and 'user@bus:5672' in line and 'secret' not in line


def test_what_the_service_refuses_is_one_line(cli):
    cli.api.fails = refusal('this is\nwhy')
    assert cli('image', 'where', IMAGE).err == 'the storage service refused: this is why\n'


@pytest.mark.parametrize('command', ['image where', 'warm --aggregate racks', 'evict', 'pin'])
def test_what_is_no_image_id(cli, command):
    done = cli(*command.split(), '../../etc')
    assert done.code == 2 and cli.api.calls == []
    assert "'../../etc' is not an image id; \"openstack image list\" shows them" in done.err


@pytest.mark.parametrize('value', ['0', '-1', 'nan', 'inf', 'soon'])
@pytest.mark.parametrize('command', ['warm --aggregate racks', 'evict'])
def test_what_is_no_time(cli, command, value):
    done = cli(*command.split(), IMAGE, f'--timeout={value}')
    assert done.code == 2 and cli.api.calls == []
    assert f'{value!r} is not a number of seconds above 0' in done.err
