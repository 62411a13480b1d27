"""Immutable files that hosts give to each other, piece by piece (papers/004): by libtorrent."""
