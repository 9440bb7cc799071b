"""The plan as a whole: what plugins may replace, numbers and identity, and finding its parts again."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from phyla.backend import BackendFacts
from phyla.checkpoint import Checkpoint, TensorInfo
from phyla.draft import ConstraintEngine, DraftMethod
from phyla.engine.settings import EngineSettings
from phyla.errors import PluginError
from phyla.kv import SUPPORTED, KVScheme
from phyla.kv.plain import PLAIN
from phyla.model import ModelFacts
from phyla.model.headers import weight_bytes
from phyla.plan import Plan, PlanAnswer
from phyla.plugins import PluginManager
from phyla.selection import SelectionSettings, resolve, select
from phyla.settings import Settings, load_settings
from phyla.testing.toy import ToyFamily, toy_config

from tests.core.selection.conftest import Declaring, ShelfCheckpoint, scheme, shelf

QUANTISED = ShelfCheckpoint(
    "packed",
    toy_config("FF") | {"quantization": {"bits": 4, "group_size": 64}},
    infos={
        "a.weight": TensorInfo("a.weight", (64, 8), "uint32", 64 * 8 * 4, "x"),
        "a.scales": TensorInfo("a.scales", (64, 1), "bfloat16", 64 * 2, "x"),
        "a.biases": TensorInfo("a.biases", (64, 1), "bfloat16", 64 * 2, "x"),
        "norm.weight": TensorInfo("norm.weight", (64,), "bfloat16", 64 * 2, "x"),
    },
)


def filled(**flags: Any) -> Settings:
    spelt = {f"--{name.replace('_', '-')}": text for name, text in flags.items()}
    return load_settings([SelectionSettings, EngineSettings], flags=spelt, env={})


def engine(name: str, rank: int) -> ConstraintEngine:
    return ConstraintEngine(
        name, supports=lambda spec: SUPPORTED, compile=lambda spec, tokenizer, eos: pytest.fail("not here"), rank=rank
    )


def answering(manager: PluginManager, name: str, **choices: str) -> None:
    manager.register(name, Declaring(answer=PlanAnswer(choices, f"{name} knows better")))  # type: ignore[arg-type]


def test_a_plugin_may_replace_a_default_and_the_plan_says_who(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("schemes", Declaring(schemes=[scheme("boxes", "full")]))
    answering(manager, "chooser", kv_scheme="boxes")
    plan = select("toy", manager, filled(), backend)
    assert plan.layer_schemes == ("boxes", "plain", "boxes")
    assert (plan.kv_scheme.chosen_by, plan.kv_scheme.reason) == ("plugin chooser", "chooser knows better")


def test_an_explicit_choice_is_never_overridden(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("schemes", Declaring(schemes=[scheme("boxes", "full")]))
    answering(manager, "chooser", kv_scheme="boxes")
    assert select("toy", manager, filled(kv_scheme="plain"), backend).kv_scheme.chosen_by == "flag"


def test_two_answers_on_one_question_are_an_error_naming_both(manager: PluginManager, backend: BackendFacts) -> None:
    answering(manager, "chooser", dtype="float16")
    answering(manager, "other", dtype="bfloat16")
    with pytest.raises(
        PluginError, match="'other': its phyla_plan chooses the dtype.*plugin 'chooser' chooses one too"
    ):
        select("toy", manager, filled(), backend)


def test_answers_on_different_questions_are_both_taken(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register(
        "drafts",
        Declaring(methods=[DraftMethod("guess", create=lambda target, drafter: pytest.fail("not created here"))]),
    )
    answering(manager, "chooser", dtype="float16")
    answering(manager, "other", method="guess")
    plan = select("toy", manager, filled(), backend)
    assert (plan.dtype, plan.method.name) == ("float16", "guess")


def test_an_answer_that_does_not_exist_names_the_plugin(manager: PluginManager, backend: BackendFacts) -> None:
    answering(manager, "chooser", kv_scheme="crates")
    with pytest.raises(PluginError, match="'chooser': its phyla_plan chooses the kv_scheme 'crates'; it can be plain"):
        select("toy", manager, filled(), backend)


def test_a_plugin_cannot_choose_a_lab_scheme(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("schemes", Declaring(schemes=[scheme("boxes", "full", tier="lab")]))
    answering(manager, "chooser", kv_scheme="boxes")
    with pytest.raises(PluginError, match="it can be plain"):
        select("toy", manager, filled(), backend)


def test_an_answer_that_does_not_work_names_the_plugin(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("schemes", Declaring(schemes=[scheme("boxes", "latent")]))
    answering(manager, "chooser", kv_scheme="boxes")
    with pytest.raises(PluginError, match="'chooser': its phyla_plan chose boxes for kv_scheme, which doesn't work"):
        select("toy", manager, filled(), backend)


def test_the_highest_ranked_constraint_engine_is_chosen(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("rules", Declaring(proposers=[engine("slow", 1), engine("quick", 2)]))
    assert select("toy", manager, filled(), backend).proposer.name == "quick"
    assert select("toy", manager, filled(proposer="slow"), backend).proposer.chosen_by == "flag"
    assert select("toy", manager, filled(proposer="none"), backend).proposer.name == "none"


def test_a_cpu_computes_in_float32_unless_asked(manager: PluginManager, backend: BackendFacts) -> None:
    assert select("toy", manager, filled(), backend).dtype == "float32"
    asked = select("toy", manager, filled(dtype="bfloat16"), backend)
    assert (asked.dtype, asked.dtype_choice.chosen_by) == ("bfloat16", "flag")


@pytest.fixture
def packed(manager: PluginManager) -> PluginManager:
    manager.register("second", Declaring(openers=[replace(shelf(packed=QUANTISED), name="second shelf")]))
    return manager


def test_quantised_weights_are_made_dense_on_a_cpu(packed: PluginManager, backend: BackendFacts) -> None:
    plan = select("packed", packed, filled(), backend)
    assert (plan.weights, plan.weights_choice.chosen_by) == ("dense", "auto")


class Sparing(ToyFamily):
    """Leaves some tensors alone."""

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        ignored = ("spare.*",)
        return replace(
            super().describe(checkpoint), weight_bytes=weight_bytes(checkpoint, ignored), ignored_tensors=ignored
        )


def test_tensors_that_are_not_used_change_no_number(backend: BackendFacts) -> None:
    infos = {name: TensorInfo(name, (64,), "float32", 256, "x") for name in ("norm.weight", "spare.weight")}
    both = ShelfCheckpoint("both", toy_config("FF"), infos=infos)
    alone = replace(both, reference="alone", infos={"norm.weight": infos["norm.weight"]})
    manager = PluginManager()
    manager.register("base", Declaring(openers=[shelf(both=both, alone=alone)], families=[Sparing()], schemes=[PLAIN]))
    got, want = (select(name, manager, filled(), backend) for name in ("both", "alone"))
    assert (got.weights_choice, got.identity) == (want.weights_choice, want.identity)
    assert got.weights_choice.reason == "the checkpoint isn't quantised"


@pytest.mark.parametrize("flags", [{"route": "exact"}, {"l1": True}, {"weights": "stored"}])
def test_the_checkpoints_form_is_kept_where_exactness_is_asked_for(
    packed: PluginManager, backend: BackendFacts, flags: dict[str, Any]
) -> None:
    assert select("packed", packed, filled(**flags), backend).weights == "stored"


def test_a_strict_batch_keeps_the_checkpoints_form(packed: PluginManager, backend: BackendFacts) -> None:
    plan = select("packed", packed, filled(batch=1), backend)
    assert (plan.weights, plan.weights_choice.reason) == ("stored", "--batch 1 keeps the checkpoint's own form")


def test_the_identity_changes_with_what_decides_low_bits(manager: PluginManager, backend: BackendFacts) -> None:
    chunked = load_settings([EngineSettings], env={"PHYLA_RD_PREFILL_CHUNK": "64"})
    digests = {
        select("toy", manager, settings, device).identity.digest()
        for settings, device in [
            (filled(), backend),
            (filled(route="exact"), backend),
            (filled(dtype="float16"), backend),
            (filled(), replace(backend, blas="test 2")),
            (chunked, backend),
        ]
    }
    assert len(digests) == 5


def test_the_preset_l2_asks_for_the_checkpoints_own_scheme(manager: PluginManager, backend: BackendFacts) -> None:
    configured = scheme("boxes", "full", aliases={"config": ""})
    manager.register("schemes", Declaring(schemes=[configured]))
    assert select("toy", manager, filled(l2=True), backend).layer_schemes == ("boxes", "plain", "boxes")
    assert select("toy", manager, filled(l2=True, kv_scheme="plain"), backend).kv_scheme.name == "plain"


def test_attention_is_fused_where_the_checkpoints_own_file_is_followed(
    manager: PluginManager, backend: BackendFacts
) -> None:
    def parse(spec: str) -> KVScheme:
        return replace(scheme("boxes", "full", spec=spec), prefers_fused=spec == "config")

    manager.register("schemes", Declaring(schemes=[scheme("boxes", "full", parse=parse, aliases={"config": "config"})]))
    assert select("toy", manager, filled(kv_quant="config"), backend).fused_sdpa is True
    assert select("toy", manager, filled(kv_quant="config", fused_sdpa="off"), backend).fused_sdpa is False
    assert select("toy", manager, filled(kv_scheme="boxes:b4"), backend).fused_sdpa is False


def test_a_flag_without_effect_is_said_to_have_none(manager: PluginManager, backend: BackendFacts) -> None:
    plan = select("toy", manager, filled(fused_sdpa="on", quantized_kv_start=4), backend)
    assert plan.notices == (
        "--fused-sdpa has no effect: keys and values are stored plain.",
        "--quantized-kv-start has no effect: keys and values are stored plain.",
    )


def test_a_plan_travels_to_another_process(manager: PluginManager, backend: BackendFacts) -> None:
    plan = select("toy", manager, filled(), backend)
    copy: Plan = pickle.loads(pickle.dumps(plan))
    assert copy == plan


def test_the_parts_of_a_plan_are_found_again(manager: PluginManager, backend: BackendFacts) -> None:
    settings = filled(method="guess", kv_scheme="boxes:b4")
    boxes = scheme("boxes", "full", parse=lambda spec: scheme("boxes", "full", spec=spec))
    guess = DraftMethod("guess", create=lambda target, drafter: pytest.fail("not created here"))
    manager.register("more", Declaring(schemes=[boxes], methods=[guess]))
    parts = resolve(select("toy", manager, settings, backend), manager, settings)
    assert isinstance(parts.family.value, ToyFamily)
    assert [one.value.identity for one in parts.schemes] == ["boxes:b4", "plain", "boxes:b4"]
    assert parts.schemes[1].value is PLAIN
    assert parts.method is not None
    assert parts.method.value is guess
    assert parts.new_state(parts.plan.facts.layout[1]).num_tokens == 0
