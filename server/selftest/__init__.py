"""The checks of `staniel selftest`: do a disk and a machine suit a spool? They run on the disk itself. Each file holds
checks that return findings; none prints, and none writes outside the given folder.
"""
