"""What can't be meant is refused before anything starts."""

from __future__ import annotations

import sys

import pytest
from asyncrl import OptionError, RunFacts
from asyncrl_sglang_eval import SGLang, SGLangOptions

RUN = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=1)


def check(**options: object) -> None:
    SGLang(SGLangOptions(**options), RUN).check_run(RUN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:1", "http://", "http://:30000", "http://a b", "http://a:99999", "http://a:x", "http://a:0", "http://a/x?y=1"],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="is no address of a server") as refused:
        check(url=(url,))
    assert refused.value.origin == "eval.url"


@pytest.mark.parametrize(
    "url", ["http://10.0.0.7:30000", "https://evals.example", "http://[::1]:8000", "http://gateway/engine-3/"]
)
def test_any_address_of_a_server_will_do(url: str) -> None:
    check(url=(url,))


def test_one_server_is_named_once() -> None:
    with pytest.raises(OptionError, match="named twice"):
        check(url=("http://a:1", "http://a:1/"))


def test_to_attach_and_to_launch_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="devices and port would launch one") as refused:
        check(url=("http://a:1",), devices="0", port=30000)
    assert refused.value.origin == "eval.url, eval.devices, eval.port"


def test_an_interpreter_that_is_none_is_refused() -> None:
    check(python=sys.executable)
    with pytest.raises(OptionError, match="no program that can be run") as refused:
        check(python="/nowhere/bin/python")
    assert refused.value.origin == "eval.python"
