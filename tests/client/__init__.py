"""The client: its sans-IO half against the server's parser, its trio half against scripts and a real server."""
