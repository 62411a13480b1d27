"""What the services tell Prometheus, compared with what a run did."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.tenant import wait_until

SERVICE_PORT, HOST_PORT = 9180, 9181


@pytest.fixture(scope='module', autouse=True)
def watched(cloud):
    """All services listen."""
    layers = {STORAGE_SERVICE: {'metrics_port': SERVICE_PORT},
              'nova': {'metrics_port': HOST_PORT, 'metrics_address': '$my_ip'}}

    def restart():
        with cloud.hosts_heard():
            cloud.restart(STORAGE_SERVICE)
        cloud.restart(*(host.compute for host in cloud.hosts))

    for service, options in layers.items():
        cloud.layer(service, '75-metrics', {'bootcache': options})
    restart()
    yield
    for service in layers:
        cloud.layer(service, '75-metrics', None)
    restart()


def read(address, port, path):
    with urllib.request.urlopen(f'http://{address}:{port}{path}', timeout=60) as answer:
        return answer.read().decode()


def scrape(address, port):
    """Read all metrics: by name, and by their labels' values in the order of their names."""
    return {(sample.name, *(value for _name, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(read(address, port, '/metrics'))
            for sample in family.samples}


def test_metrics_are_what_the_run_did(tenant, ready_image, small_image, cloud, wire):
    host, begin = cloud.hosts[0], wire.position()
    cache = tenant.show(ready_image)['cache_image']
    skipped = tenant.image(small_image, bootcache_mode='off')
    tenant.wait_state(skipped, 'skipped')
    # The profile boot may have been on this host.
    before, there_before = scrape('127.0.0.1', SERVICE_PORT), scrape(host.address, HOST_PORT)
    # Since the service was started: it was registered then.
    for step in 'get_base', 'inspect', 'record', 'build':
        assert before['bootcache_image_step_seconds_count', 'done', step] == 1
    assert before['bootcache_images', 'ready'] >= 1 and before['bootcache_images', 'skipped'] >= 1

    with tenant.only(host):
        for image in ready_image, ready_image, skipped:
            tenant.login(tenant.server(image))
    fetched = sum(request.length for request in wire.requests(begin, wire.position())
                  if request.export.startswith('cache-'))
    after, there = scrape('127.0.0.1', SERVICE_PORT), scrape(host.address, HOST_PORT)

    def grown(*key):
        return there[key] - there_before.get(key, 0)

    # In the order of the labels' names: reason, way.
    assert after['bootcache_boots_planned_total', '', 'cache'] \
        - before.get(('bootcache_boots_planned_total', '', 'cache'), 0) == 2
    assert after['bootcache_boots_planned_total', 'mode-off', 'stock'] == 1
    assert sum(count for key, count in after.items()
               if key[0] == 'bootcache_cache_image_hits_total') == 2
    assert grown('bootcache_boots_total', 'stock') == 1
    assert sum(grown(*key) for key in there if key[0] == 'bootcache_boots_total') == 3
    assert grown('bootcache_cache_image_bytes_total', 'storage_node') == cache['bytes']
    assert 0.9 * cache['bytes'] <= fetched <= cache['bytes']
    assert grown('bootcache_cache_image_bytes_total', 'local') == cache['bytes']
    assert grown('bootcache_fetch_seconds_count', 'done') == 1
    assert grown('bootcache_boot_phase_seconds_count', 'done', 'chain') == 2
    assert there['bootcache_tier_used_bytes', 'compute_disk'] >= cache['bytes']
    wait_until(lambda: scrape(host.address, HOST_PORT).get(
        ('bootcache_servers_unsettled',)) == 2, 'the host sees its unsettled servers')
    wait_until(lambda: scrape('127.0.0.1', SERVICE_PORT)[
        'bootcache_reported_servers_unsettled',] == 2, 'the storage service hears of them')
    assert after['bootcache_hosts', 'reporting'] == 2 and after['bootcache_hosts', 'silent'] == 0
    assert after['bootcache_reported_guests_paused',] == there['bootcache_guests_paused',] == 0
    assert after['bootcache_certificate_end_timestamp_seconds', 'server-cert.pem'] > 1e9
    assert after['bootcache_database_errors_total',] == 0
    assert read('127.0.0.1', SERVICE_PORT, '/healthcheck').count('it answers') == 3
