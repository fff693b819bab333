"""Texts, and what becomes of them for a network that takes token ids: a Hugging Face tokenizer
(`tokenizer.json`) that lies beside the model does it, offline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qdebug.errors import SampleError, required
from qdebug.inputfiles import read_bytes, read_text
from qdebug.network.samples.arrays import ArrayInMemory
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feed_files import FeedFiles
from qdebug.network.samples.found_preprocessing import folders_beside
from qdebug.network.samples.matching import inputs_text
from qdebug.network.samples.samples import Origin, PreparedSamples, Samples
from qdebug.network.samplespec import SampleSpec
from qdebug.types import Array, Feeds, TensorSpec
from qdebug.wording import counted

_IDS, _MASK, _TYPES = "ids", "attention_mask", "type_ids"
_MEANINGS: Mapping[str, str] = {
    "input_ids": _IDS,
    "attention_mask": _MASK,
    "input_mask": _MASK,
    "token_type_ids": _TYPES,
    "segment_ids": _TYPES,
}
"""What inputs are called in exports of Hugging Face's and of TensorFlow's BERT, and which field of
an encoding they take."""
_AXES = 2
"""Samples and tokens."""
_USUAL_LONGEST = 512
"""Tokens, where neither the model nor the tokenizer says how many it takes at most: BERT's."""
_NO_LIMIT = 1_000_000
"""Hugging Face writes a model_max_length of 1e30 for "none"."""
_PADDING = "[PAD]", "<pad>", "<|padding|>", "<|endoftext|>"
_BLOCK = 1024
"""Texts that are encoded at once."""


@dataclass(frozen=True)
class Texts:
    """Texts in a stable order, and what is known of each.

    Attributes:
        texts: of them. pairs: a second text for each, such as a hypothesis; None where there is
            none.
        holds: what they are and how they are labelled, for people.
        labels: arrays by name, a row for each.
    """

    texts: tuple[str, ...]
    holds: str
    pairs: tuple[str, ...] | None = None
    labels: Mapping[str, Array] = field(default_factory=dict)

    def first(self, count: int) -> Texts:
        """The first of them."""
        return replace(
            self,
            texts=self.texts[:count],
            pairs=self.pairs and self.pairs[:count],
            labels={name: array[:count] for name, array in self.labels.items()},
        )

    @property
    def readable(self) -> tuple[str, ...]:
        """Each of them for people, the second of a pair on a line of its own."""
        if self.pairs is None:
            return self.texts
        return tuple(map("\n".join, zip(self.texts, self.pairs, strict=True)))

    def prepared(self, spec: SampleSpec, inputs: Sequence[TensorSpec]) -> PreparedSamples:
        """The token ids: stacked and padded where the network takes a mask or a fixed number of
        tokens, else one by one.

        Raises:
            SampleError: it takes something else, or there is no tokenizer that fits.
        """
        meanings = _meanings_of(inputs, spec.data)
        used = self if spec.limit is None else self.first(spec.limit)
        if not used.texts:
            raise SampleError(f"{spec.data}: holds no texts.", "Add some.", code="QD-SAMPLES-EMPTY")
        file = _tokenizer_beside(spec)
        length = next((n for each in inputs if isinstance(n := each.shape[1], int)), None)
        longest = length or _longest_of(file)
        tokenizer = _open(file)
        padding = _padding_of(tokenizer, file)
        encoded = _encoded(tokenizer, used, longest)
        _check_vocabulary(encoded, file, spec, next(k for k, v in meanings.items() if v == _IDS))
        sizes = [len(each.ids) for each in encoded]
        cut = sum(bool(each.overflowing) for each in encoded)
        span = " to ".join(map(str, sorted({min(sizes), max(sizes)})))
        told = f"{used.holds}; by {file}, {span} tokens"
        told += f", {counted(cut, 'text')} cut at {longest}" if cut else ""
        pads = length is not None or _MASK in meanings.values() or len(set(sizes)) == 1
        if not pads:

            def feed(number: int) -> Feeds:
                own = encoded[number]
                ids = {
                    each.name: np.array([getattr(own, meanings[each.name])], each.dtype)
                    for each in inputs
                }
                labels = {name: array[number : number + 1] for name, array in used.labels.items()}
                return ids | labels

            feeds = FeedFiles(range(len(encoded)), feed, "text {}".format)
            return PreparedSamples(feeds, spec, Origin(told, used.readable))
        width = length or max(sizes)
        arrays = {
            each.name: ArrayInMemory(_stacked(encoded, meanings[each.name], width, padding, each))
            for each in inputs
        }
        told += f", padded to {width}" if min(sizes) < width else ""
        arrays |= {name: ArrayInMemory(array) for name, array in used.labels.items()}
        return PreparedSamples(arrays, spec, Origin(told, used.readable))


def _token_inputs(inputs: Sequence[TensorSpec]) -> dict[str, str]:
    """What each input takes of an encoding, by its name; nothing where one takes something else."""
    found = {each.name: _MEANINGS.get(each.name.partition(":")[0].lower()) for each in inputs}
    if len(inputs) == 1:
        found = {inputs[0].name: _IDS}
    are_tokens = all(each.dtype.kind in "iu" and len(each.shape) == _AXES for each in inputs)
    if are_tokens and all(found.values()) and _IDS in found.values():
        return {name: str(meaning) for name, meaning in found.items()}
    return {}


def texts_of(samples: Samples, feeds: Mapping[int, Feeds]) -> dict[int, str]:
    """The texts of some samples, by number, for people: as they were given, or read back from the
    token ids, in lower case where the tokenizer writes so; nothing where they are no texts, where
    no tokenizer lies beside the model, or without `tokenizers`.

    Args:
        feeds: of each of these samples.
    """
    if samples.origin.texts:
        return {number: samples.origin.texts[number] for number in feeds}
    meanings = _token_inputs(samples.inputs)
    if not meanings or find_spec("tokenizers") is None:
        return {}
    try:
        tokenizer = _open(_tokenizer_beside(samples.spec))
    except SampleError:  # the samples are ids: nobody asked for texts
        return {}
    name_of = {meaning: name for name, meaning in meanings.items()}
    rows = _embedding_rows(samples.spec.model, name_of[_IDS])
    if rows is not None and tokenizer.get_vocab_size(with_added_tokens=False) > rows:
        return {}  # the tokenizer of another model

    def read(feed: Feeds) -> str:
        ids = feed[name_of[_IDS]]
        if _MASK in name_of:
            ids = ids[feed[name_of[_MASK]] != 0]
        return str(tokenizer.decode(ids.reshape(-1).tolist()))

    return {number: read(feed) for number, feed in feeds.items()}


def _meanings_of(inputs: Sequence[TensorSpec], where: str) -> dict[str, str]:
    """What each input takes, by its name.

    Raises:
        SampleError: one takes something else.
    """
    found = _token_inputs(inputs)
    if found:
        return found
    raise SampleError(
        f"{where}: holds texts, and the model does not take token ids [samples, tokens] (with an "
        f"attention mask and token types): {inputs_text(inputs)}.",
        "Give arrays by input name (.npz), or a function that loads the samples: "
        "script.py:function.",
        code="QD-SAMPLES-TEXT-INPUT",
    )


def _tokenizer_beside(spec: SampleSpec) -> Path:
    """The tokenizer of the model.

    Raises:
        SampleError: there is none.
    """
    for folder in folders_beside(spec.model):
        if (file := folder / "tokenizer.json").is_file():
            return file
    where = f" beside {spec.model}" if folders_beside(spec.model) else ": the model is no file"
    raise SampleError(
        f"{spec.data}: holds texts, and there is no tokenizer.json{where}.",
        "Put the tokenizer of the model there (Hugging Face's save_pretrained writes it), or give "
        "token ids by input name (.npz).",
        code="QD-SAMPLES-TOKENIZER",
    )


def _config_beside(file: Path) -> Mapping[str, Any]:
    """tokenizer_config.json beside a tokenizer; nothing where that cannot be read."""
    try:
        data = json.loads(read_text(file.with_name("tokenizer_config.json")))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _longest_of(file: Path) -> int:
    """How many tokens the model takes at most, as the tokenizer's config says."""
    longest = _config_beside(file).get("model_max_length")
    if isinstance(longest, int | float) and 0 < longest < _NO_LIMIT:
        return int(longest)
    return _USUAL_LONGEST


def _open(file: Path) -> Any:
    """The tokenizer.

    Raises:
        SampleError: it is damaged, or `tokenizers` is not installed.
    """
    tokenizers = required(
        "tokenizers", f"{file}: a tokenizer", code="QD-SAMPLES-EXTRA", error=SampleError
    )
    repair = "Write it again with Hugging Face's save_pretrained."
    with reading(file, repair, "QD-SAMPLES-TOKENIZER"):
        return tokenizers.Tokenizer.from_file(str(file))


def _encoded(tokenizer: Any, texts: Texts, longest: int) -> list[Any]:
    """The encodings (tokenizers.Encoding), of at most `longest` tokens each, not padded."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    given = texts.texts if texts.pairs is None else list(zip(texts.texts, texts.pairs, strict=True))
    return [
        each
        for start in range(0, len(given), _BLOCK)
        for each in tokenizer.encode_batch(list(given[start : start + _BLOCK]))
    ]


def _padding_of(tokenizer: Any, file: Path) -> int:
    """The id that fills up: what the tokenizer pads with, its config's pad_token, or one of the
    usual names; 0 where it has none of them."""
    if tokenizer.padding:
        return int(tokenizer.padding["pad_id"])
    written = _config_beside(file).get("pad_token")
    name = written.get("content") if isinstance(written, dict) else written
    ids = (tokenizer.token_to_id(each) for each in (name, *_PADDING) if isinstance(each, str))
    return int(next((number for number in ids if number is not None), 0))


def _check_vocabulary(encoded: Sequence[Any], file: Path, spec: SampleSpec, ids: str) -> None:
    """Refuse a tokenizer with ids that the model's embedding does not have.

    Raises:
        SampleError: there is one.
    """
    rows = _embedding_rows(spec.model, ids)
    highest = max((max(each.ids, default=0) for each in encoded), default=0)
    if rows is not None and highest >= rows:
        raise SampleError(
            f"{file} gives the token id {highest}, and the embedding of {spec.model} has {rows} "
            "rows: it is the tokenizer of another model.",
            "Put the model's own beside it.",
            code="QD-SAMPLES-TOKENIZER",
        )


def _embedding_rows(model: str, ids: str) -> int | None:
    """How many rows the table has that an input looks up; None where that is not seen."""
    proto = onnx.ModelProto.FromString(read_bytes(model))
    tables = {each.name: each.dims for each in proto.graph.initializer}
    names = {ids}
    for node in proto.graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in names:
            names.add(node.output[0])
        elif node.op_type == "Gather" and node.input[1] in names and node.input[0] in tables:
            return int(tables[node.input[0]][0])
    return None


def _stacked(
    encoded: Sequence[Any], meaning: str, width: int, padding: int, taken: TensorSpec
) -> Array:
    """One field of all encodings, [texts, width], filled up at the end."""
    found = np.full((len(encoded), width), padding if meaning == _IDS else 0, taken.dtype)
    for row, each in zip(found, encoded, strict=True):
        values = getattr(each, meaning)
        row[: len(values)] = values
    return found
