"""What compute hosts hold, need, and are to let go of."""
