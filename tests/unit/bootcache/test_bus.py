"""Calls over the message bus end in their time, whatever it does, with errors of two kinds.

The client is a stand-in; tests/functional/test_messages.py has a RabbitMQ that hangs.
"""

import re
import threading

import oslo_messaging as messaging
import pytest
from kombu.exceptions import OperationalError

from bootcache import bus


def test_what_a_call_answers():
    assert bus.within(30, lambda: 'answer') == 'answer'


def test_a_call_that_hangs_is_given_up():
    end = threading.Event()
    with pytest.raises(messaging.MessagingTimeout, match='no answer within'):
        bus.within(0.01, end.wait)
    end.set()


@pytest.mark.parametrize('error', [OperationalError('timed out'), ConnectionResetError('gone'),
                                   OSError('no route')], ids=repr)
def test_errors_below_the_bus_are_the_bus_s(error):
    def call():
        raise error

    with pytest.raises(messaging.MessageDeliveryFailure, match=re.escape(str(error))):
        bus.within(30, call)


@pytest.mark.parametrize('error', [
    messaging.MessagingTimeout('x'), messaging.RemoteError('ValueError', 'x'), ValueError('x'),
    messaging.RPCVersionCapError(version='1.1', version_cap='1.0')], ids=repr)
def test_other_errors_are_what_they_are(error):
    def call():
        raise error

    with pytest.raises(type(error)) as caught:
        bus.within(30, call)
    assert caught.value is error
