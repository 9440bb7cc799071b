"""Request fields: messages, ranges and which default wins."""

import pytest
from phyla.errors import RequestError
from phyla.request import SamplingParams
from phyla.sampling import SamplingDefaults, SamplingSettings, merge_defaults, resolve_sampling

VOCAB = 100


def resolved(fields, defaults=None, **facts):
    return resolve_sampling(fields, defaults or SamplingDefaults(), vocab_size=VOCAB, **facts)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "1", "temperature must be of type ('float', 'int')"),
        ("temperature", True, "temperature must be of type ('float', 'int')"),
        ("temperature", -0.1, "temperature must be at least 0"),
        ("temperature", float("nan"), "temperature must be a finite number"),
        ("temperature", float("inf"), "temperature must be a finite number"),
        ("temperature", 10**400, "temperature must be a finite number"),
        ("top_p", 1.01, "top_p must be at most 1"),
        ("top_p", -1, "top_p must be at least 0"),
        ("top_k", 1.0, "top_k must be of type int"),
        ("top_k", True, "top_k must be of type int"),
        ("top_k", -1, "top_k must be at least 0"),
        ("min_p", 2, "min_p must be at most 1"),
        ("repetition_penalty", -1, "repetition_penalty must be at least 0"),
        ("repetition_context_size", -1, "repetition_context_size must be at least 0"),
        ("presence_context_size", 0.5, "presence_context_size must be of type int"),
        ("frequency_context_size", "20", "frequency_context_size must be of type int"),
        ("presence_penalty", [], "presence_penalty must be of type ('float', 'int')"),
        ("frequency_penalty", {}, "frequency_penalty must be of type ('float', 'int')"),
        ("xtc_probability", 1.5, "xtc_probability must be at most 1"),
        ("xtc_threshold", -0.5, "xtc_threshold must be at least 0"),
        ("logprobs", 1, "logprobs must be of type bool"),
        ("top_logprobs", "3", "top_logprobs must be of type int"),
        ("top_logprobs", -2, "top_logprobs must be at least 0"),
        ("top_logprobs", 21, "top_logprobs must be at most 20"),
        ("seed", 1.5, "seed must be of type int"),
        ("seed", True, "seed must be of type int"),
        ("min_tokens", -1, "min_tokens must be at least 0"),
        ("ignore_eos", "yes", "ignore_eos must be of type bool"),
        ("logit_bias", [1], "logit_bias must be a dict of int to float"),
        ("logit_bias", {"x": 1}, "logit_bias must be a dict of int to float"),
        ("logit_bias", {"1": "much"}, "logit_bias must be a dict of int to float"),
        ("logit_bias", {"1": None}, "logit_bias must be a dict of int to float"),
        ("logit_bias", {"1": True}, "logit_bias must be a dict of int to float"),
        ("logit_bias", {"1": float("nan")}, "logit_bias must be a dict of int to float"),
        ("logit_bias", {"100": 1}, "logit_bias token id 100 is outside the vocabulary (0 to 99)"),
        ("logit_bias", {"-1": 1}, "logit_bias token id -1 is outside the vocabulary (0 to 99)"),
        ("logit_bias", {"1": 1e31}, "logit_bias must be at most 1e+30"),
        ("presence_penalty", -1e38, "presence_penalty must be at least -1e+30"),
        ("frequency_penalty", 1e38, "frequency_penalty must be at most 1e+30"),
        ("repetition_penalty", 1e38, "repetition_penalty must be at most 1e+30"),
        ("repetition_penalty", 1e-38, "repetition_penalty must be 0 or at least 1e-30"),
        ("logits_processors", "mine", "logits_processors must be a list of str"),
    ],
)
def test_a_bad_field_is_refused_with_the_known_message(field, value, message):
    with pytest.raises(RequestError) as caught:
        resolved({field: value})

    assert str(caught.value) == message


def test_a_surface_may_have_a_lower_limit_of_top_logprobs():
    with pytest.raises(RequestError, match="top_logprobs must be at most 11"):
        resolved({"top_logprobs": 12}, most_top_logprobs=11)


def test_null_is_absent_for_every_field():
    names = (*SamplingParams.__dataclass_fields__, "logprobs", "top_logprobs", "logits_processors")

    assert resolved(dict.fromkeys(names)) == resolved({})


@pytest.mark.parametrize("seed", [0, -1, 2**64, -(10**30)])
def test_every_integer_is_a_seed(seed):
    assert resolved({"seed": seed}).seed == seed


def test_logit_bias_keys_are_coerced_and_an_empty_object_is_unset():
    assert resolved({"logit_bias": {"5": -3, 7: 1.5}}).logit_bias == {5: -3.0, 7: 1.5}
    assert resolved({"logit_bias": {}}).logit_bias == {}


@pytest.mark.parametrize(
    ("fields", "num_logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": -1}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"top_logprobs": 0}, None),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"top_logprobs": 5}, 5),
    ],
)
def test_which_logprobs_are_reported(fields, num_logprobs):
    assert resolved(fields).num_logprobs == num_logprobs


def test_request_beats_flag_beats_generation_config_beats_ours():
    model = {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "repetition_penalty": 1.1}
    flags = SamplingSettings(temperature=0.3, top_k=0)

    assert resolved({"temperature": 1.2}, merge_defaults(flags, model)).temperature == 1.2
    assert merge_defaults(flags, model) == SamplingDefaults(0.3, True, 0.8, 0, 1.1)
    assert merge_defaults(SamplingSettings(), model) == SamplingDefaults(0.9, False, 0.8, 40, 1.1)
    assert merge_defaults(SamplingSettings(), {}) == SamplingDefaults(0.7, False, 0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("flags", "model", "thinking", "temperature"),
    [
        (SamplingSettings(), {"temperature": 1.0}, False, 0.7),
        (SamplingSettings(), {"temperature": 0.2}, False, 0.2),
        (SamplingSettings(), {"temperature": 1.0}, True, 1.0),
        (SamplingSettings(), {"temperature": 1.0}, None, 1.0),
        (SamplingSettings(temperature=1.5), {"temperature": 1.0}, False, 1.5),
        (SamplingSettings(), {}, False, 0.7),
    ],
)
def test_turns_without_reasoning_are_capped_unless_someone_said_otherwise(flags, model, thinking, temperature):
    assert resolved({}, merge_defaults(flags, model), thinking=thinking).temperature == temperature


def test_an_explicit_request_temperature_is_never_capped():
    assert resolved({"temperature": 2.0}, thinking=False).temperature == 2.0


@pytest.mark.parametrize("broken", ["hot", None, -1, True, float("nan")])
def test_a_broken_generation_config_is_passed_over(broken):
    assert merge_defaults(SamplingSettings(), {"temperature": broken}).temperature == 0.7
