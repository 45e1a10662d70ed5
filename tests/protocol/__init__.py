"""The parsers and the replies, without sockets."""
