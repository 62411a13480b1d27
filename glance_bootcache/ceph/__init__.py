"""Bases that stay in Ceph, where Glance's RBD store has them."""
