"""`staniel selftest`: that it finds nothing on a sound disk, and what is wrong with others."""
