"""Which servers are meant, what is kept of them, and what is asked for to start them again."""

import base64
import dataclasses
import re
import subprocess
import sys
import types

import pytest
from fakes_deployment import refused, server
from hypothesis import given
from hypothesis import strategies as st

from bootcache import exception
from bootcache.rpc import messages
from glance_bootcache.deployment import checkpoint, choice, cloud, resuming, steps
from glance_bootcache.deployment.checkpoint import Checkpoint, Network, Status
from glance_bootcache.deployment.choice import WantedServers
from glance_bootcache.deployment.cloud import Cloud
from glance_bootcache.deployment.steps import NextStep, Seen

ID = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
RUN = 'c' * 32


def saved(networks=(), **more):
    return choice.keep(server(ID, **more), networks, RUN)


def test_what_is_given_is_combined():
    assert choice.queries(WantedServers((ID, 'web.1'), ('p',), ('h1', 'h2'))) == [
        {'uuid': ID, 'project_id': 'p', 'host': 'h1'},
        {'uuid': ID, 'project_id': 'p', 'host': 'h2'},
        {'name': r'^web\.1$', 'project_id': 'p', 'host': 'h1'},
        {'name': r'^web\.1$', 'project_id': 'p', 'host': 'h2'}]
    assert choice.queries(WantedServers((), ('p',), None)) == [{'project_id': 'p'}]
    with pytest.raises(exception.BootcacheError, match='too many'):
        choice.queries(WantedServers(('x',) * 50, (), ('h',) * 50))


def test_each_server_is_chosen_once_and_profile_boots_are_not():
    found = [server('2', 'b'), server('1', 'a'), server('2', 'b'),
             server('3', 'c', metadata={messages.PROFILE_METADATA: 'x'})]
    chosen = choice.choose(WantedServers((), ('p',), None), found, 2)
    assert [one['id'] for one in chosen] == ['1', '2']
    with pytest.raises(exception.BootcacheError, match=r'more than 1 servers.*--most'):
        choice.choose(WantedServers((), ('p',), None), found, 1)


@pytest.mark.parametrize('wanted, found, message', [
    (('web',), [], 'no server web;'), (('web', 'db'), [server('1')], 'no server db'),
    (('web',), [server('1'), server('2')], '2 servers are named web.*1, 2.*--project'),
    ((), [], 'no such server')])
def test_what_is_not_there_or_not_one_is_told(wanted, found, message):
    with pytest.raises(exception.BootcacheError, match=message):
        choice.choose(WantedServers(wanted, (), None), found, 10)


def test_a_project_without_servers_may_be_a_name():
    with pytest.raises(exception.BootcacheError, match=r'of project admin, .* id .*project show'):
        choice.choose(WantedServers((), ('admin',), None), [], 10)


@pytest.mark.parametrize('more, cure', [
    ({'image': ''}, 'openstack volume snapshot create'), ({'status': 'ERROR'}, 'ACTIVE or SHUTOFF'),
    ({'OS-EXT-STS:task_state': 'rebooting'}, r'\(rebooting\): run this again')])
def test_a_server_that_is_unfit_is_told_with_the_cure(more, cure):
    assert re.search(cure, choice.refusal(server(ID, **more)))
    assert choice.refusal(server(ID)) == ''


def test_what_a_snapshot_lacks_is_noted():
    kept = saved(flavor={'original_name': 'f', 'vcpus': 1, 'ram': 1, 'disk': 1, 'ephemeral': 2},
                 **{'os-extended-volumes:volumes_attached': [{'id': 'vol'}],
                    'server_groups': ['grp']})
    assert [note.split()[:3] for note in kept.notes] == [
        ['volume', 'vol', 'is'], ['its', 'ephemeral', 'disk'], ['it', 'is', 'in']]


def test_a_file_is_read_as_it_was_written_and_is_the_owners_alone(tmp_path):
    path = str(tmp_path / 'checkpoint.json')
    kept = saved([Network('n', 'p', ('192.0.2.1', '2001:db8::1'))], tags=['t'])
    made = Checkpoint(RUN, checkpoint.now(), True,
                      [kept, dataclasses.replace(kept, status=Status.SAVED, image_id='i')])
    checkpoint.write(path, made)
    assert checkpoint.read(path) == made
    assert (tmp_path / 'checkpoint.json').stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize('text', ['', '[]', '{"version": 2}', '{"version": 1, "servers": [1]}',
                                  '{"version": 1, "checkpoint_id": "x", "servers": [{"a": 1}]}'])
def test_a_file_that_is_no_checkpoint_is_told(tmp_path, text):
    path = tmp_path / 'checkpoint.json'
    path.write_text(text)
    with pytest.raises(exception.BootcacheError, match='no checkpoint that this version reads'):
        checkpoint.read(str(path))
    with pytest.raises(exception.BootcacheError, match='there is no'):
        checkpoint.read(str(tmp_path / 'other'))


def test_two_commands_do_not_work_on_one_file(tmp_path):
    path = str(tmp_path / 'checkpoint.json')
    program = ('import sys; from glance_bootcache.deployment import checkpoint\n'
               'with checkpoint.held(sys.argv[1]): print("held", flush=True); sys.stdin.read()')
    with subprocess.Popen([sys.executable, '-W', 'ignore', '-c', program, path], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == 'held\n'
        with pytest.raises(exception.BootcacheError, match='another bootcache'):
            with checkpoint.held(path):
                pass
        other.stdin.close()
    with checkpoint.held(path):
        pass


SEEN = st.none() | st.builds(
    Seen, st.sampled_from(['ACTIVE', 'PAUSED', 'SHUTOFF', 'ERROR']),
    st.sampled_from(['', 'pausing', 'image_uploading']),
    st.sampled_from([None, 'queued', 'saving', 'active', 'deleted']))


@given(SEEN, st.sampled_from(list(Status)), st.booleans(), st.booleans())
def test_what_was_paused_is_never_done_while_it_may_stand(seen, status, paused, pause):
    one = dataclasses.replace(saved(), status=status, paused=paused)
    step = steps.next_step(one, seen, pause)
    assert not (step is NextStep.DONE and paused)
    if step is NextStep.GOES_ON:
        assert seen is None or seen.status != 'PAUSED'
    if step in (NextStep.PAUSE, NextStep.STANDS, NextStep.AGAIN, NextStep.SAVED, NextStep.UNPAUSE):
        assert seen is not None and not seen.task, 'Nova would refuse'
    if step is NextStep.SAVED:
        assert seen.image == 'active'
    if step is NextStep.STANDS and pause:
        assert seen.status != 'ACTIVE'


def test_snapshots_begin_when_nobody_has_to_be_waited_for():
    found = {'a': NextStep.STANDS, 'b': NextStep.PAUSE, 'c': NextStep.WAIT}
    assert steps.gate(found, {'a', 'b'})['a'] is NextStep.WAIT
    assert steps.gate({**found, 'b': NextStep.STANDS}, {'a', 'b'}) \
        == {'a': NextStep.SNAPSHOT, 'b': NextStep.SNAPSHOT, 'c': NextStep.WAIT}


def test_ports_then_addresses_then_networks_are_tried():
    one = saved([Network('net', 'port', ('192.0.2.1', '192.0.2.2', '2001:db8::1'))])
    tried = resuming.ways_to_connect(one, original_is_there=False)
    assert [way.nics for way in tried] == [
        ({'port-id': 'port'},),
        ({'net-id': 'net', 'v4-fixed-ip': '192.0.2.1', 'v6-fixed-ip': '2001:db8::1'},),
        ({'net-id': 'net'},)]
    assert not tried[0].note and '192.0.2.1' in tried[2].note
    (only,) = resuming.ways_to_connect(one, original_is_there=True)
    assert only.nics == ({'net-id': 'net'},) and f'server {ID} has still' in only.note
    assert [way.nics for way in resuming.ways_to_connect(saved(), True)] == ['none']


def test_what_a_server_had_is_asked_for_again():
    one = saved([Network('n', 'p', ())], key_name='mine', tags=['t'], description='d',
                metadata={'role': 'db', choice.RESUMED: 'older'}, config_drive='True',
                security_groups=[{'name': 'web'}, {'name': 'web'}],
                **{'OS-EXT-SRV-ATTR:user_data': base64.b64encode(b'#!x').decode()})
    more, lost = resuming.request(one, 'mark', {'mine'})
    assert more == {'meta': {'role': 'db', choice.RESUMED: 'mark'}, 'key_name': 'mine',
                    'security_groups': ['web'], 'tags': ['t'], 'description': 'd',
                    'userdata': b'#!x', 'config_drive': True}
    assert lost == []
    more, lost = resuming.request(one, 'mark', set())
    assert 'key_name' not in more and 'key pair mine' in lost[0]


def test_a_flavor_that_is_gone_or_smaller_is_told():
    sizes = {'small': types.SimpleNamespace(disk=10)}
    assert resuming.flavor_of(saved(), sizes) is sizes['small']
    with pytest.raises(exception.BootcacheError, match='flavor create --vcpus 1 --ram 512'):
        resuming.flavor_of(saved(), {})
    with pytest.raises(exception.BootcacheError, match='5 GiB of disk now'):
        resuming.flavor_of(saved(), {'small': types.SimpleNamespace(disk=5)})


def test_hosts_are_taken_in_turns_and_not_its_own():
    assert resuming.hosts_for(0, saved(), None, False) == [None]
    hosts = ('compute1', 'compute2', 'compute3')
    assert [resuming.hosts_for(number, saved(), hosts, True)[0] for number in range(3)] \
        == ['compute2', 'compute3', 'compute2']
    with pytest.raises(exception.BootcacheError, match='compute service list'):
        resuming.hosts_for(0, saved(), ('compute1',), True)


def test_the_shells_variables_go_before_the_configuration(monkeypatch):
    def read():
        raise AssertionError('it is not needed')
    for name, value in {
            'AUTH_URL': 'http://192.0.2.1:5000/v3', 'USERNAME': 'u', 'PASSWORD': 'secret',
            'PROJECT_NAME': 'p', 'USER_DOMAIN_NAME': 'd', 'PROJECT_DOMAIN_ID': 'default',
            'REGION_NAME': 'r', 'CACERT': '/ca.pem', 'AUTH_TYPE': '', 'INSECURE': ''}.items():
        monkeypatch.setenv(f'OS_{name}', value)
    session, region = cloud.open_session(read, 4)
    assert session.auth.auth_url == 'http://192.0.2.1:5000/v3' and region == 'r'
    assert session.verify == '/ca.pem' and session.timeout == 60
    monkeypatch.setenv('OS_INSECURE', 'true')
    assert cloud.open_session(read, 4)[0].verify is False
    monkeypatch.setenv('OS_AUTH_TYPE', 'no-such')
    with pytest.raises(exception.ConfigurationError, match='unset OS_AUTH_URL'):
        cloud.open_session(read, 4)


def test_an_image_is_the_checkpoints_if_who_asks_has_made_it():
    """An administrator is shown tenants' images as well, with what these have written on them."""
    def image(owner, server, status='active'):
        return {'id': f'{owner} {server}', 'owner': owner, 'instance_uuid': server,
                'status': status}

    cloud = Cloud.__new__(Cloud)
    cloud._session = types.SimpleNamespace(get_project_id=lambda: 'mine')
    cloud._glance = types.SimpleNamespace(images=types.SimpleNamespace(
        list=lambda filters, limit: iter([image('mine', 'one'), image('other', 'one'),
                                          image('other', 'two'), image('mine', 'six', 'killed')])))
    assert cloud.images_of('checkpoint') == {'one': 'mine one'}


UNANSWERED = 'Nova makes it, and its answer is lost'


class FakeNova:
    """Stands for Cloud: a Nova that starts what it is asked for, or refuses."""

    def __init__(self, faults):
        self.faults, self.servers, self.asked = faults, {}, []

    def flavors(self):
        return {'small': types.SimpleNamespace(disk=10)}

    def keys(self):
        return set()

    def project(self):
        return 'p'

    def zones(self):
        return {'nova'}

    def image_status(self, image):
        return 'active'

    def servers_of(self, image):
        return [one for one in self.servers.values() if one['image'] == image]

    def details(self, server):
        return self.servers.get(server)

    def delete(self, server):
        del self.servers[server]

    def create(self, name, image, flavor, nics, more):
        self.asked.append((name, more.get('host'), more.get('availability_zone')))
        fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if isinstance(fault, Exception):
            raise fault
        one = f'{name}-{len(self.asked)}'
        self.servers[one] = server(
            one, name, image=image, metadata=more['meta'],
            status='ERROR' if fault and fault != UNANSWERED else 'ACTIVE',
            fault={'message': fault}, **{'OS-EXT-SRV-ATTR:host': 'compute2'})
        if fault == UNANSWERED:
            raise refused(0)
        return one


def restart(nova, names, lines, hosts=None):
    made = Checkpoint(RUN, 'then', False, [
        dataclasses.replace(saved(), server_id=name, name=name, image_id=f'image-{name}',
                            status=Status.FAILED if name == 'unsaved' else Status.SAVED)
        for name in names])
    progress = types.SimpleNamespace(bar=lambda *_all: None,
                                     line=lambda text, **_all: lines.append(text))
    outcomes = resuming.Restart(nova, made, resuming.Placing(hosts, False, None, ''), progress,
                                cloud.DeploymentLimits(4, 2, 60)).run()
    return {one.saved.name: (one.outcome, one.host, one.reason) for one in outcomes}


def test_each_server_is_started_once_or_its_reason_is_told(monkeypatch):
    monkeypatch.setattr(resuming, '_PERIOD_SECONDS', 0)
    nova, lines = FakeNova({'again': ['no room'], 'never': ['no room', 'no disk'],
                            'refused': [refused(403, passes=False)], 'late': [refused(503)]}), []
    names = ('plain', 'again', 'never', 'refused', 'late', 'unsaved')
    found = restart(nova, names, lines)
    assert {name: found[name] for name in ('plain', 'again', 'late')} == dict.fromkeys(
        ('plain', 'again', 'late'), ('started', 'compute2', ''))
    assert {name: outcome for name, (outcome, _host, _why) in found.items()
            if outcome != 'started'} == dict.fromkeys(('never', 'refused', 'unsaved'), 'failed')
    assert 'in 2 attempts, the last one was removed: no disk' in found['never'][2]
    assert 'snapshot --continue' in found['unsaved'][2]
    assert 'server again, attempt 1: no room; it is tried again' in lines
    assert set(nova.asked) == {(name, None, 'nova') for name in names if name != 'unsaved'}
    assert {one['name'] for one in nova.servers.values()} == {'plain', 'again', 'late'}
    before = len(nova.asked)
    assert restart(nova, ('plain', 'again'), lines) == dict.fromkeys(
        ('plain', 'again'), ('there already', 'compute2', ''))
    assert len(nova.asked) == before


def test_another_host_is_tried_when_one_cannot_be(monkeypatch):
    monkeypatch.setattr(resuming, '_PERIOD_SECONDS', 0)
    nova = FakeNova({'a': [refused(400, passes=False)]})
    assert restart(nova, ('a',), [], ('compute1', 'compute2'))['a'][0] == 'started'
    assert nova.asked == [('a', 'compute1', None), ('a', 'compute2', None)]


def test_a_server_whose_request_has_no_answer_is_no_second_one(monkeypatch):
    monkeypatch.setattr(resuming, '_PERIOD_SECONDS', 0)
    nova = FakeNova({'a': [UNANSWERED]})
    assert restart(nova, ('a',), [])['a'] == ('there already', 'compute2', '')
    assert len(nova.asked) == len(nova.servers) == 1
