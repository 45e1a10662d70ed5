"""The simulated disk: `durable.py` has files and folders and decides what of them survives a power loss, `disk.py` has
the file system.

No code here knows the meaning of the files.
"""
