"""workq's protocol."""
