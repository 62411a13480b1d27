"""Which hosts give cache images to each other: who is told of whom."""
