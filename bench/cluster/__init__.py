"""A cluster on paper: a discrete-event simulation that decides with the product's own code.

The weigher, the placement and the eviction are those of nova_bootcache and bootcache, unchanged;
what takes time is modelled with constants that were measured (calibration.py). Run by
``tools/bench.sh cluster``; doc/source/cluster.rst tells what comes of it.
"""
