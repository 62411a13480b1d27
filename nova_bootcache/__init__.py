"""The compute side of bootcache: servers boot from cache images, misses pass the gateway."""
