"""How ``glance-bootcache`` has oslo.service start its process, with whatever version of that.

tests/functional/test_service_start.py starts it with the one that is installed."""

import logging

import pytest

from glance_bootcache.cli import service


@pytest.mark.parametrize('launch, how', [
    (lambda conf, service, workers=1, restart_method='reload', no_fork=False: None, {}),
    (lambda conf, service, workers=1, restart_method='reload', no_fork=False,
     start_method=None: None, {'start_method': 'fork'})], ids=['4.7', '4.8'])
def test_it_is_said_that_it_forks_where_that_can_be_said(launch, how):
    assert service._how_to_launch(launch) == how
    launch(None, None, workers=1, **how)


@pytest.mark.parametrize('line, is_told', [
    # As 4.5.0 to 4.7.0 have it.
    ('Service %s is not picklable with spawn; falling back to fork. Please make the service'
     ' spawn-safe to avoid this fallback.', False),
    ('Service %s is not picklable with spawn and fork is unavailable.', True),
    ('no_fork=True: running service %s in main process', True)])
def test_that_it_forks_is_no_news(caplog, line, is_told):
    logger = logging.getLogger(service._FORKS_LOGGER)
    logger.addFilter(service._is_no_fork)
    try:
        logger.warning(line, 'StorageService', exc_info=ValueError('cannot pickle'))
    finally:
        logger.removeFilter(service._is_no_fork)
    assert bool(caplog.records) == is_told
