"""Broken rules, one at a time, which show that the simulator notices each.

`queues.py` has the list, the other files add to it. A mutant replaces a function of the product by name, so a rename of
that function changes the name here too.
"""
