"""A small real Ceph on this machine, for tests and demos: python -m tools.ceph."""
