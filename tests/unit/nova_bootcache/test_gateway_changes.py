"""When the gateway is changed, and when not: the daemon is none, as nothing is sent to it."""

import contextlib
import types

import pytest

from bootcache import exception, qemuimg
from nova_bootcache.gateway.daemon import Gateway


@pytest.mark.parametrize('version, all_answer, is_busy', [
    (7, False, False), (10, False, True), (10, True, False)])
def test_nobody_waits_with_a_read_that_waits(tmp_path, monkeypatch, version, all_answer, is_busy):
    monkeypatch.setattr(qemuimg, 'major_version', lambda: version)
    gateway = Gateway(str(tmp_path), str(tmp_path / 's'),
                      types.SimpleNamespace(all_answer=lambda _seconds: all_answer))
    with pytest.raises(exception.StorageDaemonBusy, match='have no answer') if is_busy \
            else contextlib.nullcontext():
        gateway.daemon.monitor.before_change()
