"""A real OpenStack on loopback, of one or two hosts, for the demo and the end-to-end tests."""
