"""What servers of a cluster agree on, against real etcds and against scripted peers."""
