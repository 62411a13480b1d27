"""What Nova sees: the driver and its image backend, and what they need of Nova."""
