"""What a qcow2's header and tables say, read before QEMU opens the file."""
