"""What the documents say of the tree is true of it."""
