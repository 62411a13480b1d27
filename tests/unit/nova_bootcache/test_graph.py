"""The gateway's nodes of an image, from whatever a crash left to what is wanted.

QEMU is a model of its rules here: a node that another one reads from cannot be removed, nor one
that is exported, nor can a node be put onto one that is not there. tests/functional has the real
one.
"""

import itertools

import pytest

from bootcache import naming
from nova_bootcache.gateway import graph
from nova_bootcache.gateway.graph import (
    GraphAction,
    GraphStep,
    Place,
    Present,
    Store,
    Wanted,
    exchange,
    reconcile,
)

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
# Which node reads from which, as growingstore.py and arrivingimage.py put them.
EDGES = {
    graph.FILTER: (graph.STORE,), graph.STORE: (graph.THROTTLE, graph.REMOTE),
    graph.THROTTLE: (graph.STORE_FILE,), graph.ARRIVING: (graph.ARRIVING_FILTER, graph.REMOTE),
    graph.ARRIVING_FILTER: (graph.COME,), graph.READER: (graph.ARRIVING_FILTER,),
    graph.COME: (graph.COME_MAP, graph.COME_DATA, graph.SOURCE),
    graph.LANDED: (graph.REMOTE,)}
# In the order in which they are added.
STORE_ADDED = graph.STORE_FILE, graph.THROTTLE, graph.STORE, graph.FILTER
ARRIVAL_ADDED = (graph.SOURCE, graph.COME_MAP, graph.COME_DATA, graph.COME, graph.ARRIVING_FILTER,
                 graph.READER, graph.SINK, graph.ARRIVING)
FIRST, SECOND = graph.CONNECTIONS
BASE_ADDED = FIRST, graph.REMOTE, graph.TOP
HERE, THERE = Place('10.0.0.1', 10810, 'base-x'), Place('10.0.0.2', 10810, 'base-x')


def halves(added):
    """What may be there of nodes that are added from below, and removed from above."""
    return [added[:count] for count in range(len(added) + 1)]


class Qemu:
    """The gateway's rules."""

    def __init__(self, present, below, has_job):
        self.kinds = set(present.kinds)
        self.is_exported = present.is_exported
        self.below = below
        self.has_job = has_job
        self.is_checked = False
        # What each connection leads to, and the one that the base is read by.
        self.connection = present.connection
        self.places = {kind: present.place if kind == present.connection else THERE
                       for kind in graph.CONNECTIONS if kind in self.kinds}

    def check(self):
        for kind in self.kinds:
            for read in EDGES.get(kind, ()):
                assert read in self.kinds, f'{kind} reads from {read}'
        if graph.TOP in self.kinds:
            assert self.below in self.kinds
        if graph.REMOTE in self.kinds and self.connection:
            assert self.connection in self.kinds

    def do(self, step):
        if step.action is GraphAction.CHECK_JOB:
            assert not self.has_job
            self.is_checked = True
        elif step.action is GraphAction.READ:
            assert graph.TOP in self.kinds and step.kind in self.kinds
            self.below = step.kind
        elif step.action is GraphAction.CONNECT:
            assert step.kind in graph.CONNECTIONS and step.kind not in self.kinds
            self.kinds.add(step.kind)
            self.places[step.kind] = THERE
        elif step.action is GraphAction.MOVE:
            assert {graph.REMOTE, step.kind} <= self.kinds
            self.connection = step.kind
        else:
            assert self.is_checked or step.kind not in graph.ARRIVAL
            assert not (self.is_exported and step.kind == graph.TOP)
            assert step.kind in self.kinds
            for kind in self.kinds:
                assert step.kind not in EDGES.get(kind, ()), f'{kind} reads from {step.kind}'
            assert not (graph.TOP in self.kinds and self.below == step.kind)
            assert not (graph.REMOTE in self.kinds and self.connection == step.kind)
            self.kinds.remove(step.kind)
            self.places.pop(step.kind, None)
        self.check()

    @property
    def present(self):
        place = self.places.get(self.connection) if graph.REMOTE in self.kinds else None
        return Present(frozenset(self.kinds), self.is_exported, place,
                       self.connection if place else '')


def states():
    """All that a crash can leave: any part half made, and what the node on top reads from."""
    for base, store, arrival, landed, is_exported in itertools.product(
            halves(BASE_ADDED), halves(STORE_ADDED), halves(ARRIVAL_ADDED), (False, True),
            (False, True)):
        kinds = {*base, *store, *arrival, *((graph.LANDED,) if landed else ())}
        if is_exported and graph.TOP not in kinds:
            continue
        if graph.REMOTE not in kinds and kinds & {graph.STORE, graph.ARRIVING, graph.LANDED}:
            continue
        # It is put onto what is new after all of that is there, and off before any of it goes.
        place = HERE if graph.REMOTE in kinds else None
        connection = FIRST if place else ''
        whole = [graph.REMOTE]
        whole += [graph.LANDED] if landed else []
        whole += [kind for kind in (graph.STORE, graph.FILTER) if kind in kinds]
        whole += [graph.ARRIVING] if graph.ARRIVING in kinds else []
        for below in whole if graph.TOP in kinds else ('',):
            for has_job in (False, True) if graph.COME in kinds else (False,):
                yield Present(frozenset(kinds), is_exported, place, connection), below, has_job
                # An exchange was under way: not yet moved, and moved.
                if place and not has_job:
                    both = frozenset({*kinds, SECOND})
                    yield Present(both, is_exported, HERE, FIRST), below, has_job
                    yield Present(both, is_exported, HERE, SECOND), below, has_job
                    # An earlier version had the connection in the base's place.
                    yield (Present(frozenset(kinds - {FIRST}), is_exported, HERE, ''), below,
                           has_job)


ALL = list(states())
WANTED = [Wanted(store, arrives, landed) for store in Store for arrives in (False, True)
          for landed in (False, True)]


def possible(wanted, present):
    """Whoever looks after a part has made it, below an export."""
    base = {graph.TOP, graph.REMOTE}
    return (wanted.store is not Store.GROWS or {*graph.GROWING, *base} <= present.kinds) \
        and (not wanted.arrives or {*graph.ARRIVAL, *base} <= present.kinds)


def test_there_is_much_to_try():
    assert len(ALL) > 500


@pytest.mark.parametrize('wanted', WANTED)
def test_qemu_takes_each_step_and_what_is_wanted_is_there_then(wanted):
    tried = 0
    for present, below, has_job in ALL:
        if not possible(wanted, present):
            continue
        tried += 1
        qemu = Qemu(present, below, has_job)
        qemu.check()
        if not wanted.arrives:
            # Before anything is changed, and under no lock.
            qemu.has_job = False
        for step in reconcile(wanted, present):
            qemu.do(step)
        assert reconcile(wanted, qemu.present) == ()
        assert (wanted.store is Store.GROWS) == (graph.FILTER in qemu.kinds)
        assert wanted.arrives == bool(qemu.kinds & set(graph.ARRIVAL))
        if wanted.arrives:
            assert qemu.has_job == has_job
        if present.is_exported:
            # Servers go on reading, and from what was here of the base as well.
            assert {graph.TOP, graph.REMOTE} <= qemu.kinds
            assert qemu.kinds & set(graph.CONNECTIONS) == {present.connection} - {''}
            assert (graph.LANDED in qemu.kinds) == (wanted.landed
                                                    and graph.LANDED in present.kinds)
            if wanted.store is Store.GOES:
                assert not qemu.kinds & set(graph.GROWING)
            elif {*graph.GROWING} - {graph.FILTER} <= present.kinds:
                assert graph.STORE in qemu.kinds
        elif wanted.store is not Store.GROWS and not wanted.arrives:
            assert not qemu.kinds
    assert tried


@pytest.mark.parametrize('place', [HERE, THERE])
def test_a_base_is_read_from_where_it_is(place):
    """From whatever a crash left of an exchange, and below all that reads from it."""
    tried = 0
    for present, below, has_job in ALL:
        if not (present.is_exported and present.connection):
            continue
        tried += 1
        qemu = Qemu(present, below, has_job)
        for step in exchange(place, present):
            qemu.do(step)
        assert qemu.present.place == place and qemu.below == below
        assert exchange(place, qemu.present) == ()
        if place == THERE:
            assert len(qemu.kinds & set(graph.CONNECTIONS)) == 1
        assert qemu.kinds - set(graph.CONNECTIONS) == present.kinds - set(graph.CONNECTIONS)
    assert tried > 100


def test_the_connections_take_turns():
    for mine, other in ((FIRST, SECOND), (SECOND, FIRST)):
        there = Present(frozenset({graph.TOP, graph.REMOTE, mine}), True, HERE, mine)
        assert exchange(THERE, there) == (
            GraphStep(GraphAction.CONNECT, other), GraphStep(GraphAction.MOVE, other),
            GraphStep(GraphAction.DELETE, mine))


@pytest.mark.parametrize('file, place', [
    ('nbd://10.0.0.1:10810/base-x', HERE),
    ('nbd://::1:10810/base-x', Place('::1', 10810, 'base-x')),
    ('nbd://[::1]:10810/base-x', Place('::1', 10810, 'base-x')),
    ('json:{"driver": "throttle", "throttle-group": "u", "file": {"driver": "nbd", "export":'
     ' "base-x", "server.host": "10.0.0.1", "server.port": "10810", "server.type": "inet"}}', HERE),
    ('json:{"driver": "throttle", "file": {"driver": "throttle", "file": {"driver": "nbd",'
     ' "export": "base-x", "server": {"host": "10.0.0.1", "port": "10810"}}}}', HERE),
    ('json:{"driver": "throttle", "throttle-group": "u", "file": {"driver": "nbd", "export":'
     ' "base-x", "server.host": "10.0.0.1", "server.port": "10810", "tls-creds": "tls-ab"}}',
     Place('10.0.0.1', 10810, 'base-x', 'tls-ab')),
    ('', None), ('/a/file', None), ('json:{"driver": "qcow2"}', None), ('json:7', None),
    ('nbd+unix:///base-x?socket=/s', Place('', 0, 'base-x', socket='/s')),
    ('json:{"driver": "throttle", "throttle-group": "u", "file": {"driver": "nbd", "export":'
     ' "base-x", "server.path": "/s", "server.type": "unix"}}',
     Place('', 0, 'base-x', socket='/s')),
    ('json:{"driver": "throttle", "file": {"driver": "nbd", "export": "base-x", "server":'
     ' {"type": "unix", "path": "/s"}}}', Place('', 0, 'base-x', socket='/s')),
    ('json:{"driver": "blkdebug"}', None)])
def test_where_a_node_reads_from_is_told_by_its_file(file, place):
    nodes = {naming.node_name(graph.TOP, IMAGE): '', naming.node_name(graph.REMOTE, IMAGE): file}
    assert graph.present([IMAGE], nodes, {})[IMAGE].place == place


def test_of_two_connections_to_one_place_one_is_made_the_base_s_before_the_other_goes():
    """Renewed certificates: QEMU tells of the base with which it is read, and not by which node."""
    below = 'json:{"driver": "throttle", "file": {"driver": "nbd", "export": "base-x",' \
        ' "server.host": "10.0.0.1", "server.port": "10810", "tls-creds": "tls-ab"}}'
    nodes = {naming.node_name(graph.TOP, IMAGE): '', naming.node_name(graph.REMOTE, IMAGE): below,
             naming.node_name(FIRST, IMAGE): 'nbd://10.0.0.1:10810/base-x'}
    there = graph.present([IMAGE], nodes, {f'base-{IMAGE}': 'g-x'})[IMAGE]
    assert (there.connection, there.has_twins) == (FIRST, False)
    renewed = Place('10.0.0.1', 10810, 'base-x', 'tls-cd')
    assert exchange(there.place, there) == ()
    taken = (GraphStep(GraphAction.CONNECT, SECOND), GraphStep(GraphAction.MOVE, SECOND),
             GraphStep(GraphAction.DELETE, FIRST))
    assert exchange(renewed, there) == taken
    # A process that ended between two of these steps.
    nodes[naming.node_name(SECOND, IMAGE)] = 'nbd://10.0.0.1:10810/base-x'
    there = graph.present([IMAGE], nodes, {f'base-{IMAGE}': 'g-x'})[IMAGE]
    made_sure = (GraphStep(GraphAction.MOVE, FIRST), GraphStep(GraphAction.DELETE, SECOND))
    assert there.has_twins and reconcile(graph.as_it_is(there), there) == made_sure
    assert exchange(renewed, there) == (*made_sure, *taken)


ABSENT = ('json:{"inject-error.0.iotype": "read", "image": {"driver": "null-co", "size": 1048576},'
          ' "driver": "blkdebug"}')


def test_a_base_that_is_absent_is_told_and_exchanged():
    below = f'json:{{"driver": "throttle", "throttle-group": "u", "file": {ABSENT[5:]}}}'
    nodes = {naming.node_name(graph.TOP, IMAGE): '', naming.node_name(graph.REMOTE, IMAGE): below,
             naming.node_name(SECOND, IMAGE): ABSENT}
    there = graph.present([IMAGE], nodes, {f'base-{IMAGE}': 'g-x'})[IMAGE]
    assert (there.is_absent, there.connection, there.place) == (True, SECOND, None)
    assert reconcile(graph.as_it_is(there), there) == ()
    assert exchange(HERE, there) == (
        GraphStep(GraphAction.CONNECT, FIRST), GraphStep(GraphAction.MOVE, FIRST),
        GraphStep(GraphAction.DELETE, SECOND))
    # A process that ended before it moved the base, and one after that.
    nodes[naming.node_name(FIRST, IMAGE)] = 'nbd://10.0.0.1:10810/base-x'
    there = graph.present([IMAGE], nodes, {f'base-{IMAGE}': 'g-x'})[IMAGE]
    assert there.is_absent and there.connection == SECOND
    assert reconcile(graph.as_it_is(there), there) == (GraphStep(GraphAction.DELETE, FIRST),)
    nodes[naming.node_name(graph.REMOTE, IMAGE)] = 'nbd://10.0.0.1:10810/base-x'
    there = graph.present([IMAGE], nodes, {f'base-{IMAGE}': 'g-x'})[IMAGE]
    assert not there.is_absent and (there.connection, there.place) == (FIRST, HERE)


def test_an_absent_base_says_of_which_content_it_is_and_of_no_data_that_it_is_zeros():
    node = graph.absent_node(IMAGE, FIRST, 'base-x', 1 << 20)
    assert node['image']['node-name'] == graph.absent_name('base-x') != graph.absent_name('base-y')
    assert node['image']['read-zeroes'] is False and node['image']['size'] == 1 << 20
    assert {rule['iotype'] for rule in node['inject-error']} == {'read', 'block-status'}
    assert all(len(name) <= 31 for name in (node['node-name'], node['image']['node-name']))


def test_nothing_is_done_where_all_is_as_it_should_be():
    served = Present(frozenset({graph.TOP, graph.REMOTE}), True)
    assert reconcile(Wanted(), served) == ()
    assert reconcile(Wanted(), Present()) == ()
    growing = Present(frozenset({graph.TOP, graph.REMOTE, *graph.GROWING}), True)
    assert reconcile(Wanted(Store.GROWS), growing) == ()


def test_what_is_there_is_told_by_names():
    nodes = {naming.node_name(graph.TOP, IMAGE): '', 'other': '',
             naming.node_name(graph.REMOTE, IMAGE): 'nbd://10.0.0.1:10810/base-x'}
    other = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    assert graph.present([IMAGE, other], nodes, {f'base-{IMAGE}': 'g-x'}) == {
        IMAGE: Present(frozenset({graph.TOP, graph.REMOTE}), True, HERE, '')}
    nodes |= {naming.node_name(FIRST, IMAGE): 'nbd://10.0.0.2:10810/base-x',
              naming.node_name(SECOND, IMAGE): 'nbd://10.0.0.1:10810/base-x'}
    assert graph.present([IMAGE], nodes, {})[IMAGE].connection == SECOND


def test_what_is_whole_is_left_as_it_is():
    for present, _below, _has_job in ALL:
        whole = all(not present.kinds & set(part) or set(part) <= present.kinds
                    for part in (graph.GROWING, graph.ARRIVAL))
        if whole and present.is_exported and not set(graph.CONNECTIONS) <= present.kinds:
            assert reconcile(graph.as_it_is(present), present) == ()
