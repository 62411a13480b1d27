"""The storage side of bootcache: it learns what a boot reads, builds cache images, serves them."""
