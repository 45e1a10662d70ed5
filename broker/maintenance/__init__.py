"""Work on journals and memory that no client waits for: rotation, packing, sidecars of sealed files, read-ahead, memory
limits. scheduler.py decides what is due; threads only read, write and sync.
"""
