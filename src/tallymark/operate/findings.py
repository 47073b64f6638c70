"""Findings of the doctor and of audits: what was found, what is wanted, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tallymark.errors import TallymarkError

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What was found, what is wanted, and what to do if they differ."""

    about: str
    check: str
    found: str
    wanted: str = ""
    verdict: Verdict = "ok"
    advice: str = ""


class Opinion(NamedTuple):
    """What a setting should be. ``fail`` or ``warn`` is the advice if it differs; both are None if it is right."""

    wanted: str
    fail: str | None = None
    warn: str | None = None


Rule = Callable[[str], Opinion]
"""Judges the value of a setting."""


def judge(
    about: str, check: str, found: object, wanted: object = "", fail: str | None = None, warn: str | None = None
) -> Finding:
    """Return a finding that fails or warns if there is advice for that, and is ok otherwise."""
    verdict: Verdict = "fail" if fail else "warn" if warn else "ok"
    return Finding(about, check, str(found), str(wanted), verdict, fail or warn or "")


def checked(
    about: str, check: str, question: Callable[[], Iterable[Finding]], *, otherwise: Verdict = "warn"
) -> list[Finding]:
    """Collect the findings of a check. An error ends only this check, and becomes a finding."""
    findings: list[Finding] = []
    try:
        for finding in question():
            findings.append(finding)
    except TallymarkError as error:
        findings.append(Finding(about, check, "not known", "an answer", otherwise, str(error)))
    return findings


def settings(about: str, found: Mapping[str, str | None], rules: Mapping[str, Rule]) -> list[Finding]:
    """Apply every rule to its setting. Managed servers may hide settings."""
    hidden = "the server does not show it; ask its administrator"
    return [
        judge(about, name, "not known", warn=hidden) if not value else judge(about, name, value, *rule(value))
        for name, rule in rules.items()
        for value in [found.get(name)]
    ]


def is_local(host: str | None) -> bool:
    """Whether the host is this machine: a loopback address, or the path of a Unix socket."""
    return not host or host in ("localhost", "::1") or host.startswith(("127.", "/"))


def line(host: str | None, encrypted: bool, advice: str) -> Finding:
    """Judge whether others can read the connection to the store."""
    open_to_all = not encrypted and not is_local(host)
    found = "yes" if encrypted else "no" if open_to_all else "no, but local"
    return judge("store", "encrypted", found, "yes", warn=advice if open_to_all else None)


def ledger(found: int | None, known: int) -> Finding:
    newer = (
        "a newer version of tallymark created it: upgrade tallymark" if found is not None and found > known else None
    )
    return judge("store", "ledger version", found or "none; the first run creates it", f"<= {known}", fail=newer)


def version(found: tuple[int, ...], oldest: tuple[int, ...]) -> Finding:
    said, wanted = (".".join(map(str, numbers)) for numbers in (found, oldest))
    return judge("store", "version", said, f">= {wanted}", fail="upgrade the server" if found < oldest else None)


def skew(about: str, before: float, theirs: float, after: float) -> Finding:
    """Judge the difference to a server's clock, which was read between two readings of the local clock."""
    off, unsure = theirs - (before + after) / 2, (after - before) / 2
    sure, advice = abs(off) - unsure, "synchronize both clocks by NTP, with chrony or systemd-timesyncd"
    found = f"{off:+.3f} s ± {unsure:.3f}"
    fail, warn = (advice if sure > limit else None for limit in (60, 1))
    return judge(about, "clock skew", found, "within 1 s", fail, warn)
