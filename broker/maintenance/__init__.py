"""Work on journals and memory that no client waits for: rotation, packing, sidecars of sealed files, read-ahead, memory
limits. scheduler.py chooses the work that is due. Threads only read, write and sync.
"""
