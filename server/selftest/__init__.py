"""The checks of `staniel selftest`, which tell whether a disk and a machine suit a spool. They run on the disk itself.
Each module has checks that return findings. They print nothing, and write only in the given folder.
"""
