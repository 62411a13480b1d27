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
    Present,
    Store,
    Wanted,
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
BASE_ADDED = graph.REMOTE, graph.TOP


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
        self.content = present.content

    def check(self):
        for kind in self.kinds:
            for read in EDGES.get(kind, ()):
                assert read in self.kinds, f'{kind} reads from {read}'
        if graph.TOP in self.kinds:
            assert self.below in self.kinds

    def do(self, step):
        action, of = step
        if action is GraphAction.CHECK_JOB:
            assert not self.has_job
            self.is_checked = True
        elif action is GraphAction.READ:
            assert graph.TOP in self.kinds and of in self.kinds
            self.below = of
        else:
            assert self.is_checked or of not in graph.ARRIVAL
            assert not (self.is_exported and of == graph.TOP)
            assert of in self.kinds
            for kind in self.kinds:
                assert of not in EDGES.get(kind, ()), f'{kind} reads from {of}'
            assert not (graph.TOP in self.kinds and self.below == of)
            self.kinds.remove(of)
        self.check()

    @property
    def present(self):
        return Present(frozenset(self.kinds), self.is_exported,
                       self.content if graph.REMOTE in self.kinds else '')


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
        content = 'base-x' if graph.REMOTE in kinds else ''
        whole = [graph.REMOTE]
        whole += [graph.LANDED] if landed else []
        whole += [kind for kind in (graph.STORE, graph.FILTER) if kind in kinds]
        whole += [graph.ARRIVING] if graph.ARRIVING in kinds else []
        for below in whole if graph.TOP in kinds else ('',):
            for has_job in (False, True) if graph.COME in kinds else (False,):
                yield Present(frozenset(kinds), is_exported, content), below, has_job


ALL = list(states())
WANTED = [Wanted(store, arrives, landed) for store in Store for arrives in (False, True)
          for landed in (False, True)]


def possible(wanted, present):
    """Whoever looks after a part has made it, below an export."""
    base = {graph.TOP, graph.REMOTE}
    return (wanted.store is not Store.GROWS or {*graph.GROWING, *base} <= present.kinds) \
        and (not wanted.arrives or {*graph.ARRIVAL, *base} <= present.kinds)


def test_there_is_much_to_try():
    assert len(ALL) > 200


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
            assert (graph.LANDED in qemu.kinds) == (wanted.landed
                                                    and graph.LANDED in present.kinds)
            if wanted.store is Store.GOES:
                assert not qemu.kinds & set(graph.GROWING)
            elif {*graph.GROWING} - {graph.FILTER} <= present.kinds:
                assert graph.STORE in qemu.kinds
        elif wanted.store is not Store.GROWS and not wanted.arrives:
            assert not qemu.kinds
    assert tried


@pytest.mark.parametrize('file, content', [
    ('nbd+unix:///base-x?socket=/s', 'base-x'),
    # Of a gateway that was started before there were connectors.
    ('nbd://10.0.0.5:10810/base-x', 'base-x'),
    ('json:{"driver": "raw", "file": {"tls-creds": "t", "export": "base-x"}}', 'base-x'),
    ('', ''), ('/a/file', ''), ('json:{"driver": "qcow2"}', '')])
def test_which_content_a_node_reads_is_told_by_its_file(file, content):
    nodes = {naming.node_name(graph.TOP, IMAGE): '', naming.node_name(graph.REMOTE, IMAGE): file}
    assert graph.present([IMAGE], nodes, {})[IMAGE].content == content


def test_nothing_is_done_where_all_is_as_it_should_be():
    served = Present(frozenset({graph.TOP, graph.REMOTE}), True)
    assert reconcile(Wanted(), served) == ()
    assert reconcile(Wanted(), Present()) == ()
    growing = Present(frozenset({graph.TOP, graph.REMOTE, *graph.GROWING}), True)
    assert reconcile(Wanted(Store.GROWS), growing) == ()


def test_what_is_there_is_told_by_names():
    nodes = {naming.node_name(graph.TOP, IMAGE): '', 'other': '',
             naming.node_name(graph.REMOTE, IMAGE): 'nbd+unix:///base-x?socket=/s',
             naming.node_name(graph.SOURCE, IMAGE): 'nbd+unix:///cache-x?socket=/t'}
    other = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    assert graph.present([IMAGE, other], nodes, {f'base-{IMAGE}': 'g-x'}) == {
        IMAGE: Present(frozenset({graph.TOP, graph.REMOTE, graph.SOURCE}), True, 'base-x',
                       'cache-x')}


def test_what_is_whole_is_left_as_it_is():
    for present, _below, _has_job in ALL:
        whole = all(not present.kinds & set(part) or set(part) <= present.kinds
                    for part in (graph.GROWING, graph.ARRIVAL))
        if whole and present.is_exported:
            assert reconcile(graph.as_it_is(present), present) == ()
