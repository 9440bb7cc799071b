"""Opening models on disk without loading them."""

from phyla.checkpoint.checkpoint import Checkpoint, CheckpointOpener, TensorInfo
from phyla.checkpoint.folder import FolderCheckpoint, folder_opener

__all__ = ["Checkpoint", "CheckpointOpener", "FolderCheckpoint", "TensorInfo", "folder_opener"]
