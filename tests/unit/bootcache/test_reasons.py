"""Reasons of images' states: values that are stored, texts that are shown."""

import pytest

from bootcache.reasons import _TEXTS, NO_CAUSE, Cause, Reason


@pytest.mark.parametrize('reason', [reason for reason in Reason if reason is not Reason.NONE])
def test_each_has_a_text(reason):
    text = str(Cause(reason, 'what {} it is about'))
    assert text and Cause(reason)
    # An argument is shown as it is, whatever is in it.
    assert ('what {} it is about' in text) == ('{}' in _TEXTS.get(reason, '{}'))


def test_without_a_reason_nothing_is_shown():
    assert str(NO_CAUSE) == '' and not NO_CAUSE
