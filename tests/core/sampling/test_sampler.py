"""Rows drawn together are what each is alone; what breaks breaks its own row."""

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm import sample_utils as oracle
from phyla.errors import GenerationFailed, RequestError
from phyla.request import Rendered, Request, SamplingParams
from phyla.sampling.declaration import NamedSampler
from phyla.sampling.named import row_sampler
from phyla.sampling.sampler import NO_TOKEN, Draw, RowSampler, checked_token, choose
from phyla.sampling.token_mask import allowed_only

VOCAB = 97
EOS = 2

PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.6, top_p=0.9, top_k=20, seed=4),
    SamplingParams(temperature=1.5, min_p=0.02, seed=-5, repetition_penalty=1.2),
    SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.02, xtc_special_ids=(EOS,), seed=6),
    SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, logit_bias={11: 4.0}),
    SamplingParams(temperature=0.8, min_tokens=50, seed=2**70),
    SamplingParams(ignore_eos=True),
]


def logits_of(num_rows: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 2, (num_rows, VOCAB)).astype(np.float32)).astype(dtype)


def draws_of(params, step: int = 4):
    return [
        Draw(RowSampler(one, VOCAB, [EOS], seed=one.seed or 0), step + index, [7, 9, 7, 11], None)
        for index, one in enumerate(params)
    ]


def failing(history, logits):
    raise ValueError("secret prompt text")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_together_equals_row_by_row_and_alone_bit_for_bit(dtype):
    draws = draws_of([*PARAMS, *reversed(PARAMS)])
    logits = logits_of(len(draws), dtype=dtype)

    together = choose(draws, logits)
    row_by_row = choose(draws, logits, vectorised=False)
    alone = [choose([draw], logits[index : index + 1]) for index, draw in enumerate(draws)]

    assert together.tokens.tolist() == row_by_row.tokens.tolist() == [one.tokens.item() for one in alone]
    assert mx.array_equal(together.logprobs, row_by_row.logprobs)
    assert mx.array_equal(together.logprobs, mx.concatenate([one.logprobs for one in alone]))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["exact", "fast"]),
    st.lists(st.tuples(st.sampled_from(PARAMS), st.integers(0, 100), st.booleans()), min_size=1, max_size=6),
)
def test_company_never_changes_a_draw(route, rows):
    draws = [
        Draw(
            RowSampler(params, VOCAB, [EOS], seed=params.seed or 0),
            step,
            [step, 1],
            allowed_only(range(step % 50, VOCAB), VOCAB) if is_masked else None,
        )
        for params, step, is_masked in rows
    ]
    logits = logits_of(len(draws), seed=7)

    together = choose(draws, logits, route=route).tokens.tolist()

    alone = [choose([draw], logits[row : row + 1], route=route) for row, draw in enumerate(draws)]
    assert together == [one.tokens.item() for one in alone]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_greedy_is_the_oracles_choice_on_flat_rows(dtype):
    logits = logits_of(200, dtype=dtype) * 0.1
    draws = draws_of([SamplingParams()] * 200)

    want = oracle.greedy_sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))

    assert choose(draws, logits).tokens.tolist() == want.tolist()


@pytest.mark.parametrize("num_logits", [VOCAB, 640])
def test_greedy_rows_of_the_fast_route_take_the_first_largest_logit_and_still_have_log_probabilities(num_logits):
    draws = [Draw(RowSampler(SamplingParams(), num_logits), 0) for _ in range(50)]
    # Rounded, so that most rows have several largest ones.
    logits = mx.round(mx.random.normal((50, num_logits), key=mx.random.key(1)))

    exact, fast = choose(draws, logits), choose(draws, logits, route="fast")

    assert fast.ids() == mx.argmax(logits, axis=-1).tolist()
    assert mx.array_equal(fast.logprobs, exact.logprobs)
    assert mx.array_equal(fast.evidence, logits.max(axis=-1, keepdims=True))


def test_a_draw_depends_on_seed_and_step_alone():
    sampler = RowSampler(SamplingParams(temperature=1.0, seed=8), VOCAB)
    again = RowSampler(SamplingParams(temperature=1.0, seed=8), VOCAB)
    logits = logits_of(1)

    tokens = [sampler.choose(logits, step).ids()[0] for step in range(20)]

    assert tokens == [again.choose(logits, step).ids()[0] for step in range(20)]
    assert len(set(tokens)) > 5


def test_rows_without_a_seed_differ():
    assert RowSampler(SamplingParams(), VOCAB).seed != RowSampler(SamplingParams(), VOCAB).seed


def test_one_rows_bias_never_reaches_another():
    forced = SamplingParams(logit_bias={42: 1000.0})
    draws = draws_of([SamplingParams(), forced, SamplingParams()])
    logits = logits_of(3)

    plain = mx.argmax(logits, axis=-1).tolist()

    assert choose(draws, logits).tokens.tolist() == [plain[0], 42, plain[2]]


@pytest.mark.parametrize("bad", [[math.nan] * VOCAB, [math.inf] + [0.0] * (VOCAB - 1), [-math.inf] * VOCAB])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("route", ["exact", "fast"])
def test_logits_that_are_no_distribution_fail_their_row_alone(bad, temperature, route):
    params = SamplingParams(temperature=temperature, seed=1)
    draws = draws_of([params, params])
    logits = logits_of(2)

    tokens = choose(draws, mx.concatenate([logits[:1], mx.array([bad])]), route=route).ids()

    assert tokens[0] == choose(draws[:1], logits[:1]).tokens.item()
    assert tokens[1] == NO_TOKEN
    with pytest.raises(GenerationFailed, match="no probability distribution"):
        checked_token(tokens[1])


@pytest.mark.parametrize(
    "process", [failing, lambda history, logits: None, lambda history, logits: logits[0], lambda history, logits: 3.0]
)
@pytest.mark.parametrize("vectorised", [True, False])
def test_a_processor_that_fails_fails_its_own_row(process, vectorised):
    broken = Draw(RowSampler(SamplingParams(), VOCAB, processors=[process]), 0, [1])
    draws = [*draws_of([SamplingParams()]), broken, *draws_of([SamplingParams()])]
    logits = logits_of(3)

    chosen = choose(draws, logits, vectorised=vectorised)

    plain = mx.argmax(logits, axis=-1).tolist()
    assert chosen.ids() == [plain[0], NO_TOKEN, plain[2]]
    assert list(chosen.failures) == [1]
    assert "secret" not in str(chosen.failures[1])


def test_a_processor_that_assigns_into_its_argument_leaves_the_models_logits_alone():
    def scribble(history, logits):
        logits[:, 5] = 99.0
        return logits

    logits = logits_of(1)
    chosen = choose([Draw(RowSampler(SamplingParams(), VOCAB, processors=[scribble]), 0)], logits)

    assert chosen.tokens.item() == 5
    assert mx.array_equal(logits, logits_of(1))


def test_named_processors_run_after_the_penalties():
    seen = []

    def look(history, logits):
        seen.append((list(history), logits[0, 3].item()))
        return logits

    sampler = RowSampler(SamplingParams(logit_bias={3: 10.0}), VOCAB, processors=[look])
    logits = logits_of(1)
    choose([Draw(sampler, 0, [8, 9])], logits)

    assert seen == [([8, 9], (logits[0, 3] + 10.0).item())]


def test_end_of_sequence_is_held_back_until_min_tokens():
    sampler = RowSampler(SamplingParams(min_tokens=3), VOCAB, [EOS])
    logits = mx.where(mx.arange(VOCAB) == EOS, 50.0, logits_of(1))

    assert [sampler.choose(logits, step).ids()[0] == EOS for step in range(5)] == [False, False, False, True, True]


def test_ignore_eos_never_ends():
    sampler = RowSampler(SamplingParams(ignore_eos=True), VOCAB, [EOS])
    logits = mx.where(mx.arange(VOCAB) == EOS, 50.0, logits_of(1))

    assert sampler.choose(logits, 10**6).ids()[0] != EOS


def test_a_constraint_that_leaves_only_end_of_sequence_beats_min_tokens():
    sampler = RowSampler(SamplingParams(min_tokens=9), VOCAB, [EOS])

    assert sampler.choose(logits_of(1), 0, allowed_only([EOS], VOCAB)).ids()[0] == EOS


def test_masks_come_before_normalising():
    sampler = RowSampler(SamplingParams(), VOCAB)

    logprobs = sampler.choose(logits_of(1), 0, allowed_only([4, 5], VOCAB)).logprobs[0]

    assert mx.exp(logprobs).sum().item() == pytest.approx(1.0)
    assert logprobs[6].item() == -math.inf


@pytest.mark.parametrize("params", PARAMS[1:5])
def test_draws_follow_the_filtered_distribution(params):
    """Chi-square over 10,000 draws at alpha 1e-6, seeds fixed."""
    num_draws, num_ids = 10_000, 12
    logits = mx.array(np.random.default_rng(5).normal(0, 1, (1, num_ids)).astype(np.float32))
    plain = SamplingParams(
        temperature=params.temperature, top_p=params.top_p, top_k=min(params.top_k, 8), min_p=params.min_p
    )
    sampler = RowSampler(plain, num_ids, seed=11)
    draws = [Draw(sampler, step) for step in range(num_draws)]

    tokens = np.array(choose(draws, mx.broadcast_to(logits, (num_draws, num_ids))).tokens)

    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    expected = np.array(mx.softmax(sampler.filters.apply(logprobs), axis=-1)[0]) * num_draws
    observed = np.bincount(tokens, minlength=num_ids)
    possible = expected > 0
    assert observed[~possible].sum() == 0
    statistic = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < 55.0, "the 1 - 1e-6 quantile with 11 degrees of freedom is 51.3; with fewer it is lower"


def named(role, create):
    return NamedSampler(name="mine", role=role, create=create)


def request_with(*processors, **sampling):
    return Request("r", Rendered((1,)), SamplingParams(processors=processors, **sampling))


def test_a_named_processor_and_a_named_sampler_are_used():
    bump = named("processor", lambda request: lambda history, logits: logits.at[:, 6].add(1000.0))
    last = named("sampler", lambda request: lambda logprobs, key: mx.array(VOCAB - 1))

    bumped = row_sampler(request_with("mine"), vocab_size=VOCAB, eos_ids=[], named=[bump])
    fixed = row_sampler(request_with("mine"), vocab_size=VOCAB, eos_ids=[], named=[last])

    assert choose([Draw(bumped, 0), Draw(fixed, 0)], logits_of(2)).tokens.tolist() == [6, VOCAB - 1]


def test_a_named_sampler_that_raises_fails_its_own_row():
    def create(request):
        def sample(logprobs, key):
            raise RuntimeError("boom")

        return sample

    broken = row_sampler(request_with("mine"), vocab_size=VOCAB, eos_ids=[], named=[named("sampler", create)])

    chosen = choose([*draws_of([SamplingParams()]), Draw(broken, 0)], logits_of(2))

    assert list(chosen.failures) == [1]
    assert chosen.ids()[1] == NO_TOKEN


def test_an_unknown_processor_is_refused_with_the_near_match():
    with pytest.raises(RequestError, match="Did you mean 'mine'"):
        row_sampler(
            request_with("mime"), vocab_size=VOCAB, eos_ids=[], named=[named("processor", lambda request: None)]
        )


def test_a_processor_that_cant_be_created_fails_the_request_alone():
    def create(request):
        raise ValueError("secret")

    with pytest.raises(GenerationFailed, match="'mine' raised ValueError"):
        row_sampler(request_with("mine"), vocab_size=VOCAB, eos_ids=[], named=[named("processor", create)])


def test_samples_of_a_request_draw_differently_and_the_first_as_if_alone():
    request = request_with(temperature=1.0, seed=5)
    first, second = (row_sampler(request, vocab_size=VOCAB, eos_ids=[], sample=sample) for sample in (0, 1))
    logits = logits_of(1)

    assert first.seed == 5
    assert [first.choose(logits, step).ids()[0] for step in range(9)] != [
        second.choose(logits, step).ids()[0] for step in range(9)
    ]
