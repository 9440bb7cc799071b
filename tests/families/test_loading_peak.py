"""What loading takes beside what stays, in a process where nothing else is held."""

import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint, tiny_config
from phyla.testing.tiny.qwen35 import converted_shapes, qwen35_config

from tests.plugins.gguf.gguf_files import Sizes, write_tiny

# Few and large layers: of many small ones, a whole layer more is hardly seen.
WIDE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2, "head_dim": 64, "num_attention_heads": 8}
EXPERTS = qwen35_config(with_experts=True, num_hidden_layers=4, hidden_size=256, moe_intermediate_size=256)
CONFIGS = {
    "tied": tiny_config("llama", **WIDE, tie_word_embeddings=True),
    "untied": tiny_config("llama", **WIDE, tie_word_embeddings=False),
    "quantised": tiny_config("llama", **WIDE, quantization={"group_size": 64, "bits": 4}, tie_word_embeddings=True),
    "experts": EXPERTS,
}
WIDE_GGUF = Sizes(hidden=512, heads=8, head_dim=64, intermediate=1024, layers=8)
GGUF_KINDS = (Kind.Q4_0, Kind.F16)
MODELS = [*CONFIGS, *(f"{kind.name}.gguf" for kind in GGUF_KINDS)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        shapes = converted_shapes(config) if config is EXPERTS else tensor_shapes(config)
        tiny_checkpoint(scratch / name, config, shapes=shapes)
    for kind in GGUF_KINDS:
        write_tiny(scratch / f"{kind.name}.gguf", kind, sizes=WIDE_GGUF)
    script = Path(__file__).with_name("loading_peak.py")
    paths = [str(scratch / name) for name in MODELS]
    done = subprocess.run([sys.executable, str(script), *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: (int(peak), int(resident)) for name, peak, resident in lines}


@pytest.mark.parametrize("name", MODELS)
def test_loading_peaks_at_a_tenth_over_what_stays(loaded, name):
    peak, resident = loaded[name]
    assert resident > 1 << 20
    assert peak <= 1.1 * resident
