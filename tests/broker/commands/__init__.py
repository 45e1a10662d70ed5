"""What single commands do."""
