"""What is compared, one row of the papers' figures a module."""
