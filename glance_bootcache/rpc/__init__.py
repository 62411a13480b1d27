"""What comes in by RPC: from hosts, and from operators."""
