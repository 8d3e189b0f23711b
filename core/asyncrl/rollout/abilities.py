"""What a server can do, as it tells itself: SGLang's API grew over the years, and old servers must neither be broken nor trusted too far.

Servers list their endpoints and the fields of their requests at ``/openapi.json``; one that lists none is taken for a current one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Abilities:
    """What one server can do.

    Attributes:
        info_path: where it tells its weight version.
        loads: whether it tells how many requests run and wait.
        pauses: whether a pause keeps what is in flight (else it aborts everything, and updates wait for what runs instead).
        begin_end: whether updates go between `/begin_weight_update` and `/end_weight_update`; None where it does not say.
        packed: whether it takes a bucket of weights as one tensor (`load_format`); None where it does not say.
        labels: whether the version's label can be set without an update.
        checksums: whether it tells checksums of its weights.
        leaves_groups: whether it can leave a weight group.
        cache_keys: whether a request can be kept from prefixes that were cached under another key.
    """

    info_path: str = "/model_info"
    loads: bool = True
    pauses: bool = True
    begin_end: bool | None = None
    packed: bool | None = None
    labels: bool = True
    checksums: bool = True
    leaves_groups: bool = True
    cache_keys: bool = False


CURRENT = Abilities()
"""A server that lists no endpoints."""


def read_abilities(api: Mapping[str, Any]) -> Abilities:
    """Return what the content of ``/openapi.json`` says."""
    paths, schemas = api["paths"], api.get("components", {}).get("schemas", {})

    def has(schema: str, field: str) -> bool:
        return field in schemas.get(schema, {}).get("properties", {})

    return Abilities(
        info_path=next((path for path in ("/model_info", "/get_model_info") if path in paths), "/model_info"),
        loads="/v1/loads" in paths,
        pauses=has("PauseGenerationReqInput", "mode"),
        begin_end="/begin_weight_update" in paths,
        packed=has("UpdateWeightsFromDistributedReqInput", "load_format"),
        labels="/update_weight_version" in paths,
        checksums="/weights_checker" in paths,
        leaves_groups="/destroy_weights_update_group" in paths,
        cache_keys=has("GenerateReqInput", "extra_key"),
    )
