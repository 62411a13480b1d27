"""HTTP that services are watched by."""
