"""The states of jobs that an accident may leave, and the comparison with what was found.

The log is one sequence of changes in several files. The promised changes must be there. Of the others each file has a
first part, because an unsynced file may lose its end while the next file exists. Where a start has skipped damage, any
of the others may be missing: the disk had not written its record, but later ones. Cleaning may have removed the changes
of ended jobs. Source: docs/durability.md.
"""

from __future__ import annotations

from staniel.sim.jobs.conversation import number_of
from staniel.sim.jobs.model import Fact, JobModel, JobRecord, Verb
from staniel.sim.queues.promises import Accident, least
from staniel.sim.violations import Kind, Violation

Found = dict[bytes, JobRecord]
States = list[JobRecord | None]


def check_jobs(model: JobModel, content: Found, accident: Accident, *, has_holes: bool = False) -> Found:
    """Check the found jobs, and return them as the base of the next life. `has_holes`: records were missing between
    others. Raises Violation.
    """
    promised = least(model, accident)
    for id in sorted({*content, *model.base, *model.lapsed, *(fact.id for fact in model.facts)}):
        allowed = possible(model, id, promised, has_holes=has_holes)
        if content.get(id) not in allowed:
            raise _explained(model, id, content.get(id), allowed, promised, accident)
    if not has_holes:
        _check_together(model, content, promised)
    return content


def possible(model: JobModel, id: bytes, promised: int, *, has_holes: bool = False) -> States:
    """Return every record that a job may have."""
    begins = _begins(model, id)
    unpromised: list[list[Fact]] = []
    for number, fact in model.facts_of(id):
        if number <= promised:
            begins = _unique([model.apply_change(before, fact) for before in begins])
        elif unpromised and unpromised[-1][0].segment == fact.segment and not has_holes:
            unpromised[-1].append(fact)
        else:
            unpromised.append([fact])
    for facts in unpromised:
        ends = list(begins)
        for fact in facts:
            begins = _unique([after for before in begins for after in _read(model, before, fact)])
            ends = _unique([*ends, *begins])
        begins = ends
    gone = id not in model.now
    return _unique([*begins, None]) if gone else begins


def _read(model: JobModel, before: JobRecord | None, fact: Fact) -> States:
    """Return the records after a change if some earlier changes may be lost: a time-out may then be read as that of an
    earlier lease.
    """
    after = model.apply_change(before, fact)
    is_swapped = fact.verb is Verb.TIMEOUT and before is not None and before.attempts > 1 and not before.is_over
    return [after, before] if is_swapped else [after]


def _check_together(model: JobModel, content: Found, promised: int) -> None:
    """Check all jobs together if all unpromised changes are in one file. The state of all jobs must be the one after a
    first part of these changes.
    """
    unpromised = model.facts[promised:]
    if len({fact.segment for fact in unpromised}) > 1:
        return
    now = {fact.id: _begins(model, fact.id) for fact in model.facts}
    for at in range(len(model.facts) + 1):
        if at >= promised and all(_agrees(model, id, content.get(id), now[id]) for id in now):
            return
        if at < len(model.facts):
            fact = model.facts[at]
            now[fact.id] = _unique([after for before in now[fact.id] for after in _read(model, before, fact)])
    raise Violation(Kind.NO_PREFIX, f"no first part of {len(model.facts)} facts, {promised} of them promised, fits")


def _agrees(model: JobModel, id: bytes, record: JobRecord | None, states: States) -> bool:
    return record in states or (record is None and id not in model.now)


def _begins(model: JobModel, id: bytes) -> States:
    """Return the records that a job may have had at the beginning of this life. A job whose lifetime had ended may
    return if the clock is set back.
    """
    begins: States = [model.base.get(id)]
    return _unique([*begins, *model.lapsed.get(id, ())])


def _unique(states: States) -> States:
    return list(dict.fromkeys(states))


def _explained(
    model: JobModel, id: bytes, record: JobRecord | None, allowed: States, promised: int, accident: Accident
) -> Violation:
    number = number_of(id)
    may_be = ", or ".join("gone" if state is None else str(state) for state in allowed)
    is_there = "gone" if record is None else str(record)
    story = f"job {number} after a {accident.value} is {is_there}; it may be {may_be}"
    story += f" (fact {promised} of {len(model.facts)})"
    if record is None:
        return Violation(Kind.LOST, story)
    known = [state for state in allowed if state is not None]
    if not known:
        ever = id in model.base or any(True for _ in model.facts_of(id))
        return Violation(Kind.REDELIVERED if ever else Kind.INVENTED, story)
    if not record.is_over and all(state.is_over for state in known):
        return Violation(Kind.REDELIVERED, story)
    if all(record.attempts < state.attempts for state in known):
        return Violation(Kind.TWO_HOLDERS, story)
    return Violation(Kind.NO_PREFIX, story)
