"""Work in slices, done in one go."""

from __future__ import annotations

from staniel.journal.slices import Result, SlicedWork, Slices


def result_of(slices: Slices[Result]) -> Result:
    work = SlicedWork(slices)
    while not work.is_over:
        work.do_slice()
    return work.result
