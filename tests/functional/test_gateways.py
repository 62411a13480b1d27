"""The short run of bench.gateways: figures are measured by hand, here is only whether it runs."""

from functional_tools import free_port

from bench import gateways


def test_one_daemon_for_all_images_and_one_for_each():
    found = [row.split()[:3] for row in gateways.rows(2, export_port=free_port())]
    assert found == [['2', 'one', '1'], ['2', 'own', '2']]
