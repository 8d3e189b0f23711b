"""`asyncrl plugins new SLOT NAME`: a distribution with a plugin that works and passes the tests of its slot as it stands."""

from __future__ import annotations

import difflib
import keyword
import re
import unicodedata
from argparse import Namespace
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from asyncrl import __version__
from asyncrl.errors import OptionError, ResourceError
from asyncrl.plugins import SLOTS, Catalog, discover, normalized

COMMAND = "asyncrl plugins new"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Sketch:
    """What a slot's template (`asyncrl/templates/SLOT.py`) has beside its code.

    `example` is one of its options with another value than the default; `needs` are dependencies beside asyncrl-core; `declares` is
    what its test promises the suite.
    """

    example: str
    needs: tuple[str, ...] = ()
    declares: str = ""


SKETCHES: dict[str, Sketch] = {
    "task": Sketch("digits 3"),
    "producer": Sketch("tries 3"),
    "scheduler": Sketch("batches-ahead 1.5"),
    "buffer": Sketch("capacity-factor 3", declares=" --declare order=freshest --declare evicts=true"),
    "filters": Sketch("max-truncated 0.25"),
    "staleness": Sketch("max-gap 4"),
    "engine": Sketch("start-timeout 600"),
    "trainer": Sketch("learning-rate 1e-5", ("safetensors>=0.4", "torch>=2.6", "transformers>=4.56")),
    "eval": Sketch("timeout 60"),
    "loggers": Sketch("file-name all.csv"),
    "observers": Sketch("patience 50"),
}


def run(arguments: Namespace) -> int:
    """Write the distribution and say how to go on. Returns 0."""
    if not arguments.path:
        raise OptionError("got '', wants a folder", origin=f"{COMMAND} --path", remedy="the current directory is .")
    folder = write(arguments.slot, arguments.name, Path(arguments.path), discover(), force=arguments.force)
    print(f"wrote {folder}:")
    for path in sorted(folder.rglob("*.*")):
        print(f"  {path.relative_to(folder)}")
    print(
        f"next:\n  cd {folder}\n  pip install --editable '.[test]'\n  pytest\n"
        f"  asyncrl train RUN.toml --{arguments.slot} {arguments.name}"
    )
    return 0


def write(slot: str, name: str, path: Path, catalog: Catalog, *, force: bool = False) -> Path:
    """Write the distribution of a new plugin below `path` and return its folder.

    Raises:
        OptionError: there is no such slot; the name is none, or taken by a plugin of `catalog`.
        ResourceError: the folder exists already, or can't be written.
    """
    _check(slot, name, catalog, force)
    folder = path / f"asyncrl-plugin-{name}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        (folder / "tests").mkdir()
        for file, text in contents(slot, name).items():
            (folder / file).write_text(text, encoding="utf-8")
    except FileExistsError as cause:
        taken = f"{cause.filename} exists already" if path.is_dir() else f"{path} is no folder"
        raise ResourceError(taken, origin=COMMAND, remedy="choose another --path, or remove it") from None
    except OSError as cause:
        raise ResourceError(f"can't write {cause.filename}: {cause.strerror}", origin=COMMAND) from cause
    return folder


def contents(slot: str, name: str) -> dict[str, str]:
    """Return every file of the distribution of a new plugin: {path: text}."""
    templates, sketch = resources.files("asyncrl") / "templates", SKETCHES[slot]
    module = name.replace("-", "_")
    code = (templates / f"{slot}.py").read_text(encoding="utf-8")
    needs = [f"asyncrl-core>={__version__}", *sketch.needs]
    words = {
        "template-name": name,
        "template_name": module,
        "TemplateName": _class_name(slot, name, code),
        "@summary@": code.split('"""')[1].partition("\n")[0],
        "@dependencies@": ", ".join(f'"{need}"' for need in needs),
        "@group@": SLOTS[slot].group,
        "@slot@": slot,
        "@declares@": sketch.declares,
        "@example@": f"{slot}.{name}.{sketch.example}" if SLOTS[slot].many else f"{slot}.{sketch.example}",
    }
    files = {
        "pyproject.toml": (templates / "pyproject.toml.txt").read_text(encoding="utf-8"),
        "README.md": (templates / "README.md.txt").read_text(encoding="utf-8"),
        f"asyncrl_{module}.py": code,
        f"tests/test_{module}.py": (templates / f"test_{slot}.py").read_text(encoding="utf-8"),
    }
    pattern = re.compile("|".join(map(re.escape, words)))
    return {file: pattern.sub(lambda found: words[found[0]], text) for file, text in files.items()}


def _class_name(slot: str, name: str, code: str) -> str:
    """Return the name of the plugin's class; one that Python or the template's own code uses gets the slot behind it."""
    class_name = "".join(word.capitalize() for word in name.split("-"))
    if keyword.iskeyword(class_name) or re.search(rf"\b{class_name}\b", code):
        class_name += (slot.removesuffix("s") if SLOTS[slot].many else slot).capitalize()
    return class_name


def _check(slot: str, name: str, catalog: Catalog, force: bool) -> None:
    if slot not in SLOTS:
        near = difflib.get_close_matches(slot.lower(), SLOTS, n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]!r}?" if near else "; the slot comes before the name" if name in SLOTS else ""
        raise OptionError(f"there is no slot {slot!r}{hint}", origin=COMMAND, remedy=f"slots: {', '.join(SLOTS)}")
    if not NAME.fullmatch(name):
        plain = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
        better = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain).lower())
        better = better.lstrip("-0123456789").rstrip("-")
        loses = any(char.isalpha() and not char.isascii() for char in plain)
        hint = f"; did you mean {better!r}?" if NAME.fullmatch(better) and not loses else ""
        remedy = "lower-case words of the letters a to z and digits, with dashes between them"
        raise OptionError(f"{name!r} can't be a plugin's name{hint}", origin=COMMAND, remedy=remedy)
    if force:
        return
    for found in catalog.plugins:
        remedy = "choose another name, or take it with --force"
        if found.slot == slot and found.name == name:
            raise OptionError(f"the {slot} plugin {name!r} of {found.distribution} is installed", origin=COMMAND, remedy=remedy)
        if normalized(found.distribution) == f"asyncrl-plugin-{name}":
            message = f"the distribution {found.distribution}, with the {found.slot} plugin {found.name!r}, is installed"
            raise OptionError(message, origin=COMMAND, remedy=f"pip would replace it; {remedy}")
