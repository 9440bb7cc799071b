"""The contract every draft method holds: whatever it proposes, the tokens are the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from phyla.checkpoint.folder import FolderCheckpoint
from phyla.draft.method import DraftMethod, DraftProvider, DraftTarget, LoadableDrafter
from phyla.draft.span import RowProposal
from phyla.model.binding import ModelBinding
from phyla.request import Rendered, Request, SamplingParams
from phyla.sampling.sampler import RowSampler
from phyla.testing.drafting import TableModel, Transcript, generate
from phyla.testing.engines import TOY_VOCAB
from phyla.testing.method_engine import EngineMethodContract
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.toy import toy_binding, toy_config

NUM_TOKENS = 40
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=20, repetition_penalty=1.2, seed=4),
]
PROMPTS: Sequence[tuple[int, ...]] = ((5,), (1, 2, 3, 1, 2), tuple(range(1, 30)), (4, 4, 4, 4, 4))
FEW_WORDS = (1, 2, 3, 1, 2)
NUM_SAMPLES = 300


class MethodContract(EngineMethodContract):
    """Subclass and give the `method` fixture; a method with a drafter gives `drafter` too.

    The tests here run it beside a table, where every position can be looked at; inherited ones inside the engine.
    """

    @pytest.fixture
    def method(self) -> DraftMethod:
        raise AssertionError("give the contract a `method` fixture")

    @pytest.fixture
    def drafter(self) -> LoadableDrafter | None:
        """As selection would give it; fits targets of `TOY_VOCAB` ids."""
        return None

    @pytest.fixture
    def target(self) -> ModelBinding:
        return toy_binding("FF", 0, vocab_size=TOY_VOCAB)

    @pytest.fixture
    def provider(self, method: DraftMethod, target: ModelBinding, drafter: LoadableDrafter | None) -> DraftProvider:
        return method.create(target, drafter)

    @pytest.fixture
    def model(self, target: ModelBinding) -> TableModel:
        """A target that repeats itself soon, so that every method has something to propose."""
        return TableModel(target.facts.vocab_size, num_context=1)

    @pytest.mark.parametrize("prompt", PROMPTS)
    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_tokens_are_the_same_with_and_without_it(
        self, provider: DraftProvider, model: TableModel, sampling: SamplingParams, prompt: tuple[int, ...]
    ) -> None:
        plain = generate(model, _sampler(sampling, model), prompt, NUM_TOKENS)
        drafted = self._drafted(provider, model, sampling, prompt)

        assert drafted.tokens == plain.tokens
        assert drafted.logprobs == plain.logprobs
        assert drafted.computed == plain.computed

    def test_samples_keep_their_distribution_under_rejection(self, provider: DraftProvider, model: TableModel) -> None:
        """Chi-square of the third token, as many runs with drafts as without, seeds fixed, alpha 1e-6."""
        drafted, plain = (
            [self._run(opened, model, seed) for seed in range(NUM_SAMPLES)] for opened in (provider, None)
        )

        counts = [np.bincount([_third(one) for one in runs], minlength=model.vocab_size) for runs in (drafted, plain)]
        assert _two_sample_statistic(counts[0], counts[1]) < _QUANTILE
        self.agreed(sum(one.usage.num_drafted for one in drafted), sum(one.usage.num_accepted for one in drafted))

    def test_it_never_proposes_more_than_there_is_room_for(self, provider: DraftProvider) -> None:
        num_drafted = 0
        for prompt in PROMPTS:
            for room in (1, 2, 5):
                source = provider.open(_request(prompt), provider.new_states())
                [span] = provider.propose([RowProposal(0, source, list(prompt), room)])
                assert span is None or 0 < len(span.tokens) <= room
                num_drafted += 0 if span is None else len(span.tokens)
        self.proposed(num_drafted)

    def test_rows_proposed_for_together_get_what_each_gets_alone(self, provider: DraftProvider) -> None:
        def ask(prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
            rows = [
                RowProposal(index, provider.open(_request(prompt), provider.new_states()), list(prompt), 4)
                for index, prompt in enumerate(prompts)
            ]
            return [() if span is None else span.tokens for span in provider.propose(rows)]

        together = ask(PROMPTS)

        assert together == [tokens for prompt in PROMPTS for tokens in ask([prompt])]
        self.proposed(sum(map(len, together)))

    def test_its_declaration_and_its_provider_agree(
        self,
        method: DraftMethod,
        provider: DraftProvider,
        target: ModelBinding,
        drafter: LoadableDrafter | None,
        tmp_path: Path,
    ) -> None:
        checkpoint = FolderCheckpoint.open(str(tiny_checkpoint(tmp_path / "toy", toy_config("FF"))))
        assert method.describe(DraftTarget(checkpoint, target.facts), drafter) == provider.facts
        assert len(provider.new_states()) == sum(layer.owns_state for layer in provider.facts.layout)

    def _drafted(
        self, provider: DraftProvider, model: TableModel, sampling: SamplingParams, prompt: tuple[int, ...]
    ) -> Transcript:
        source = provider.open(_request(prompt), provider.new_states())
        return generate(model, _sampler(sampling, model), prompt, NUM_TOKENS, source=source, provider=provider)

    def _run(self, provider: DraftProvider | None, model: TableModel, seed: int) -> Transcript:
        source = None if provider is None else provider.open(_request(FEW_WORDS), provider.new_states())
        # As likely as each other but for the table: what is copied from the prompt, or drawn with the row's bias, is
        # often accepted.
        sampling = SamplingParams(temperature=1.0, logit_bias=dict.fromkeys(FEW_WORDS, 100.0))
        sampler = RowSampler(sampling, model.vocab_size, seed=seed)
        return generate(model, sampler, FEW_WORDS, 3, source=source, provider=provider, acceptance="rejection")


_QUANTILE = 27.7
"""Just above the 1 - 1e-6 quantile of chi-square with two degrees of freedom: three ids."""


def _sampler(sampling: SamplingParams, model: TableModel) -> RowSampler:
    return RowSampler(sampling, model.vocab_size, seed=sampling.seed or 0)


def _request(prompt: tuple[int, ...]) -> Request:
    return Request("contract", Rendered(prompt))


def _third(transcript: Transcript) -> int:
    return transcript.tokens[2]


def _two_sample_statistic(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    seen = (one + other) > 0
    return float((((one - other) ** 2)[seen] / (one + other)[seen]).sum())
