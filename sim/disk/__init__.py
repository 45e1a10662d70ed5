"""The fake disk: `durable.py` has files and folders with what of them survives a power loss, `disk.py` the file system.

Nothing here knows what the files mean.
"""
