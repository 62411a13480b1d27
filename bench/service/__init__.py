"""``tools/bench.sh service``: what the storage service's RPC costs, and what rate it answers."""
