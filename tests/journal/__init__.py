"""The journals: what is written, what a crash leaves of it, what is read back."""
