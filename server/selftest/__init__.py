"""`staniel selftest`: whether a disk and a machine are fit for a spool, found out on them. Each file holds checks that
give findings; nothing here prints, and nothing outside the folder that is given is written to.
"""
