"""A secret among a plugin's options never gets into what is shown, logged or sent: whoever quotes it, and however."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from asyncrl import Group, Plugin, PluginOptions, Prompt, RunFacts, TrainerError, Verdict, hookimpl
from asyncrl.authoring import BufferOptions
from asyncrl.errors import AsyncrlError, PluginFailed
from asyncrl.host import Active, Host
from asyncrl.options import resolve
from asyncrl.plugins import discover
from asyncrl.scrub import MASK, hide, secrets_in, secrets_of
from fake_distributions import BUFFER_HOOKS, install, install_toys
from pydantic import BaseModel, Field, SecretBytes, SecretStr

RUN = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1)
GROUP = Group(Prompt(3, np.zeros(1, np.int32)), ())
SECRET = "hunter2-hunter2"


class Account(BaseModel):
    user: str = "me"
    password: SecretStr = SecretStr("")


class Options(PluginOptions):
    token: SecretStr = Field(SecretStr(""), description="A key.")
    keys: list[SecretStr] = Field([], description="Keys.")
    by_host: dict[str, SecretBytes] = Field({}, description="Keys by host.")
    account: Account = Field(Account(), description="An account.")
    accounts: list[Account] | None = Field(None, description="Accounts.")
    bounded: Annotated[SecretStr, Field(min_length=0)] = Field(SecretStr(""), description="A key.")
    place: str = Field("", description="No secret.")


class Quotes(Plugin):
    Options = Options

    @hookimpl
    def judge_staleness(self, version: int) -> Verdict:
        secret = self.options.token.get_secret_value()
        raise TrainerError(f"{secret} is refused") if version else ValueError(f"{secret} is refused")

    @hookimpl
    def on_group_ended(self) -> None:
        raise ValueError(f"{self.options.token.get_secret_value()} is refused")


def host() -> Host:
    return Host([Active("staleness", "quotes", "dist", "1.0", Quotes(Options(token=SECRET), RUN))])


def test_secrets_are_found_wherever_options_may_hold_them() -> None:
    options = Options(
        token="secret-1",
        keys=["secret-2"],
        by_host={"here": b"secret-3"},
        account=Account(password="secret-4"),
        accounts=[Account(password="secret-5")],
        bounded="secret-6",
        place="public",
    )
    assert sorted(secrets_of(options)) == [f"secret-{number}" for number in range(1, 7)]
    assert sorted(secrets_in(Options, {"token": "secret-1", "keys": "secret-2", "place": "public", "unknown": 3})) == [
        "secret-1",
        "secret-2",
    ]


def test_one_secret_inside_another_leaves_no_rest_and_a_very_short_one_mangles_nothing() -> None:
    options = Options(token="abcd", keys=["abcdefgh", "e", ""])
    assert hide("see abcdefgh, abcd, e", secrets_of(options)) == f"see {MASK}, {MASK}, e"


@pytest.mark.parametrize("version", [0, 1], ids=["an exception", "an error of asyncrl's own"])
def test_a_failing_slot_hook_shows_no_secret_also_not_in_its_causes(version: int) -> None:
    with pytest.raises(AsyncrlError, match=r"\*{10} is refused") as caught:
        host().one("judge_staleness")(group=GROUP, version=version)
    assert isinstance(caught.value, PluginFailed if version == 0 else TrainerError)
    logged = "".join(traceback.format_exception(caught.value))
    assert SECRET not in f"{logged}{getattr(caught.value, 'detail', '')}{caught.value.args}"
    assert "judge_staleness" in getattr(caught.value, "detail", "judge_staleness")


def test_a_failing_observer_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncrl"):
        host().observe("on_group_ended", prompt_id=0, fate="trained", tokens=0)
    assert SECRET not in caplog.text
    assert f"{MASK} is refused" in caplog.text


SOURCE = (
    """
from asyncrl import *
from pydantic import Field, SecretStr, field_validator, model_validator
class Mine(Plugin):
    class Options(BufferOptions):
        token: SecretStr = Field(min_length=4, description='A key.')
        @field_validator('token', mode='before')
        @classmethod
        def _known(cls, value):
            if 'quoted' in value:
                raise ValueError(f'no service takes {value}')
            return value
        @model_validator(mode='before')
        @classmethod
        def _all(cls, values):
            if 'everything' in str(values):
                raise ValueError(f'can not use {values}')
            return values
"""
    + BUFFER_HOOKS
)


@pytest.mark.parametrize("secret", ["quoted-hunter2", "everything-hunter2", "abc", "[1, 2]"])
@pytest.mark.parametrize("written", ["flag", "file"])
def test_an_option_that_is_refused_shows_no_secret(
    secret: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(tmp_path)
    install(tmp_path, "dist-mine", {"asyncrl.buffers": {"mine": "secretive:Mine"}}, modules={"secretive": SOURCE})
    (tmp_path / "run.toml").write_text(f'[buffer]\nname = "mine"\ntoken = "{secret}"\n')
    flags = ["--buffer", "mine", "--buffer.token", secret]
    arguments = flags if written == "flag" else [str(tmp_path / "run.toml")]
    if secret == "[1, 2]":
        assert secret not in repr(resolve(None, arguments, discover([str(tmp_path)])))
        return
    with pytest.raises(AsyncrlError) as caught:
        resolve(None, arguments, discover([str(tmp_path)]))
    assert secret not in "".join(traceback.format_exception(caught.value))
    assert "token" in str(caught.value)


def test_the_base_options_hold_no_secret() -> None:
    assert secrets_of(BufferOptions()) == ()
