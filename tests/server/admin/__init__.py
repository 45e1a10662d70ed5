"""The admin listener, over real sockets."""
