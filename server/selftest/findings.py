"""The results of checks, and their consequence for the sync policy."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

UNTRIED = "crashes"


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    FAIL = "fail"


class CheckResult(Struct, frozen=True):
    """A line of the report. `text` has the result and its meaning, `advice` what to do about it. `breaks_syncs`: syncs
    are not reliable; everything else may be sound.
    """

    name: str
    verdict: Verdict
    text: str
    advice: str = ""
    breaks_syncs: bool = False


def ok(name: str, text: str) -> CheckResult:
    return CheckResult(name, Verdict.OK, text)


def warning(name: str, text: str, advice: str, *, breaks_syncs: bool = False) -> CheckResult:
    return CheckResult(name, Verdict.WARNING, text, advice, breaks_syncs)


def fail(name: str, text: str, advice: str, *, breaks_syncs: bool = False) -> CheckResult:
    return CheckResult(name, Verdict.FAIL, text, advice, breaks_syncs)


def conclusion(found: list[CheckResult]) -> str:
    """Return the last line: the `sync_journal` policies that the folder suits."""
    failed = [each for each in found if each.verdict is Verdict.FAIL]
    names = dict.fromkeys(each.name for each in failed if not each.breaks_syncs)
    if names:
        return f"not fit for a spool: {', '.join(names)}"
    if any(each.name == UNTRIED for each in found):
        return f"{_fitness(found)}; no crash was tried, for lack of room"
    return _fitness(found)


def _fitness(found: list[CheckResult]) -> str:
    if any(each.verdict is Verdict.FAIL for each in found):
        return 'fit for sync_journal = "os" alone: what was answered may be gone after a power cut'
    if any(each.breaks_syncs for each in found):
        return 'fit for sync_journal = "os" alone: what was answered is gone after a restart of the machine'
    if any(each.name == "sync" and each.verdict is Verdict.WARNING for each in found):
        return "fit for every sync_journal as far as can be seen from here; look at the warning about syncs"
    return 'fit for every sync_journal, "always" too, if the disk does not lie about its cache'
