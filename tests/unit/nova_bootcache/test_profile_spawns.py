"""A profile boot that does not start: Nova's fault of it says why."""

import types

import pytest
from nova import exception as nova_exception
from nova.compute import utils as compute_utils

from bootcache.rpc import messages
from nova_bootcache.novadriver.imagebackend import aborting

SERVER = '0c5d0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ERROR = nova_exception.Invalid('loader attribute is not supported')


def start(error, **metadata):
    with aborting(types.SimpleNamespace(uuid=SERVER, metadata=metadata)):
        raise error


def test_nova_s_fault_says_why():
    """It said "Exceeded maximum number of retries", and the events of the server that all is well:
    Nova 34 notes the error of a start that it tries elsewhere in its log alone."""
    with pytest.raises(nova_exception.BuildAbortException) as raised:
        start(ERROR, **{messages.PROFILE_METADATA: 'token'})
    fault = compute_utils.exception_to_dict(raised.value)
    assert fault['message'] == f'Build of instance {SERVER} aborted: {ERROR}'


def test_others_servers_are_tried_elsewhere():
    with pytest.raises(nova_exception.Invalid):
        start(ERROR)


@pytest.mark.parametrize('error', [
    nova_exception.InstanceNotFound(instance_id=SERVER),
    nova_exception.UnexpectedDeletingTaskStateError(
        instance_uuid=SERVER, expected={}, actual={})], ids=repr)
def test_one_that_is_deleted_meanwhile_has_not_failed(error):
    with pytest.raises(type(error)):
        start(error, **{messages.PROFILE_METADATA: 'token'})
