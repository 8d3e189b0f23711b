"""Rules on a plugin's options: what a file or a flag says is what the plugin gets, and what is wrong is refused."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from asyncrl.authoring import PluginOptions
from asyncrl.errors import AsyncrlError
from asyncrl.fields import plain
from asyncrl.testing.reach import Reach
from asyncrl.testing.ready import Ready
from asyncrl.testing.rules import expect


class OptionRules(Reach):
    def test_its_options_survive_toml_and_json(self) -> None:
        """What is written as TOML (a run's directory) or JSON (another process) and read again is equal, for every choice."""
        import tomli_w

        one = self.ready()
        for given in self._settings(one):
            options = one.options(given)
            values = plain(options, secrets=True)
            text = tomli_w.dumps(_without_none(values))
            for how, read in (("TOML", tomllib.loads(text)), ("JSON", json.loads(json.dumps(values)))):
                again = _outcome(one, read)
                expect(
                    again == options,
                    promised=f"options that are written as {how} and read again are the same options",
                    happened=lambda how=how, again=again, options=options: f"{options!r} came back from {how} as {again!r}",  # type: ignore[misc]
                    fix="use types that TOML and JSON know (numbers, texts, lists, tables, paths, enums), and validators that leave "
                    "an accepted value as it is",
                )

    def test_its_options_keep_their_bounds(self) -> None:
        """A value one step outside of a declared bound, or none of the declared choices, is refused."""
        one = self.ready()
        for name, value, bound in outside_of(one.kind.Options):
            answer = _outcome(one, {**self.options, name: value})
            expect(
                isinstance(answer, str),
                promised=f"the option {name!r} has the bound {bound}",
                happened=f"{value!r} was accepted, and gave {answer!r}",
                fix="let pydantic check the bound: no validator may correct or accept what the declaration rules out",
            )

    def test_every_option_has_a_help_text(self) -> None:
        """Every field has a description, those of tables within the options too."""
        bare = list(_undescribed(self.ready().kind.Options))
        expect(
            not bare,
            promised="every option says what it does, in --help and in the reference",
            happened=f"these say nothing: {', '.join(bare)}",
            fix='give each a Field(…, description="…")',
        )

    def test_unknown_options_are_refused(self) -> None:
        """A misspelled option is an error, never ignored."""
        answer = _outcome(self.ready(), {**self.options, "no_such_option": 1}, direct=True)
        expect(
            isinstance(answer, str),
            promised="a key that is no option is refused",
            happened=f"no_such_option = 1 was accepted: {answer!r}",
            fix="derive Options from asyncrl.PluginOptions and take nothing out of the values before pydantic sees them",
        )

    def test_its_options_are_frozen(self) -> None:
        """Options can't be changed once they are checked."""
        options = self._options()
        for name in type(options).model_fields:
            try:
                setattr(options, name, getattr(options, name))
            except (ValidationError, AttributeError, TypeError):
                continue
            expect(
                False,
                promised="checked options can't be changed any more",
                happened=f"options.{name} = … was accepted",
                fix="derive Options from asyncrl.PluginOptions, and keep what changes in the plugin",
            )

    def _options(self) -> PluginOptions:
        try:
            return self.ready().options(self.options)
        except AsyncrlError as error:
            pytest.skip(f"test_its_options_build_it fails: {error}")

    def _settings(self, one: Ready) -> list[Mapping[str, Any]]:
        """The suite's options and variants, and those that differ from it in one choice or switch, as far as they are valid."""
        self._options()
        found: list[Mapping[str, Any]] = [self.options]
        for name, info in one.kind.Options.model_fields.items():
            choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
            found += [
                {**self.options, name: choice} for choice in (choices or ((True, False) if info.annotation is bool else ()))
            ]
        return [given for given in [*found, *self.variants] if not isinstance(_outcome(one, given), str)]


def outside_of(kind: type[BaseModel]) -> Iterator[tuple[str, Any, str]]:
    """Yield (option, value just outside, bound) for every bound that a model declares on a plain number, text or choice."""
    try:
        properties = kind.model_json_schema()["properties"]
    except (KeyError, TypeError, ValueError):
        return
    for name, schema in properties.items():
        kinds = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
        if len(kinds) == 1:
            yield from ((name, value, bound) for value, bound in _outside({**schema, **kinds[0]}))


def _outside(schema: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    whole = schema.get("type") == "integer"
    if (low := schema.get("minimum")) is not None:
        yield (low - 1 if whole else math.nextafter(low, -math.inf)), f">= {low}"
    if (low := schema.get("exclusiveMinimum")) is not None:
        yield low, f"> {low}"
    if (high := schema.get("maximum")) is not None:
        yield (high + 1 if whole else math.nextafter(high, math.inf)), f"<= {high}"
    if (high := schema.get("exclusiveMaximum")) is not None:
        yield high, f"< {high}"
    if schema.get("type") == "string":
        if low := schema.get("minLength"):
            yield "x" * (low - 1), f"length >= {low}"
        if (high := schema.get("maxLength")) is not None:
            yield "x" * (high + 1), f"length <= {high}"
    if choices := schema.get("enum"):
        yield "none of these", f"one of {', '.join(map(str, choices))}"


def _outcome(one: Ready, given: Mapping[str, Any], *, direct: bool = False) -> PluginOptions | str:
    """Return the options that values give, or the refusal in words."""
    try:
        if direct:
            return one.kind.Options.model_validate_json(json.dumps(plain(given, secrets=True)), strict=True)
        return one.options(given)
    except (AsyncrlError, ValidationError) as error:
        return str(error)


def _undescribed(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in kind.model_fields.items():
        if not (info.description or "").strip():
            yield prefix + name
        for part in (info.annotation, *get_args(info.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _undescribed(part, f"{prefix}{name}.")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
