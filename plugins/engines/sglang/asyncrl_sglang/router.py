"""SGLang's router in front of the engines: what it is started with. Which engines are behind it, retries and health stay asyncrl's."""

from __future__ import annotations

import math
from collections.abc import Mapping

from asyncrl import FrontPlace, FrontSpec
from asyncrl.errors import OptionError, ResourceError

from asyncrl_sglang.flags import ServerArgs, told_by, words

START_SECONDS = 180.0  # it imports all of SGLang
MARGIN_SECONDS = 60.0
OURS = (
    *("host", "port", "worker-urls", "request-timeout-secs", "prometheus-port", "prometheus-host", "service-discovery"),
    *("disable-retries", "retry-max-retries", "disable-circuit-breaker", "cb-failure-threshold", "disable-health-check"),
    *("pd-disaggregation", "prefill", "decode", "mini-lb", "enable-igw", "dp-aware"),
)
"""Flags on which asyncrl relies."""

_FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang_router') is None)"


def check_router(python: str, arguments: Mapping[str, object]) -> None:
    """Refuse a router that can't be started.

    Raises:
        ResourceError: the interpreter has none.
        OptionError: a flag on which asyncrl relies.
    """
    for name in arguments:
        flag = name.replace("_", "-").lstrip("-")
        if flag in OURS:
            raise OptionError(f"--{flag} is asyncrl's to set", origin="engine.router_args", remedy="leave it out")
    if told_by(python, _FIND) is None:
        raise ResourceError(
            f"{python} has no sglang-router",
            origin="engine.router",
            remedy=f"{python} -m pip install sglang-router, or leave engine.router empty",
        )


def router(python: str, arguments: Mapping[str, object], place: FrontPlace) -> FrontSpec:
    """Return how the router is started.

    A group keeps to the engine that had the fewest requests when it came. The router leaves engines in, however long they answer
    nothing: one that is paused for a publication fails health checks, and its requests wait for it.
    """
    given: ServerArgs = {name.replace("_", "-"): value for name, value in arguments.items()}  # type: ignore[misc]
    flags: ServerArgs = {
        "host": place.host,
        "port": place.port,
        "prometheus-host": place.host,
        "prometheus-port": place.spare_port,
        "policy": "manual",
        "assignment-mode": "min_load",
        "max-idle-secs": 600,
        "disable-retries": True,
        "disable-circuit-breaker": True,
        "disable-health-check": True,
        "request-timeout-secs": math.ceil(place.request_timeout + MARGIN_SECONDS),
        "worker-startup-timeout-secs": 60,
        "shutdown-grace-period-secs": 1,
        "log-level": "warn",
        **given,
    }
    return FrontSpec(
        argv=(python, "-m", "sglang_router.launch_router", *words(flags)),
        url=f"http://{place.host}:{place.port}",
        env={"HF_HUB_OFFLINE": "1"},  # it would look for the model's tokenizer
        start_timeout=START_SECONDS,
    )
