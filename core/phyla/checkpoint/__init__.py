"""Opening models on disk without loading them."""

from phyla.checkpoint.checkpoint import Checkpoint, CheckpointOpener, TensorInfo

__all__ = ["Checkpoint", "CheckpointOpener", "TensorInfo"]
