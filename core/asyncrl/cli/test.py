"""`asyncrl plugins test NAME`: runs the suite of the plugin's slot, without a line of its author's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.checking import build, hint
from asyncrl.cli.children import die_with_owner, unwinding
from asyncrl.cli.plugins import matching
from asyncrl.errors import OptionError, PluginError, UserError
from asyncrl.fields import plain, words
from asyncrl.plugins import Found, discover, load
from asyncrl.run_file import Given

if TYPE_CHECKING:
    from asyncrl.testing import BaseSuite

COMMAND = "asyncrl plugins test"
ALL_PASSED, SOME_FAILED, INTERRUPTED, NOT_UNDERSTOOD, NONE_CHOSEN = 0, 1, 2, 4, 5
"""Exit codes of pytest."""
PYTEST = "import json, sys; sys.path[:], arguments = json.loads(sys.argv[1]); import pytest; sys.exit(pytest.main(arguments))"
"""Runs pytest with this process's own import path, so that it sees the same plugins."""


def run(arguments: Namespace) -> int:
    """Run the suite of each plugin that the name means; returns 0 when every rule is kept, 1 when one is broken.

    Raises:
        UserError: pytest is not installed, no such plugin is, two distributions offer it, or an option or attribute is wrong.
        PluginError: the plugin can't be loaded, or ended the process.
    """
    catalog = discover()
    plugins = matching(catalog, arguments.name, COMMAND)
    for found in plugins:
        if len([other for other in plugins if other.slot == found.slot]) > 1:
            catalog.pick(found.slot, found.name, COMMAND)  # says which distributions offer it
    if len(plugins) > 1 and (arguments.set or arguments.declare):
        choices = " or ".join(f"{found.slot}:{found.name}" for found in plugins)
        raise UserError(f"{arguments.name!r} means several plugins", origin=COMMAND, remedy=f"write {choices}")
    _need("pytest", "hypothesis")
    source = "from asyncrl.testing import SUITES\n"
    for found in plugins:
        source += suite_source(found, read_options(found, arguments.set), read_attributes(found, arguments.declare))
    with unwinding(), tempfile.TemporaryDirectory(prefix="asyncrl-suite-") as folder:
        file = Path(folder, f"test_{plugins[0].name.replace('-', '_')}.py")
        file.write_text(source, encoding="utf-8")
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        flags = ["--config-file", str(settings), "--rootdir", folder, "-p", "no:cacheprovider", "--no-header", "-v"]
        code = _pytest([*flags, *(("-k", arguments.k) if arguments.k else ()), str(file)])
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code == NOT_UNDERSTOOD and arguments.k:
        raise OptionError(f"pytest can't read {arguments.k!r}", origin=f"{COMMAND} -k", remedy="such as 'metric and not ray'")
    if code == NONE_CHOSEN:
        raise OptionError(f"no rule's name matches {arguments.k!r}", origin=f"{COMMAND} -k")
    if code < 0:
        raise PluginError(f"{plugins[0]} ended the process of its tests by signal {-code}")
    return SOME_FAILED if code else ALL_PASSED


def suite_source(found: Found, options: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    """Return the class that an author would write."""
    lines = [f"plugin = {f'{found.distribution}:{found.name}'!r}"]
    lines += [f"options = {dict(options)!r}"] if options else []
    lines += [f"{name} = {value!r}" for name, value in attributes.items()]
    title = f"Test{''.join(word.capitalize() for word in found.name.split('-'))}{found.slot.capitalize()}"
    return f"\n\nclass {title}(SUITES[{found.slot!r}]):\n" + "".join(f"    {line}\n" for line in lines)


def read_options(found: Found, written: Sequence[str]) -> dict[str, Any]:
    """Return the plugin's options among OPTION=VALUE texts, as JSON data. Raises `OptionError`; `PluginLoadError` if it can't be loaded."""
    kind = load(found)
    texts: dict[str, list[str]] = {}
    for name, value in _pairs(written, "--set"):
        texts.setdefault(name.replace("-", "_"), []).append(value)
    for name in texts:
        if name not in (known := kind.Options.model_fields):
            remedy = hint(name, known, "", otherwise=f"it has {', '.join(known)}" if known else "it has none")
            raise OptionError(f"{found} has no option {name!r}", origin="--set", remedy=remedy)
    for name, info in kind.Options.model_fields.items():
        if info.is_required() and name not in texts:
            remedy = f"--set {name}=VALUE; {words(info)}: {info.description}"
            raise OptionError(f"{found} needs its option {name!r}", origin=COMMAND, remedy=remedy)
    given = {name: Given(values, f"--set {name}", Path.cwd(), text=True) for name, values in texts.items()}
    values: dict[str, Any] = plain(build(kind.Options, given, "", str(found), {}, owner=str(found)), secrets=True)
    return {name: values[name] for name in given}


def read_attributes(found: Found, written: Sequence[str]) -> dict[str, Any]:
    """Return the suite's attributes among ATTRIBUTE=VALUE texts; a value is JSON, else text. Raises `OptionError`."""
    if not written:
        return {}
    from typing import get_args, get_type_hints

    from pydantic import TypeAdapter, ValidationError

    from asyncrl.testing import SUITES
    from asyncrl.testing.books import ORDERS

    suite = SUITES[found.slot]
    known = attributes_of(suite)
    types = get_type_hints(suite)
    values = {}
    for name, text in _pairs(written, "--declare"):
        if name not in known:
            message = f"the suite of {found.slot} has no attribute {name!r}"
            raise OptionError(message, origin="--declare", remedy=hint(name, known, "", otherwise=f"it has {', '.join(known)}"))
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        value = tuple(value) if isinstance(value, list) else value
        try:
            values[name] = TypeAdapter(get_args(types[name])[0]).validate_python(value, strict=True)
        except ValidationError as error:
            says = f"got {text!r}: {error.errors()[0]['msg'].lower()}"
            raise OptionError(says, origin=f"--declare {name}", remedy="a value is JSON, else text") from None
        if name == "order" and value not in (*ORDERS, "any"):
            raise OptionError(f"got {text!r}, wants one of {', '.join((*ORDERS, 'any'))}", origin="--declare order")
    return values


def attributes_of(suite: type[BaseSuite]) -> list[str]:
    """What the author of a plugin may set in a suite, beside the plugin and its options."""
    names = {name: None for kind in suite.__mro__ for name in vars(kind).get("__annotations__", {})}
    return [name for name in names if name not in ("slot", "plugin", "options") and not name.startswith("_")]


def _pairs(written: Sequence[str], flag: str) -> list[tuple[str, str]]:
    for text in written:
        if not text.partition("=")[0] or "=" not in text:
            raise OptionError(f"got {text!r}, wants NAME=VALUE", origin=flag)
    return [(text.partition("=")[0], text.partition("=")[2]) for text in written]


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed", origin=COMMAND, remedy="pip install 'asyncrl-core[testing]'")


def _pytest(arguments: list[str]) -> int:
    sys.stdout.flush()
    # A suite needs no plugin of pytest, some change what it does, and the flags of a project here may need one.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-P", "-c", PYTEST, json.dumps([sys.path, arguments])]
    return subprocess.run(command, env=environment, preexec_fn=die_with_owner).returncode
