"""What knows nothing of images or hosts: back-off, log throttling, threads."""
