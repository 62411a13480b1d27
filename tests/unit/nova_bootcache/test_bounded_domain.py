"""A domain whose calls are answered in time, or not at all; and calls of several threads."""

import threading

import libvirt
import pytest
from fakes_standing import Connection, Domain, disk

from bootcache import exception
from nova_bootcache import libvirtcalls
from nova_bootcache.libvirtcalls import LibvirtCalls

PATIENCE = 60


@pytest.fixture
def few_seconds(monkeypatch):
    monkeypatch.setattr(libvirtcalls, 'SECONDS', 0.05)
    for name, seconds in libvirtcalls._OF_QEMU.items():
        if seconds is not None:
            monkeypatch.setitem(libvirtcalls._OF_QEMU, name, 0.2)


@pytest.fixture
def guest():
    return Domain('a', libvirt.VIR_DOMAIN_PAUSED_IOERROR, disk())


@pytest.fixture
def calls(guest):
    return LibvirtCalls(lambda: Connection({'a': guest}))


@pytest.fixture
def hang():
    """Gives calls that do not return before the test is over."""
    over = threading.Event()
    yield lambda *_arguments: over.wait(PATIENCE)
    over.set()


def test_each_is_libvirts_own(calls, guest):
    guest.blockCopy = lambda *arguments: arguments
    domain = calls.find('a')
    assert domain.state(0) == guest.now and domain.XMLDesc(0) == guest.xml
    assert domain.blockCopy('vda', '<disk/>', {}, 7) == ('vda', '<disk/>', {}, 7)
    for name in ('undefine', 'isActive_'):
        with pytest.raises(AttributeError):
            getattr(domain, name)


def test_one_that_is_not_there(calls, monkeypatch):
    monkeypatch.setattr(libvirt.libvirtError, 'get_error_code', lambda _error: 42)
    assert libvirt.VIR_ERR_NO_DOMAIN == 42 and calls.find('b') is None
    monkeypatch.setattr(libvirt.libvirtError, 'get_error_code', lambda _error: 1)
    with pytest.raises(libvirt.libvirtError):
        calls.find('b')


@pytest.mark.parametrize('name', libvirtcalls._OF_QEMU)
def test_what_qemu_does_not_answer_is_left_and_what_libvirt_knows_is_told(
        calls, guest, hang, few_seconds, name):
    setattr(guest, name, hang)
    domain = calls.find('a')
    with pytest.raises(exception.LibvirtHangs, match='its QEMU does not answer'):
        getattr(domain, name)()
    assert domain.state(0) == guest.now
    # Until libvirt has done with that, whatever is asked.
    guest.control = [libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 0, 0]
    guest.blockInfo = pytest.fail
    with pytest.raises(exception.LibvirtHangs):
        domain.blockInfo('vda')


def test_the_end_of_a_job_may_take_longer(calls, guest, monkeypatch):
    monkeypatch.setattr(libvirtcalls, 'SECONDS', 0.01)
    guest.blockJobAbort = lambda *_arguments: threading.Event().wait(0.1)
    calls.find('a')
    assert calls.ask_qemu('a', lambda domain: domain.blockJobAbort('vda', 0),
                          libvirtcalls.JOB_END_SECONDS) is False


def test_threads_ask_beside_each_other(calls, guest, hang, few_seconds):
    """Each on a connection of its own; and each sees what others wait for in vain."""
    guest.blockJobInfo, told = hang, []

    def ask():
        try:
            calls.find('a').blockJobInfo('vda', 0)
        except exception.LibvirtHangs as error:
            told.append(str(error))
    threads = [threading.Thread(target=ask) for _number in range(3)]
    for thread in threads:
        thread.start()
    assert calls.ask(lambda _connection: 5) == 5
    for thread in threads:
        thread.join(PATIENCE)
    assert told == ['its QEMU does not answer libvirt'] * 3
