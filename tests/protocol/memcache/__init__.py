"""The memcache protocol, both dialects."""
