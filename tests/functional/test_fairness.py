"""One owner's image becomes ready beside another's whose guests never end, and before these.

The short run of bench.fairness: seconds are measured by hand, here is what comes before what."""

from functional_tools import free_port, qemu_img

from bench import fairness

OTHERS = 40


def test_an_image_is_ready_beside_others_whose_guests_never_end(directory, monkeypatch):
    source = f'{directory}/image.qcow2'
    qemu_img('create', '-q', '-f', 'qcow2', source, '64M')
    monkeypatch.setattr(fairness, 'BOOT_SECONDS', 0.1)
    found = fairness.measure(source, images=OTHERS, repeats=1, export_port=free_port())
    assert len(found.usual) == len(found.beside) == 1
    # It came last: in the order in which they came, the bases of all others would be got before.
    assert found.before < OTHERS / 2
