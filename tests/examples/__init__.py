"""The examples, run as a reader would run them, while things are killed around them."""
