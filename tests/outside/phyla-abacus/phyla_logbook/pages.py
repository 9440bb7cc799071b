"""A codec that writes a prefix entry as one page of JSON: readable, slow, and refused unless it is whole."""

import base64
import hashlib
import json

from phyla import CacheCodec
from phyla.errors import CodecError
from phyla.kv import EncodedEntry, StateArrays

DIGEST_CHARS = 64


def encode(entry: EncodedEntry) -> bytes:
    page = {
        "namespace": entry.namespace,
        "identity": entry.identity,
        "tokens": entry.tokens,
        "facts": entry.facts,
        "layers": {
            name: {
                "facts": state.facts,
                "arrays": {key: _written(array) for key, array in state.arrays.items()},
            }
            for name, state in entry.layers.items()
        },
    }
    body = json.dumps(page)
    return (_digest(body) + body).encode()


def decode(data: bytes, identity: str) -> EncodedEntry:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CodecError("The page is damaged: it isn't text.") from error
    digest, body = text[:DIGEST_CHARS], text[DIGEST_CHARS:]
    if digest != _digest(body):
        raise CodecError("The page is damaged or none of ours.")
    page = json.loads(body)
    if page["identity"] != identity:
        raise CodecError("The page was written under another numerical identity.")
    layers = {
        name: StateArrays({key: _read(*array) for key, array in state["arrays"].items()}, state["facts"])
        for name, state in page["layers"].items()
    }
    return EncodedEntry(page["namespace"], identity, tuple(page["tokens"]), layers, page["facts"])


PAGES = CacheCodec("pages", 1, encode, decode)


def _written(array):
    import mlx.core as mx
    import numpy as np

    # Bits, not numbers: JSON has no NaN, and none of its numbers is a bfloat16.
    raw = np.array(mx.contiguous(array).reshape(-1).view(mx.uint8)) if array.size else np.zeros(0, np.uint8)
    return str(array.dtype).removeprefix("mlx.core."), list(array.shape), base64.b64encode(raw.tobytes()).decode()


def _read(dtype, shape, text):
    import mlx.core as mx
    import numpy as np

    raw = np.frombuffer(base64.b64decode(text), np.uint8)
    kind = getattr(mx, dtype)
    return mx.array(raw).view(kind).reshape(shape) if raw.size else mx.zeros(shape, kind)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
