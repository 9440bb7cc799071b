"""What every family's cells hold: rows together, prefixes, seeds, log-probabilities and cancelled rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phyla import Family
from phyla.engine.engine import EngineSpec
from phyla.request import SamplingParams
from phyla.testing.engines import a_request, family_spec, running
from phyla.testing.reuse import reusing
from phyla.testing.row_equality import alone, staggered

NUM_TOKENS = 10
PROMPT = tuple(10 + index * 7 % 400 for index in range(60))
OTHER = tuple(11 + index * 5 % 400 for index in range(23))
GREEDY = SamplingParams(ignore_eos=True, num_logprobs=2)
SAMPLED = SamplingParams(temperature=1.0, seed=11, ignore_eos=True, num_logprobs=2)


class FamilyRows:
    """One family and one of its models. Each method is a cell's test."""

    def __init__(self, family: Family, folder: Path) -> None:
        self.family = family
        self.folder = folder

    def spec(self, settings: Mapping[str, Any]) -> EngineSpec:
        return family_spec(self.family, self.folder, {"prefill_chunk": 16, **settings})

    def together_equals_alone(self, sampling: SamplingParams) -> None:
        wanted = [a_request(name, ids, NUM_TOKENS, sampling) for name, ids in (("one", PROMPT), ("other", OTHER))]
        got = staggered(self.spec({"batch": 4}), wanted, every=1)
        want = alone(self.spec({"batch": 1}), wanted)
        assert any(one.finished.usage.lane == "batched" for one in got.values())
        assert {name: one.ids for name, one in got.items()} == {name: one.ids for name, one in want.items()}

    def the_next_turn_reads_only_what_is_new(self) -> None:
        with reusing(self.spec({})) as (engine, log, seen):
            engine.submit(a_request("first", PROMPT, NUM_TOKENS, GREEDY))
            prompt = (*PROMPT, *log.wait("first").ids, 9, 8, 7)
            seen.steps.clear()
            turn = a_request("turn", prompt, NUM_TOKENS, GREEDY)
            engine.submit(turn)
            heard = log.wait("turn")
        # The last token of an answer is never computed, so it counts as new.
        assert heard.finished.usage.num_cached_tokens == len(prompt) - 4
        assert seen.num_tokens == 4 + NUM_TOKENS - 1
        assert heard.ids == alone(self.spec({}), [turn])["turn"].ids

    def logprobs_of_a_cached_prompt_are_the_same(self) -> None:
        with reusing(self.spec({})) as (engine, log, _):
            engine.submit(a_request("cold", PROMPT, NUM_TOKENS, GREEDY))
            cold = log.wait("cold")
            engine.submit(a_request("warm", PROMPT, NUM_TOKENS, GREEDY))
            warm = log.wait("warm")
        assert warm.finished.usage.num_cached_tokens == len(PROMPT) - 1
        assert all(token.logprobs is not None for token in warm.tokens)
        assert [token.logprobs for token in warm.tokens] == [token.logprobs for token in cold.tokens]

    def a_cancelled_row_leaves_the_others_as_they_were(self) -> None:
        kept, endless = a_request("kept", OTHER, NUM_TOKENS, GREEDY), a_request("endless", PROMPT, 400, GREEDY)
        with running(self.spec({"batch": 4})) as (engine, log):
            engine.submit(endless)
            log.wait_for_tokens("endless", 2)
            engine.submit(kept)
            log.wait_for_tokens("kept", 2)
            engine.cancel("endless")
            heard, cut = log.wait("kept"), log.wait("endless")
        assert cut.finished.reason == "cancelled"
        assert heard.ids == alone(self.spec({}), [kept])["kept"].ids
