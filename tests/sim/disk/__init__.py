"""The simulated disk."""
