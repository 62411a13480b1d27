"""What is below servers' disks in the gateway, and who needs it."""
