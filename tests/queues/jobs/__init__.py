"""Jobs in memory."""
