"""The broker on a fake disk with a stepped clock."""
