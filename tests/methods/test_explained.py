"""What `phyla explain` says of drafting: figures that the plan has."""

import pytest
from phyla.cli.main import main
from phyla.testing.tiny import tensor_shapes, tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

LLAMA = tiny_config("llama", num_hidden_layers=2, num_key_value_heads=2, head_dim=16, vocab_size=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp("explained") / "llama", LLAMA))


def explained(capsys, *arguments):
    assert main(["explain", *arguments], env={}) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("Draft")]


def test_a_drafter_is_weighed_and_its_cache_counted(folder, capsys):
    rounds, drafter = explained(capsys, folder, "--draft-model", folder, "--dtype", "float32")
    assert rounds == "Drafts: up to 3 tokens per round, adaptive lengths, exact acceptance"
    num_bytes = 4 * sum(rows * (width[0] if width else 1) for rows, *width in tensor_shapes(LLAMA).values())
    # Two layers; keys and values of 2 heads of 16 float32 numbers.
    assert drafter == f"Drafter: {num_bytes / 1e6:.2f} MB of weights, cache of 512 bytes per token"


def test_rounds_are_as_the_flags_say(folder, capsys):
    said = ["--num-draft-tokens", "5", "--batch", "1", "--spec-acceptance", "rejection"]
    assert explained(capsys, folder, "--method", "ngram", *said) == [
        "Drafts: up to 5 tokens per round, fixed length, rejection acceptance"
    ]


def test_nothing_is_said_where_nothing_drafts(folder, capsys):
    assert explained(capsys, folder) == []
