"""Today's memcache clients in front of a real server: one file a client."""
