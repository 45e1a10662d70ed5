"""The file system as the journals use it. fs.py has the protocols Fs, File and Reader, os_fs.py the real disk, the only
file here that calls `os`; the simulated one is in sim/disk. Around them: replace_file.py (replace a file whole),
removal.py (the files of a deleted queue), open_files.py (a limit on open files), ballast.py (space held in reserve),
quarantine.py (copies of what cannot be read), unsynced_names.py and failed_sync.py (what a failed sync leaves in
doubt). Nothing here knows formats or queues, and nothing of ours is imported.
"""
