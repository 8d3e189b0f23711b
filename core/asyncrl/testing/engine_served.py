"""Rules on an engine's running server: exact tokens, pauses that lose nothing, updates that change the weights, aborts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from asyncrl.errors import AsyncrlError, EngineError
from asyncrl.rollout.client import EngineClient
from asyncrl.rollout.engine import GenerateRequest, PauseMode
from asyncrl.rollout.loads import Load
from asyncrl.samples import Completion, SamplingParams
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.models import default_model, vocab_size
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.served import Served, served

ENDS = ("stop", "length")
LONG = 200  # tokens: long enough to be met in the middle, and within the context of any small model
NEAR_TIE = 1e-3  # log-probabilities, in nats: a batch's size changes the last digits of its sums


class ServedRules(BaseSuite):
    slot = "engine"
    model: ClassVar[str | Path] = ""
    no_server: ClassVar[str] = ""
    gone_seconds: ClassVar[float] = 20.0

    def test_its_server_starts(self, request: pytest.FixtureRequest) -> None:
        """The command line brings up a server whose /health answers within start_timeout."""
        self._require_server()
        server = self._served(request)
        expect(
            isinstance(server, Served),
            promised="the server of engine_server is healthy within its start_timeout",
            happened=str(server),
            fix="see the log; start_timeout covers loading the model",
        )

    def test_it_generates_what_is_asked_for(self, request: pytest.FixtureRequest) -> None:
        """Each of many requests at once gets its own completion: counted tokens of the vocabulary, a log-probability for each."""
        size = vocab_size(self.model_directory())

        async def rule(client: EngineClient) -> None:
            answers = await asyncio.gather(*(client.generate(_request(number, 1 + number)) for number in range(16)))
            for number, answer in enumerate(answers):
                count = len(answer.token_ids)
                expect(
                    0 < count <= 1 + number and answer.finish_reason in ENDS,
                    promised=f"a request for at most {1 + number} tokens gets 1 to {1 + number}, and ends by stop or length",
                    happened=f"it got {count}, and ended by {answer.finish_reason!r}",
                    fix="count the tokens that were generated, the stop token included, against max_new_tokens",
                )
                expect(
                    answer.finish_reason == "stop" or count == 1 + number,
                    promised="finish_reason is length only if max_new_tokens were generated",
                    happened=f"it was length after {count} of {1 + number} tokens",
                    fix="say stop where the model stopped by itself",
                )
                self._check_tokens(answer, size)

        self._ask(request, rule)

    def test_greedy_is_repeatable(self, request: pytest.FixtureRequest) -> None:
        """With temperature 0 the same prompt gets the same tokens, alone or among others."""

        async def rule(client: EngineClient) -> None:
            alone = await client.generate(_request(1, 12, temperature=0.0))
            among = await asyncio.gather(*(client.generate(_request(number, 12, temperature=0.0)) for number in range(8)))
            ways = (alone.token_ids.tolist(), among[1].token_ids.tolist())
            parted = next((place for place, pair in enumerate(zip(*ways, strict=False)) if pair[0] != pair[1]), None)
            expect(
                len(ways[0]) == len(ways[1])
                if parted is None
                else abs(alone.logprobs[parted] - among[1].logprobs[parted]) < NEAR_TIE,
                promised="temperature 0 takes the likeliest token each time; only of two that are as likely, rounding may take either",
                happened=f"alone it gave {ways[0]}, among others {ways[1]}",
                fix="take the argmax, and let no request see another one's cache",
            )

        self._ask(request, rule)

    def test_a_pause_loses_nothing(self, request: pytest.FixtureRequest) -> None:
        """In both modes: what is in flight stays in flight, what comes meanwhile is held, and all of it ends well after the pause."""

        async def rule(client: EngineClient) -> None:
            modes: tuple[PauseMode, ...] = ("retract", "in_place")
            for mode in modes:
                calls = [asyncio.ensure_future(client.generate(_request(number, 64))) for number in range(12)]
                await asyncio.sleep(0.02)
                await client.pause(mode)
                done_before = sum(call.done() for call in calls)
                calls += [asyncio.ensure_future(client.generate(_request(number, 8))) for number in range(4)]
                await asyncio.sleep(0.3)
                answered = sum(call.done() for call in calls) - done_before
                await client.resume()
                answers = await asyncio.gather(*calls)
                expect(
                    all(answer.finish_reason in ENDS for answer in answers),
                    promised=f"a pause with mode {mode} aborts nothing",
                    happened=f"finish reasons were {sorted({answer.finish_reason for answer in answers})}",
                    fix="hold the requests and go on with them at /continue_generation",
                )
                expect(
                    answered <= 12,
                    promised=f"a request that comes while the server is paused ({mode}) is held until /continue_generation",
                    happened=f"{answered} requests were answered meanwhile",
                    fix="generate nothing between /pause_generation and /continue_generation",
                )
                held = answers[12:]
                expect(
                    all(0 < len(answer.token_ids) <= 8 for answer in held),
                    promised="a request that was held is answered like any other",
                    happened=f"those held got {[len(answer.token_ids) for answer in held]} tokens",
                    fix="queue it, and begin with it at /continue_generation",
                )

        self._ask(request, rule)

    def test_an_update_from_disk_changes_the_weights(self, request: pytest.FixtureRequest) -> None:
        """The digest follows the weights there and back, the label says the version, and what is in flight gets spans of both."""

        async def rule(client: EngineClient, server: Served) -> None:
            size, before = vocab_size(server.model), await client.digest()
            version = client.version
            digests = [before]
            for weights in (server.other, server.model):
                calls = [asyncio.ensure_future(client.generate(_request(number, 48))) for number in range(8)]
                await asyncio.sleep(0.02)
                await client.pause("retract")
                version += 1
                await client.load_from_disk(weights, version, flush_cache=True)
                client.version = version
                await client.resume()
                answers = await asyncio.gather(*calls)
                digests.append(await client.digest())
                label = await client.served_version()
                expect(
                    label in (None, version),
                    promised="after an update the server's label is the version that it was given",
                    happened=f"it is {label}, given was {version}",
                    fix="answer weight_version in /model_info as /update_weights_from_disk set it",
                )
                expect(
                    await client.healthy(),
                    promised="a server that serves the version it should is healthy",
                    happened=f"after the update to version {version} it does not count as healthy",
                    fix="answer /model_info also right after an update",
                )
                for answer in answers:
                    self._check_tokens(answer, size)
                    versions = [each for each, _ in answer.spans]
                    expect(
                        answer.finish_reason in ENDS and versions == sorted(versions) and set(versions) <= {version - 1, version},
                        promised=f"a request in flight over the update to version {version} ends well, with tokens of {version - 1}, "
                        f"then of {version}",
                        happened=f"it ended by {answer.finish_reason!r} with spans {answer.spans}",
                        fix="abort nothing for an update, and report each token under the version that generated it",
                    )
            expect(
                digests[0] != digests[1] and digests[0] == digests[2],
                promised="the digest tells one set of weights from another, and is the same for the same weights",
                happened=f"at the start it was {digests[0]}, after an update to other weights {digests[1]}, and back {digests[2]}",
                fix="compute /weights_checker from the weights that are served, each time",
            )

        self._ask_server(request, rule)

    def test_a_request_that_is_given_up_frees_its_place(self, request: pytest.FixtureRequest) -> None:
        """A cancelled request is aborted at the server, `abort_all` ends the others with what they have, and new ones are served."""

        async def rule(client: EngineClient) -> None:
            calls = [asyncio.ensure_future(client.generate(_request(number, LONG, ignore_eos=True))) for number in range(6)]
            await _until_running(client, len(calls))
            await client.pause("in_place")  # so that none of them can end by itself from now on
            for call in calls[:3]:
                call.cancel()
            await asyncio.wait(calls[:3])
            await client.close()
            rest = [call for call in calls[3:] if not call.done()]
            if not rest:
                pytest.skip(f"{LONG} tokens were generated before a pause could reach it")
            await client.abort_all()
            await client.resume()
            answers = await asyncio.wait_for(asyncio.gather(*rest), 60.0)
            expect(
                all(answer.finish_reason == "abort" for answer in answers),
                promised="abort_all ends every request that runs with what it has",
                happened=f"finish reasons were {[answer.finish_reason for answer in answers]}",
                fix="answer an aborted request with finish_reason type abort and the tokens that are there",
            )
            await client.flush_cache()
            after = await client.generate(_request(0, 4))
            expect(
                after.finish_reason in ENDS and await client.reachable(),
                promised="after aborts the server serves as before",
                happened=f"a new request ended by {after.finish_reason!r}",
                fix="free what an aborted request held",
            )

        self._ask(request, rule)

    # For the rules ----------------------------------------------------------------------------------------------------------

    @classmethod
    def model_directory(cls) -> Path:
        """Return the model that is served."""
        return Path(cls.model) if cls.model else default_model()

    def _require_server(self) -> None:
        if self.no_server:
            pytest.skip(f"no server: {self.no_server}")

    def _served(self, request: pytest.FixtureRequest) -> Served | str:
        self._require_server()
        return served(request, type(self), self.host(), self.facts(), self.model_directory())

    def running(self, request: pytest.FixtureRequest) -> Served:
        """Return the server that the rules share; skips the test where there is none."""
        server = self._served(request)
        if isinstance(server, str):
            pytest.skip("test_its_server_starts fails")
        if server.spec.argv and not server.answers():
            pytest.skip("the server has ended: test_its_server_ends_with_its_owner comes last")
        return server

    def _ask(self, request: pytest.FixtureRequest, rule: Callable[[EngineClient], Awaitable[None]]) -> None:
        async def with_server(client: EngineClient, server: Served) -> None:
            await rule(client)

        self._ask_server(request, with_server)

    def _ask_server(self, request: pytest.FixtureRequest, rule: Callable[[EngineClient, Served], Awaitable[None]]) -> None:
        server = self.running(request)

        async def main() -> None:
            async with server.client() as client:
                await rule(client, server)

        try:
            asyncio.run(main())
        except (AsyncrlError, TimeoutError) as error:
            broken(
                promised="the server speaks SGLang's native API as asyncrl.rollout.client does",
                happened=f"{type(error).__name__}: {error}",
                fix="see asyncrl/rollout/client.py for what is sent, and what answers are understood",
            )

    def _check_tokens(self, answer: Completion, size: int) -> None:
        count = len(answer.token_ids)
        expect(
            count == len(answer.logprobs) == sum(each for _, each in answer.spans),
            promised="every token has a log-probability, and the spans' counts add up to the tokens",
            happened=f"{count} tokens, {len(answer.logprobs)} log-probabilities, spans {answer.spans}",
            fix="answer output_token_logprobs with one entry for each generated token",
        )
        expect(
            not count or (answer.token_ids.min() >= 0 and answer.token_ids.max() < size),
            promised=f"tokens are ids from 0 to {size - 1}",
            happened=lambda: f"it gave {answer.token_ids.tolist()}",
            fix="never sample what is beyond the model's vocabulary",
        )
        expect(
            bool(np.all(np.isfinite(answer.logprobs)) and np.all(answer.logprobs <= 1e-4)),
            promised="log-probabilities are finite and not above 0: those of the tokens under the distribution they were drawn from",
            happened=lambda: f"it gave {answer.logprobs.tolist()}",
            fix="answer log_softmax(logits / temperature) at each token, in nats",
        )


def _request(number: int, most: int, temperature: float = 1.0, ignore_eos: bool = False) -> GenerateRequest:
    ids = np.array([1 + number % 3, 2 + number % 5, 3 + number % 7, 4], np.int32)
    return GenerateRequest(ids, SamplingParams(most, temperature=temperature, ignore_eos=ignore_eos), number)


async def _load(client: EngineClient) -> Load | None:
    """What the server says of its load; None if it says nothing."""
    try:
        return await client.load()
    except EngineError:
        return None


async def _until_running(client: EngineClient, count: int) -> None:
    """Wait until so many requests run; where the server doesn't say, as long as it takes most to begin."""
    async with asyncio.timeout(60.0):
        while (load := await _load(client)) is not None and load.running < count and client.in_flight == count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    if load is None:
        await asyncio.sleep(0.2)
