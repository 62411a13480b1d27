"""The short run of bench.fairness: figures are measured by hand, here is only whether it runs.

One owner's image becomes ready while another's guests never end."""

from functional_tools import free_port, qemu_img

from bench import fairness


def test_an_image_is_ready_beside_others_whose_guests_never_end(directory, monkeypatch):
    source = f'{directory}/image.qcow2'
    qemu_img('create', '-q', '-f', 'qcow2', source, '64M')
    monkeypatch.setattr(fairness, 'BOOT_SECONDS', 0.1)
    usual, beside = fairness.measure(source, images=4, repeats=1, export_port=free_port())
    assert len(usual) == len(beside) == 1
