"""workq's command log."""
