"""Starts any server that speaks SGLang's native API by a command line, or attaches to servers that run already."""

from __future__ import annotations

from asyncrl import (
    Axis,
    EngineNeeds,
    EnginePlace,
    Gauge,
    MetricSet,
    OptionError,
    Plugin,
    PluginOptions,
    RunFacts,
    ServerSpec,
    checked_url,
    hookimpl,
)
from pydantic import Field

SGLANG = (
    *("python3", "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "{host}", "--port", "{port}"),
    *("--dtype", "{dtype}", "--random-seed", "{seed}"),
)


class TemplateNameOptions(PluginOptions):
    command: tuple[str, ...] = Field(
        SGLANG,
        min_length=1,
        description="Command line of one server; {model}, {host}, {port}, {dtype}, {device} and {seed} are filled in. Its first "
        "word may be the interpreter of another environment.",
    )
    urls: tuple[str, ...] = Field(
        (), description="Addresses of servers that run already, one an engine; then nothing is started."
    )
    gpus: float = Field(1.0, ge=0.0, description="GPUs that one engine occupies, where device is cuda.")
    start_timeout: float = Field(300.0, gt=0.0, description="Seconds until a server must answer.")
    same_digest: bool = Field(False, description="Whether /weights_checker answers the digest that trainers compute.")
    begin_end: bool = Field(
        False, description="Whether the server wants /begin_weight_update and /end_weight_update around updates."
    )


class TemplateNameMetrics(MetricSet):
    gpus = Gauge("GPUs that one engine occupies", unit="GPUs", axis=Axis.WALL_SECONDS)


class TemplateName(Plugin):
    """Only describes its servers: core starts, watches and ends them, and talks to them."""

    hook_api = 1
    Options = TemplateNameOptions
    Metrics = TemplateNameMetrics
    options: TemplateNameOptions
    metrics: TemplateNameMetrics

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        for url in self.options.urls:
            checked_url(url, "engine.urls")
        if self.options.urls and len(self.options.urls) != run.num_engines:
            message = f"there are {len(self.options.urls)} addresses for {run.num_engines} engines"
            raise OptionError(message, origin="engine.urls, num_engines", remedy="write one address an engine")

    @hookimpl
    def engine_needs(self) -> EngineNeeds:
        occupies = self.options.gpus if self.run.device.startswith("cuda") and not self.options.urls else 0.0
        self.metrics.gpus.set(occupies)
        return EngineNeeds(gpus=occupies)

    @hookimpl
    def engine_server(self, place: EnginePlace) -> ServerSpec:
        options = self.options
        attach = bool(options.urls)
        return ServerSpec(
            argv=() if attach else tuple(filled(word, place) for word in options.command),
            url=options.urls[place.index] if attach else f"http://{place.host}:{place.port}",
            start_timeout=options.start_timeout,
            comparable_digest=options.same_digest,
            needs_begin_end=options.begin_end,
            drops_stale_prefixes=False,
        )


def filled(word: str, place: EnginePlace) -> str:
    """Return a word of the command line with what is known of the place in it."""
    for name in ("model", "host", "port", "dtype", "device", "seed"):
        word = word.replace(f"{{{name}}}", str(getattr(place, name)))
    return word
