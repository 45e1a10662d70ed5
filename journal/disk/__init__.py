"""The file system as the journals use it. fs.py has the protocols Fs, File and Reader. os_fs.py is the real disk, the
only file here that calls `os`; the simulated disk is in sim/disk. The other files: replace_file.py (replace a file
whole), removal.py (the files of a deleted queue), open_files.py (a limit on open files), ballast.py (space held in
reserve), quarantine.py (copies of unreadable bytes), unsynced_names.py and failed_sync.py (what a failed sync leaves in
doubt). No code here knows formats or queues, and it imports no other package of ours.
"""
