"""GGUF files of llama-architecture models, read without a native parser.

Weights stay quantised: Q4_0, Q4_1 and Q8_0 blocks are MLX's own affine groups of 32, repacked.
"""

from phyla import CheckpointOpener, hookimpl

phyla_api = 1


@hookimpl
def phyla_open_checkpoint() -> list[CheckpointOpener]:
    from phyla_gguf.opener import opener

    return [opener()]
