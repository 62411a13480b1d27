"""Reports of boots that the storage service missed are sent again, in order, for a while.

The storage service is a stand-in; tests/functional/test_cold_boots.py has real boots.
"""

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock

from bootcache.rpc.messages import ReportBoot
from nova_bootcache.recording import bootwatch
from nova_bootcache.recording.bootwatch import BootReports


def booted(number):
    return ReportBoot(f'image-{number}', 'hash', 'host', 4096, [], 'marker', 1.0)


class Service:
    """Stands for the storage service: away, refusing, or taking reports."""

    def __init__(self):
        self.error, self.taken, self.asked = None, [], 0

    def send(self, report):
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.taken.append(report)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(bootwatch, 'time', clock)
    return clock


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def reports(service, clock):
    return BootReports(service.send)


def test_a_report_is_sent_at_once_and_once(reports, service):
    reports.report(booted(0))
    reports.send_again()
    assert service.taken == [booted(0)] and service.asked == 1


@pytest.mark.parametrize('error', [messaging.MessagingTimeout('x'),
                                   messaging.MessageDeliveryFailure('x'),
                                   OSError(28, 'No space left on device')], ids=repr)
def test_what_nobody_took_is_sent_again_in_order(reports, service, clock, error):
    service.error = error
    for number in range(3):
        reports.report(booted(number))
    clock.now += 10
    reports.send_again()
    assert service.asked == 4, 'who does not answer is asked once a round'
    service.error = None
    clock.now += 10
    reports.send_again()
    reports.send_again()
    assert service.taken == [booted(number) for number in range(3)] and service.asked == 7


def test_who_does_not_answer_is_asked_less_and_less_often(reports, service, clock):
    """Each try takes its time, and the gateway is looked after by the same thread."""
    service.error = messaging.MessagingTimeout('x')
    reports.report(booted(0))
    began, asked = clock.now, []
    while clock.now < began + 2000:
        before = service.asked
        reports.send_again()
        if service.asked > before:
            asked.append(clock.now)
        clock.now += 10
    pauses = [after - before for before, after in zip([began, *asked], asked, strict=False)]
    assert pauses == [10, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300]


def test_with_one_that_is_taken_the_rest_follows(reports, service, clock):
    service.error = messaging.MessagingTimeout('x')
    reports.report(booted(0))
    for _round in range(20):
        clock.now += 10
        reports.send_again()
    service.error = None
    reports.report(booted(1))
    reports.send_again()
    assert service.taken == [booted(1), booted(0)]


def test_what_is_refused_is_not_sent_again(reports, service, clock, caplog):
    service.error = messaging.MessagingTimeout('x')
    reports.report(booted(1))
    reports.report(booted(2))
    clock.now += 10
    service.error = messaging.RemoteError('InvalidWorkingSet', 'outside')
    reports.send_again()
    assert service.asked == 4 and caplog.text.count('outside') == 2
    reports.send_again()
    assert service.asked == 4


def test_who_reports_hears_of_a_refusal(reports, service):
    service.error = messaging.RemoteError('InvalidWorkingSet', 'outside')
    with pytest.raises(messaging.RemoteError):
        reports.report(booted(1))


def test_old_reports_are_given_up(reports, service, clock, caplog):
    service.error = messaging.MessagingTimeout('x')
    reports.report(booted(1))
    clock.now += 3000
    reports.report(booted(2))
    clock.now += 601
    service.error = None
    reports.send_again()
    assert service.taken == [booted(
        2)] and 'image image-1: what a boot read is not told' in caplog.text


def test_no_more_than_so_many_wait(reports, service, clock, caplog):
    service.error = messaging.MessagingTimeout('x')
    for number in range(bootwatch._MOST + 2):
        reports.report(booted(number))
    assert caplog.text.count('is not told') == 2
    service.error = None
    clock.now += 10
    reports.send_again()
    assert service.taken == [booted(number) for number in range(2, bootwatch._MOST + 2)]
