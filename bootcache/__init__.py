"""What the storage side and the compute side of bootcache share.

Nothing here imports Nova, Glance, ``nova_bootcache`` or ``glance_bootcache``.
"""
