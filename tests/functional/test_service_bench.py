"""The short run of bench.service: all figures are measured; which they are is told by long runs."""

import dataclasses

from bench.service import __main__ as bench
from bench.service import measuring

SIZE = measuring.Size(few=1, images=3, calls=100, callers=4, storm=120, hosts=10, held=2,
                      period=1.0, steady_periods=1, register_seconds=200.0)
FIELDS = {'what', 'database', 'nodes', 'images', 'hosts', 'calls_per_second', 'cpu_ms_per_call',
          'empty_call_cpu_ms', 'p99_seconds', 'cores'}


def test_each_figure_is_measured(rabbit_node):
    runs = bench.measured(rabbit_node, 'sqlite', SIZE, measuring.PARTS)
    assert [(run['what'], run['images'], run['hosts']) for run in runs] == [
        ('plan_boot', 1, 4), ('register', 3, 20), ('plan_boot', 3, 4), ('storm', 3, 120),
        ('storm', 3, 120), *[('reports', 3, 10)] * 3]
    for run in runs:
        assert set(run) >= FIELDS and (run['database'], run['nodes']) == ('sqlite', 1)
        assert run['calls_per_second'] > 0 and run['p99_seconds'] > 0 and run['cores'] > 0
        assert run['refused'] == run['unanswered'] == 0
    # Values that are measured are not the same twice.
    for field in ('calls_per_second', 'p99_seconds', 'cores'):
        assert len({run[field] for run in runs}) > len(runs) / 2
    few, registered, many, one, several, first, steady, again = runs
    for boots in (few, many):
        assert boots['answers'] == {'cold': 500} and boots['empty_call_cpu_ms'] > 0
    assert one['answers'] == several['answers'] == {'cold': 120}
    assert (one['asked_images'], several['asked_images']) == (1, 3)
    assert first['calls'] == 10
    # Most say that nothing has changed, which a service that was restarted asks about.
    assert 10 < again['calls'] <= 20 and steady['calls'] == 10
    assert registered['registered'] == 2 and registered['seconds'] > registered['list_seconds_max']
    assert registered['memory_peak_bytes'] > 50 << 20
    report = bench.report(runs, 0.0)
    assert report['runs'] == runs and set(report['stand_ins']) == {'Glance', 'Nova', 'Keystone'}


def test_each_figure_of_three_nodes_is_measured(rabbit_node):
    size = dataclasses.replace(SIZE, few=9, images=9)
    runs = bench.measured(rabbit_node, 'mariadb', size, measuring.PARTS, nodes=3)
    assert [(run['what'], run['images'], run['hosts']) for run in runs] == [
        ('plan_boot', 9, 4), ('storm', 9, 120), ('storm', 9, 120), *[('reports', 9, 10)] * 3]
    for run in runs:
        assert set(run) >= FIELDS and (run['database'], run['nodes']) == ('mariadb', 3)
        assert run['calls_per_second'] > 0 and run['p99_seconds'] > 0 and run['cores'] > 0
        # Of a storm of hosts that a node does not know yet it may refuse some, which ask again.
        assert run['unanswered'] == 0 and run['refused'] <= run['hosts'] // 20
    boots, one, several, first, steady, again = runs
    assert boots['empty_call_cpu_ms'] > 0
    for run, asked in (boots, 500), (one, 120), (several, 120):
        # Nodes that hand on as many as they may have hosts wait, which ask again.
        assert run['answers'].keys() <= {'cold', 'wait', 'refused'}
        assert run['answers']['cold'] == asked - run['refused']
        assert run['calls'] == asked + run['told_to_wait']
    assert first['calls'] == 10
    # A node that has not heard of a report yet asks for it.
    assert 10 <= steady['calls'] <= 20 and 10 < again['calls'] <= 20
