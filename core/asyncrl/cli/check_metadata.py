"""What metadata alone tells of installed plugins: names offered twice, stray groups, wrong versions, sources that have changed."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from asyncrl.plugins import Catalog, normalized

Said = tuple[str, str, str]
"""(kind, distribution or '', message)"""


def look(catalog: Catalog) -> Iterator[Said]:
    """Everything that is wrong with the metadata of the plugins of `catalog`; imports none of them."""
    yield from (("duplicate", "", text) for text in catalog.ambiguous().values())
    yield from (("stray", "", stray) for stray in catalog.strays)
    names = dict.fromkeys(found.distribution for found in catalog.plugins)
    leftovers = _leftovers({normalized(name) for name in names})
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            offers = ", ".join(f"{found.slot}:{found.name}" for found in catalog.plugins if found.distribution == name)
            yield "stray", name, f"the metadata that offers {offers} has no name, or another one than its folder"
            continue
        yield from ((kind, name, text) for kind, text in requirements(distribution))
        if versions := leftovers.get(normalized(name)):
            text = f"{name} left the metadata of another version behind: {' and '.join(versions)} (pip uninstall it, then install it)"
            yield "stale", name, text
        else:
            yield from (("stale", name, f"{name} {distribution.version} {text}") for text in stale(distribution))


def requirements(distribution: metadata.Distribution) -> Iterator[tuple[str, str]]:
    """What a distribution asks of asyncrl-core, if another version is installed; and what can't be read of what it asks."""
    from packaging.requirements import InvalidRequirement, Requirement

    have = metadata.version("asyncrl-core")
    for line in distribution.requires or ():
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            yield "stray", f"{distribution.name} {distribution.version} requires {line!r}, which can't be read"
            continue
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if applies and normalized(wanted.name) == "asyncrl-core" and not wanted.specifier.contains(have, prereleases=True):
            text = f"{distribution.name} {distribution.version} needs {wanted}, and asyncrl-core {have} is installed"
            yield "incompatible", text


# Stale --------------------------------------------------------------------------------------------------------------------


def stale(distribution: metadata.Distribution) -> Iterator[str]:
    """How a distribution that was installed from a folder differs from what is in that folder now, as the end of a sentence."""
    source, editable = _source(distribution)
    if source is None:
        return
    again = f"pip install {'--editable ' if editable else ''}{source}"
    if not source.is_dir():
        yield f"was installed from {source}, which is gone (pip uninstall {distribution.name})"
        return
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except FileNotFoundError:
        return
    except (OSError, ValueError) as cause:
        yield f"was installed from {source}, whose pyproject.toml can't be read any more: {cause}"
        return
    if "name" not in project:  # whoever builds it says what it is in another place
        return
    changes = [*_other_words(distribution, project), *_other_needs(distribution, project)]
    changes += _other_entry_points(distribution, project)
    if not editable:
        changes += _other_files(distribution, source)
    if changes:
        yield f"is not what its source has now: {'; '.join(changes)} ({again})"


def _source(distribution: metadata.Distribution) -> tuple[Path | None, bool]:
    """The folder from which it was installed and whether its code is read there; None if it came from elsewhere."""
    text = distribution.read_text("direct_url.json")
    if text is None:
        folder = Path(str(distribution.locate_file("")))  # of an egg-info in the source itself
        is_source = distribution.read_text("PKG-INFO") is not None and (folder / "pyproject.toml").is_file()
        return (folder, True) if is_source else (None, False)
    try:
        origin = json.loads(text)
        url = urlparse(origin["url"])
        if url.scheme != "file" or "dir_info" not in origin:
            return None, False
        return Path(unquote(url.path)), bool(origin["dir_info"].get("editable"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, False


def _other_words(distribution: metadata.Distribution, project: dict[str, Any]) -> Iterator[str]:
    """Name, version and description, of which the last two may be left to the builder."""
    from packaging.version import InvalidVersion, Version

    name, version, summary = project["name"], project.get("version"), project.get("description")
    if normalized(str(name)) != normalized(distribution.name):
        yield f"its name there is {name}"
    try:
        if isinstance(version, str) and Version(version) != Version(distribution.version):
            yield f"its version there is {version}"
    except InvalidVersion:
        yield f"its version there is {version!r}, which is none"
    here = distribution.metadata["Summary"]
    if "description" not in project.get("dynamic", ()) and (summary or "").split() != (here or "").split():
        yield f"its description there is {summary!r}" if summary else "it has no description there"


def _other_needs(distribution: metadata.Distribution, project: dict[str, Any]) -> Iterator[str]:
    """What it requires of Python and of other distributions; what can't be read is told elsewhere."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    dynamic = project.get("dynamic", ())
    with contextlib.suppress(InvalidRequirement, InvalidSpecifier, AttributeError, TypeError):
        python = project.get("requires-python")
        if python and SpecifierSet(python) != SpecifierSet(distribution.metadata["Requires-Python"] or ""):
            yield f"there it needs Python {python}"
        if "dependencies" not in dynamic:
            there = {str(Requirement(line)) for line in project.get("dependencies", ())}
            here = {str(one) for one in map(Requirement, distribution.requires or ()) if "extra ==" not in str(one.marker)}
            yield from (f"there it needs {one} too" for one in sorted(there - here))
            yield from (f"there it does not need {one}" for one in sorted(here - there))


def _other_entry_points(distribution: metadata.Distribution, project: dict[str, Any]) -> Iterator[str]:
    if "entry-points" in project.get("dynamic", ()):
        return
    groups = {group: table for group, table in project.get("entry-points", {}).items() if group.startswith("asyncrl.")}
    there = {(group, name): target for group, table in groups.items() for name, target in table.items()}
    here = {(one.group, one.name): one.value for one in distribution.entry_points if one.group.startswith("asyncrl.")}
    for group, name in sorted(there.keys() - here.keys()):
        yield f"{name!r} in {group} is not installed"
    for group, name in sorted(here.keys() - there.keys()):
        yield f"{name!r} in {group} is there no more"
    for group, name in sorted(there.keys() & here.keys()):
        if _bare(there[group, name]) != _bare(here[group, name]):
            yield f"{name!r} in {group} is {there[group, name]} there, {here[group, name]} here"


def _bare(target: str) -> str:
    return "".join(target.split())


def _other_files(distribution: metadata.Distribution, source: Path) -> Iterator[str]:
    """Python files that were copied from the source, and are others there now."""
    for file in distribution.files or ():
        copies = [folder / file for folder in (source, source / "src") if (folder / file).is_file()]
        if file.suffix == ".py" and ".." not in file.parts and copies:
            installed = Path(str(distribution.locate_file(file)))
            if installed.is_file() and installed.read_bytes() != copies[0].read_bytes():
                yield f"{file} has changed"


def _leftovers(names: set[str]) -> dict[str, list[str]]:
    """Versions of those distributions that have several sets of metadata in one folder: only the first of them is ever seen."""
    versions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for distribution in metadata.distributions():
        about = distribution.metadata
        name = normalized((about and about["Name"]) or "")
        if name in names:
            versions[str(distribution.locate_file("")), name].append(about["Version"])
    return {name: found for (_, name), found in versions.items() if len(set(found)) > 1}
