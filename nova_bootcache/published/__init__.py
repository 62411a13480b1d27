"""What a host holds, told to others."""
