"""The storage service's RPC: each message declared once, and its client."""
