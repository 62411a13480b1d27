"""Images in Ceph, as QEMU and Ceph's own commands reach them."""
