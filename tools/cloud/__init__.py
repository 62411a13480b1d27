"""A real one-host OpenStack on loopback, for the demo and the end-to-end tests."""
