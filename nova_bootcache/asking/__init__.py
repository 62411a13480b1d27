"""What a host asks the storage service, what that offers, and what is decided by it."""
