"""What nova-scheduler loads: a weigher and a filter, and what both know of hosts."""
