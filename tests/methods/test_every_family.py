"""Greedy tokens are the same with and without drafts on tiny models of every family that has no cell of its own."""

import phyla
import pytest
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla.testing.tiny.qwen35 import qwen35_config

from tests.few_words import of_few_words

SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
CONFIGS = {
    "mistral": {**tiny_config("llama", num_hidden_layers=2), "model_type": "mistral", "head_dim": 32},
    "qwen2": tiny_config("qwen2", num_hidden_layers=2),
    "qwen3": tiny_config("qwen3", num_hidden_layers=2, tie_word_embeddings=False),
    "rings": tiny_config("llama", num_hidden_layers=2, **SLIDING),
    "experts": qwen35_config(with_experts=True, num_hidden_layers=4),
}
PROMPT = [10, 17, 24, 10, 17, 24, *(40 + index * 7 % 200 for index in range(30)), 10, 17]
GREEDY = {"max_tokens": 24, "ignore_eos": True}


@pytest.mark.parametrize("method", ["ngram", "two-model"])
@pytest.mark.parametrize("family", CONFIGS)
def test_tokens_are_those_of_plain_decoding(tmp_path, family, method):
    folder = str(of_few_words(tiny_checkpoint(tmp_path / family, CONFIGS[family])))
    drafter = {"draft_model": folder} if method == "two-model" else {}
    with phyla.load(folder) as model:
        want = model.generate(PROMPT, **GREEDY)
    with phyla.load(folder, method=method, draft_adaptive="off", **drafter) as model:
        got = model.generate(PROMPT, **GREEDY)
    assert got.token_ids == want.token_ids
    assert got.usage.speculation["accepted"] > 0
