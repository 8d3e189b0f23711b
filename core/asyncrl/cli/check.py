"""`asyncrl plugins check`: imports each installed plugin in a process of its own, and compares metadata with sources."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asyncrl.cli.check_metadata import look
from asyncrl.cli.children import die_with_owner, unwinding
from asyncrl.cli.plugins import matching
from asyncrl.plugins import Catalog, Found, discover

COMMAND = "asyncrl plugins check"
NOT_WELL = 3
"""Exit code when there is any finding but notes."""
KINDS = {
    "broken": "can't be imported or made within the time limit, or is no plugin of its slot",
    "incompatible": "was written for another hook API, or needs another asyncrl-core",
    "duplicate": "a name of a slot that several distributions offer",
    "stale": "its metadata, or its code, is not what the folder has from which it was installed",
    "stray": "metadata that can't be read, or an entry point in a group that is no slot's",
    "note": "may be as it should be: no reason for another exit code",
}
"""What is found, and what it means."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. `detail` is a traceback, or ''."""

    kind: str
    distribution: str
    message: str
    detail: str = ""


@dataclass(frozen=True)
class Looked:
    """A plugin whose process has answered, or was ended: what was found, and the seconds that its import took."""

    found: Found
    findings: tuple[Finding, ...]
    seconds: float


def run(arguments: Namespace) -> int:
    """Print what was found; returns 0 when all is well, else 3."""
    catalog = chosen(discover(), arguments.names)
    with unwinding():
        looked = asyncio.run(look_at_all(catalog.plugins, arguments.timeout, arguments.jobs))
    findings = in_order([finding for one in looked for finding in one.findings], catalog)
    if arguments.json:
        print(json.dumps(as_json(looked, findings), indent=2))
    else:
        print(as_text(looked, findings))
    return NOT_WELL if any(finding.kind != "note" for finding in findings) else 0


def chosen(catalog: Catalog, names: Sequence[str]) -> Catalog:
    """Return the part of a catalog that is meant; all of it, with its strays, without names. Raises `UnknownPlugin`."""
    if not names:
        return catalog
    wanted = {found for name in names for found in matching(catalog, name, COMMAND)}
    return Catalog(tuple(found for found in catalog.plugins if found in wanted))


def in_order(of_imports: Sequence[Finding], catalog: Catalog) -> list[Finding]:
    """Return all findings, those of the metadata too, in the order of `KINDS`."""
    findings = [*of_imports, *(Finding(*said) for said in look(catalog))]
    return sorted(findings, key=lambda finding: list(KINDS).index(finding.kind))


async def look_at_all(plugins: Sequence[Found], timeout: float, jobs: int) -> list[Looked]:
    """Import each plugin in a process of its own, at most `jobs` at a time, each for at most `timeout` seconds."""
    slots = asyncio.Semaphore(jobs)

    async def one(found: Found) -> Looked:
        async with slots:
            return await look_at(found, timeout)

    return await asyncio.gather(*map(one, plugins))


async def look_at(found: Found, timeout: float) -> Looked:
    """Import one plugin in a process of its own, which is gone afterwards with all that it started."""
    began = asyncio.get_running_loop().time()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "asyncrl.cli.check_one"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_owner,
    )
    try:
        job = json.dumps({"path": sys.path, "found": asdict(found)}).encode()
        out, err = await asyncio.wait_for(process.communicate(job), timeout)
    except TimeoutError:
        finding = Finding(
            "broken", found.distribution, f"{found} can't be loaded: importing or making it did not end within {timeout:g} s"
        )
        return Looked(found, (finding,), asyncio.get_running_loop().time() - began)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    try:
        answer = json.loads(out)
    except ValueError:
        code = process.returncode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        message = f"{found} can't be loaded: importing or making it ended its process with {how}"
        return Looked(found, (Finding("broken", found.distribution, message, err.decode(errors="replace")),), 0.0)
    return Looked(found, _findings(found, answer), answer["seconds"])


def _findings(found: Found, answer: dict[str, Any]) -> tuple[Finding, ...]:
    if answer["kind"]:
        return (Finding(answer["kind"], found.distribution, answer["message"], answer["detail"]),)
    return tuple(Finding("note", found.distribution, f"{found}: {doubt}") for doubt in answer["doubts"])


def as_text(looked: Sequence[Looked], findings: Sequence[Finding]) -> str:
    """One line a finding, and one about all."""
    distributions = {one.found.distribution for one in looked}
    lines = [f"{finding.kind}: {finding.message}" for finding in findings]
    counts = [f"{number} {kind}" for kind in KINDS if (number := sum(finding.kind == kind for finding in findings))]
    checked = f"{len(looked)} plugins of {len(distributions)} distributions"
    hint = "; asyncrl plugins info NAME shows the traceback" if any(finding.detail for finding in findings) else ""
    return "\n".join([*lines, f"{checked}: {', '.join(counts) or 'all is well'}{hint}"])


def as_json(looked: Sequence[Looked], findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "plugins": [{**asdict(one.found), "import_seconds": one.seconds} for one in looked],
        "findings": [asdict(finding) for finding in findings],
    }
