"""A model that leaves its device little room: said at the start, and never a reason to refuse."""

from __future__ import annotations

import subprocess

from phyla.backend.device import BackendFacts

CEILING_SHARE = 0.8
WIRED_SHARE = 0.9
"""Of a Mac's memory: what the remedy lets the GPU wire."""

SYSCTL_SECONDS = 2.0


def near_ceiling(num_weight_bytes: int, backend: BackendFacts, wired_limit_mb: int | None) -> str | None:
    """What to say of weights that take most of the device's working set, or None.

    Args:
        num_weight_bytes: of the model.
        backend: the device.
        wired_limit_mb: what the system lets the GPU wire: 0 is its default, None a system without such a limit.
    """
    room = backend.working_set_bytes
    if wired_limit_mb or num_weight_bytes <= CEILING_SHARE * room:
        return None
    said = f"The weights take {num_weight_bytes / 1e9:.1f} of the {room / 1e9:.1f} GB that this device should use."
    if wired_limit_mb is None:
        return f"{said} Little is left for prompts; a smaller --prompt-cache leaves more."
    wanted = int(backend.memory_bytes * WIRED_SHARE) >> 20
    return f"{said} To let it use more: sudo sysctl iogpu.wired_limit_mb={wanted}"


def read_wired_limit_mb(backend: BackendFacts) -> int | None:
    """What `near_ceiling` wants to know of this system."""
    if backend.device != "metal":
        return None
    try:
        said = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb"],
            capture_output=True,
            check=True,
            timeout=SYSCTL_SECONDS,
        )
        return int(said.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
