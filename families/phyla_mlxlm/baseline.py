"""mlx-lm itself, to be measured beside: its own loader, caches and batches, asked as its own programs ask them."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.errors import UsageError

from phyla_mlxlm.installed import InstalledMlxLm

if TYPE_CHECKING:
    from phyla.baseline import BaselineModel

Caches = list[Any]


class MlxLmBaseline:
    """What `--against mlx-lm` runs.

    Args:
        installed: where mlx-lm is, None for nowhere.
    """

    name = "mlx-lm"

    def __init__(self, installed: InstalledMlxLm | None) -> None:
        self._installed = installed

    def versions(self) -> Mapping[str, str]:
        return {"mlx-lm": importlib.metadata.version("mlx-lm")} if self._installed is not None else {}

    def open(self, folder: Path) -> BaselineModel:
        if self._installed is None:
            raise UsageError("--against mlx-lm: it isn't installed. pip install 'phyla[mlxlm]'.")
        from mlx_lm.utils import load_model

        try:
            return MlxLmModel(load_model(folder)[0])
        except (ValueError, FileNotFoundError) as error:
            raise UsageError(f"--against mlx-lm: it can't run this model: {error}") from error


class MlxLmModel:
    """One row through `generate_step`, several through `BatchGenerator`.

    Keeps the caches of the prompts it was last given, all but their last tokens, as mlx-lm's own server does.
    """

    def __init__(self, model: Any) -> None:
        self._model: Any = model
        self._read: dict[tuple[int, ...], Caches] = {}

    def decode(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Generator[Sequence[int], None, None]:
        # A prompt of one step is read and forgotten: what is asked for is how long that takes.
        known = [None if max_tokens == 1 else self._caches(prompt[:-1], prompts) for prompt in prompts]
        if len(prompts) == 1:
            return self._alone(prompts[0], known[0], max_tokens)
        return self._together(prompts, known, max_tokens)

    def close(self) -> None:
        self._model, self._read = None, {}

    def _caches(self, behind: Sequence[int], prompts: Sequence[Sequence[int]]) -> Caches | None:
        """A copy that a row may go on from; None for a prompt of a single token."""
        if not behind:
            return None
        wanted = {tuple(prompt[:-1]) for prompt in prompts}
        self._read = {ids: caches for ids, caches in self._read.items() if ids in wanted}
        key = tuple(behind)
        if key not in self._read:
            self._read[key] = self._reading(behind)
        return copy.deepcopy(self._read[key])

    def _reading(self, ids: Sequence[int]) -> Caches:
        import mlx.core as mx
        from mlx_lm.generate import generate_step
        from mlx_lm.models.cache import make_prompt_cache

        caches: Caches = make_prompt_cache(self._model)
        # No token is wanted: with none to give it fills the caches and stops.
        for _ in generate_step(mx.array(list(ids)), self._model, max_tokens=0, prompt_cache=caches):
            pass
        mx.eval([cache.state for cache in caches])
        return caches

    def _alone(
        self, prompt: Sequence[int], caches: Caches | None, max_tokens: int
    ) -> Generator[Sequence[int], None, None]:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        given = prompt if caches is None else prompt[-1:]
        for _token, _logprobs in generate_step(
            mx.array(list(given)), self._model, max_tokens=max_tokens, prompt_cache=caches
        ):
            yield (0,)

    def _together(
        self, prompts: Sequence[Sequence[int]], known: Sequence[Caches | None], max_tokens: int
    ) -> Generator[Sequence[int], None, None]:
        from mlx_lm.generate import BatchGenerator
        from mlx_lm.models.cache import make_prompt_cache

        batch: Any = BatchGenerator(self._model, completion_batch_size=max(32, len(prompts)))
        try:
            uids = batch.insert(
                [
                    list(prompt if caches is None else prompt[-1:])
                    for prompt, caches in zip(prompts, known, strict=True)
                ],
                max_tokens=[max_tokens] * len(prompts),
                caches=[make_prompt_cache(self._model) if caches is None else caches for caches in known],
            )
            rows = {uid: row for row, uid in enumerate(uids)}
            num_open = len(rows)
            while num_open:
                responses = batch.next_generated()
                num_open -= sum(response.finish_reason is not None for response in responses)
                yield [rows[response.uid] for response in responses]
        finally:
            batch.close()
