"""The program as its operator and its network see it: real processes, real sockets, real signals."""
