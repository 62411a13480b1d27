"""How a guest that runs for a while writes, in bytes: many small pieces, some large ones."""

BLOCK = 4096
PIECES = (4096,) * 6 + (16384,) * 3 + (65536,) * 2 + (524288,)
