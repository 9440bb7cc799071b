"""A drafter of any layer kind, beside targets of any layer kind."""

import pytest
from phyla.backend.device import BackendFacts
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.draft import LoadableDrafter, Observed, RowProposal
from phyla.model import LoadOptions
from phyla.request import Rendered, Request, SamplingParams
from phyla.settings import Settings
from phyla.testing.engines import TOY_VOCAB, a_request, toy_spec
from phyla.testing.method import MethodContract
from phyla.testing.method_engine import with_method
from phyla.testing.reuse import reusing
from phyla.testing.row_equality import alone
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.toy import ToyConfig, toy_binding, toy_config, toy_facts
from phyla_twomodel import phyla_methods
from phyla_twomodel.tokenizers import is_language_model

CPU = BackendFacts("cpu", "test", "test", memory_bytes=1 << 34, working_set_bytes=1 << 34)
METHOD = phyla_methods(Settings([]))[0]


def toy_drafter(folder, layers="FF", seed=0, **changes) -> LoadableDrafter:
    config = toy_config(layers, vocab_size=TOY_VOCAB, **changes)
    return LoadableDrafter(
        FolderCheckpoint.open(str(tiny_checkpoint(folder, config, seed))),
        toy_facts(ToyConfig.from_dict(config)),
        options=LoadOptions(CPU, "float32"),
        family_bind=lambda: toy_binding(layers, seed, vocab_size=TOY_VOCAB, **changes),
    )


@pytest.fixture(scope="module", params=["FF", "SRLF"])
def any_drafter(request, tmp_path_factory):
    return toy_drafter(tmp_path_factory.mktemp("drafter") / "toy", request.param)


class TestTwoModel(MethodContract):
    @pytest.fixture
    def method(self):
        return METHOD

    @pytest.fixture
    def drafter(self, any_drafter):
        return any_drafter


class Worked:
    """One row's rounds as the table of `propose` and `observe` tells them."""

    def __init__(self, provider, prompt):
        self.provider = provider
        self.history = list(prompt)
        self.states = provider.new_states()
        self.source = provider.open(Request("r", Rendered(tuple(prompt))), self.states)
        self.num_target = len(prompt) - 1
        self.source.observe(Observed(tuple(prompt[:-1]), is_prefill=True))

    def round(self, num_accepted):
        [span] = self.provider.propose([RowProposal(0, self.source, self.history, 3)])
        after_drafting = self.source.num_read
        kept = (self.history[-1], *span.tokens[:num_accepted])
        self.source.observe(Observed(kept, self.num_target, 3, num_accepted))
        self.num_target += len(kept)
        self.history += [*span.tokens[:num_accepted], 300]
        return after_drafting, self.num_target, self.source.num_read


@pytest.fixture
def provider(tmp_path):
    target = toy_binding("FF", 1, vocab_size=TOY_VOCAB)
    return METHOD.create(target, toy_drafter(tmp_path / "toy"))


def test_the_worked_trace_of_what_is_read_and_taken_back(provider):
    row = Worked(provider, range(10))

    assert row.source.num_read == 9
    assert row.round(1) == (12, 11, 11)
    assert row.round(3) == (14, 15, 14)
    assert row.round(0) == (18, 16, 16)


def test_another_ones_proposal_takes_back_what_differs(provider):
    row = Worked(provider, range(10))
    [span] = provider.propose([RowProposal(0, row.source, row.history, 3)])
    other = (span.tokens[0], (span.tokens[1] + 1) % 100)

    row.source.observe(Observed((9, *other), 9))

    assert row.source.num_read == 11


def test_plain_steps_are_read_when_it_is_next_asked(provider):
    row = Worked(provider, range(10))
    row.source.observe(Observed((9, 300), 9))
    assert row.source.num_read == 9
    row.history += [300, *range(20, 35)]

    [late] = provider.propose([RowProposal(0, row.source, row.history, 2)])
    fresh = Worked(provider, row.history)
    [early] = provider.propose([RowProposal(0, fresh.source, row.history, 2)])

    assert late.tokens == early.tokens


def test_past_the_drafters_context_nothing_is_proposed(tmp_path):
    provider = METHOD.create(
        toy_binding("FF", 1, vocab_size=TOY_VOCAB), toy_drafter(tmp_path / "toy", max_position_embeddings=16)
    )
    row = Worked(provider, range(13))
    assert provider.propose([RowProposal(0, row.source, row.history, 3)]) != [None]

    row = Worked(provider, range(30))
    assert row.source.num_read == 16
    assert provider.propose([RowProposal(0, row.source, row.history, 3)]) == [None]


def test_a_prefix_without_the_drafters_state_is_read_again(tmp_path):
    """The target can go back to where the prompts part; the drafter's recurrence can't."""
    prompt = list(range(3, 63))
    spec = with_method(toy_spec("FF", {"prefill_chunk": 16}), METHOD, toy_drafter(tmp_path / "toy", "RF"))
    other = a_request("other", [*prompt[:37], 9, 8, 7], 12)
    with reusing(spec) as (engine, log, _):
        engine.submit(a_request("first", prompt, 12))
        log.wait("first")
        engine.submit(other)
        heard = log.wait("other")

    usage = heard.finished.usage
    assert usage.num_cached_tokens == 37
    assert "came without the drafter's state" in usage.speculation["reason"]
    assert usage.speculation["drafted"] > 0
    assert heard.ids == alone(toy_spec("FF"), [other])["other"].ids


def test_drafts_are_drawn_with_the_rows_own_random_stream(tmp_path):
    """A drafter that is the target proposes at each step what the target will draw."""
    requests = [
        a_request("hot", [5, 6, 7], 24, SamplingParams(temperature=1.2, seed=5, ignore_eos=True)),
        a_request("filtered", [5, 6, 8], 24, SamplingParams(temperature=0.9, top_k=9, seed=6, ignore_eos=True)),
    ]
    heard = alone(with_method(toy_spec("FF"), METHOD, toy_drafter(tmp_path / "toy")), requests)

    assert [one.finished.usage.speculation["rejected"] for one in heard.values()] == [0, 0]


def test_drafters_are_judged_by_what_they_were_drawn_from(tmp_path):
    """Under rejection a drafter that is the target is never rejected: both distributions are the same."""
    request = a_request("r", [5, 6, 7], 24, SamplingParams(temperature=1.0, top_p=0.9, seed=5, ignore_eos=True))
    spec = with_method(toy_spec("FF"), METHOD, toy_drafter(tmp_path / "toy"), acceptance="rejection")

    assert alone(spec, [request])["r"].finished.usage.speculation["rejected"] == 0


@pytest.mark.parametrize(
    ("config", "is_one"),
    [
        ({"model_type": "llama"}, True),
        ({"model_type": "qwen3_5_mtp"}, False),
        ({"model_type": "gemma4_assistant"}, False),
        ({"model_type": "qwen3", "architectures": ["Qwen3DSparkModel"]}, False),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, True),
        ({}, False),
    ],
)
def test_heads_and_helpers_are_no_language_models(config, is_one):
    assert is_language_model(config) is is_one
