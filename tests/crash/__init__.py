"""Real kills of real servers. The simulator finds more; this shows that its world is the real one."""
