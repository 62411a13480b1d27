"""``/healthcheck``: each backend is asked in its time, and what does not answer is said."""

import importlib.metadata
import json
import threading

import pytest
import webob
from fakes_clock import Clock
from fakes_manager import until

from bootcache.exception import ConfigurationError, DatabaseAway, StorageDaemonError
from glance_bootcache import health
from glance_bootcache.health import BUS, DATABASE, EXPORTER, HealthChecks
from tools.tree import as_installed

pytest.importorskip('oslo_middleware')


@pytest.fixture(autouse=True)
def plugins(monkeypatch, tmp_path):
    """Those of this tree, which need not be installed."""
    monkeypatch.syspath_prepend(as_installed(tmp_path))


def well():
    pass


def asked(checks, **headers):
    answer = webob.Request.blank('/healthcheck', headers=headers).get_response(checks.app())
    return answer.status_int, answer.text


def checks_of(seconds=30.0, **checks):
    return HealthChecks({BUS: well, DATABASE: well, EXPORTER: well} | checks, seconds)


def test_all_that_answer_are_named():
    assert asked(checks_of()) == (200, 'bus: it answers\ndatabase: it answers\n'
                                  'exporter: it answers')


@pytest.mark.parametrize(('name', 'error'), [
    (BUS, TimeoutError('nobody has answered')), (DATABASE, DatabaseAway('it does not answer')),
    (EXPORTER, StorageDaemonError('exporter: nothing\nlistens'))], ids=str)
def test_what_does_not_answer_is_named_with_why(name, error):
    def ill():
        raise error

    status, text = asked(checks_of(**{name: ill}))
    said = ' '.join(str(error).split())
    assert status == 503 and f'{name}: {said}' in text.splitlines()
    assert text.count('it answers') == 2


def test_json_has_a_list():
    status, text = asked(checks_of(), Accept='application/json')
    assert status == 200 and json.loads(text)['reasons'] == [
        'bus: it answers', 'database: it answers', 'exporter: it answers']


def test_one_that_hangs_has_one_thread_and_keeps_nobody_waiting():
    begun, released = [], threading.Event()

    def hangs():
        begun.append(1)
        released.wait()

    checks = checks_of(0.05, database=hangs)

    def others_answer():
        status, text = asked(checks)
        assert status == 503 and 'database: no answer for ' in text
        return text.count('it answers') == 2

    until(others_answer, 'the others')
    until(others_answer, 'the others again')
    assert len(begun) == 1
    released.set()
    until(lambda: asked(checks)[0] == 200, 'all of them')


def test_all_are_begun_before_one_is_waited_for():
    met = threading.Barrier(3)

    def meet():
        met.wait(30)

    checks = checks_of(bus=meet, database=meet, exporter=meet)
    assert checks.failures() == {BUS: '', DATABASE: '', EXPORTER: ''}


def test_who_asks_at_once_again_gets_the_same_answer():
    calls, clock = [], Clock()
    checks = HealthChecks({BUS: lambda: calls.append(1)}, clock=clock)
    for _request in range(5):
        assert checks.failures() == {BUS: ''}
    assert len(calls) == 1
    clock.now += 2
    assert checks.failures() == {BUS: ''} and len(calls) == 2


def test_what_fails_slowly_is_waited_for_once():
    calls, clock = [], Clock()

    def slow():
        calls.append(1)
        clock.now += 2.9
        raise TimeoutError('nobody has answered')

    checks = HealthChecks({BUS: slow, DATABASE: well, EXPORTER: well}, 30.0, clock)
    assert asked(checks)[0] == 503 and len(calls) == 1


def test_plugins_that_are_not_installed_are_no_health(monkeypatch):
    monkeypatch.setattr(health.metadata, 'entry_points',
                        lambda group: importlib.metadata.EntryPoints())
    with pytest.raises(ConfigurationError, match='no entry points bootcache_bus'):
        checks_of().app()
