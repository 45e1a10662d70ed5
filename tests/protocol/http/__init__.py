"""HTTP as bytes."""
