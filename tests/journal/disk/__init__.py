"""The disk, failed syncs, open files, quarantine."""
