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


def conclusion(results: list[CheckResult]) -> str:
    """Return the last line: the `sync_journal` policies that the folder suits."""
    failed = [result for result in results if result.verdict is Verdict.FAIL]
    names = dict.fromkeys(result.name for result in failed if not result.breaks_syncs)
    if names:
        return f"not fit for a spool: {', '.join(names)}"
    if any(result.name == UNTRIED for result in results):
        return f"{_fitness(results)}; no crash was tried, for lack of room"
    return _fitness(results)


def _fitness(results: list[CheckResult]) -> str:
    if any(result.verdict is Verdict.FAIL for result in results):
        return 'fit for sync_journal = "os" alone: a power cut may lose acknowledged changes'
    if any(result.breaks_syncs for result in results):
        return 'fit for sync_journal = "os" alone: acknowledged changes are lost when the machine restarts'
    if any(result.name == "sync" and result.verdict is Verdict.WARNING for result in results):
        return "fit for every sync_journal as far as can be seen from here; look at the warning about syncs"
    return 'fit for every sync_journal, "always" too, if the disk does not lie about its cache'
