"""What boots read: recorded, watched, reported."""
