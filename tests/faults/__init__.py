"""Bad disks, bad files, bad clocks and clients that vanish."""
