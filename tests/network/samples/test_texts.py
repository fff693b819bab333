"""Texts as the inputs of a network: the tokenizer beside it makes token ids of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from refusals import refused

from qdebug.network.samples.opening import opened
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec

tokenizers = pytest.importorskip("tokenizers")

WORDS = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "good", "bad", "very", "film")
ALL = "input_ids", "attention_mask", "token_type_ids"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An embedding, with the tokenizer of its words beside it."""
    from tokenizers import models, pre_tokenizers, processors

    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    table = numpy_helper.from_array(np.zeros((len(WORDS), 2), np.float32), "table")
    node = helper.make_node("Gather", ["table", "input_ids"], ["y"])
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["N", "L"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "L", 2])
    graph = helper.make_graph([node], "g", [ids], [y], [table])
    save(helper.make_model(graph), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def inputs(*names: str, length: int | None = None) -> list[TensorSpec]:
    return [TensorSpec(name, ("N", length or "L"), np.dtype(np.int64)) for name in names]


def read(model: Path, name: str, content: str, *specs: TensorSpec, **settings: Any) -> Any:
    path = model.with_name(name)
    path.write_text(content)
    return opened(SampleSpec(str(path), model=str(model), **settings), specs)


def test_token_ids_are_padded_where_there_is_a_mask(model: Path) -> None:
    samples = read(model, "a.txt", "good film\n\nvery very bad film\n", *inputs(*ALL))
    found = samples.feeds(0, 2)
    assert found["input_ids"].tolist() == [[2, 4, 7, 3, 1, 1], [2, 6, 6, 5, 7, 3]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert found["token_type_ids"].sum() == 0
    assert (
        "2 texts (a.txt)" in samples.origin.told
        and "4 to 6 tokens, padded to 6" in samples.origin.told
    )


def test_pairs_have_types_and_labels(model: Path) -> None:
    rows = "sentence1,sentence2,label\ngood film,bad,yes\nbad,very bad,no\n"
    samples = read(model, "a.csv", rows, *inputs(*ALL))
    assert samples.feeds(0, 1)["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1]]
    assert samples.extras["labels"].tolist() == [1, 0] and list(samples.extras) == ["labels"]


def test_a_fixed_number_of_tokens_pads_and_cuts(model: Path) -> None:
    lines = (json.dumps({"text": text}) for text in ("good", "very very bad film"))
    samples = read(model, "a.jsonl", "\n".join(lines), *inputs("input_ids", length=5))
    assert samples.feeds(0, 2)["input_ids"].tolist() == [[2, 4, 3, 1, 1], [2, 6, 6, 5, 3]]
    assert "1 text cut at 5" in samples.origin.told


def test_without_a_mask_each_text_has_its_length(model: Path) -> None:
    samples = read(model, "a.txt", "good\nvery good film", *inputs("input_ids"))
    assert [samples.feeds(k, 1)["input_ids"].shape for k in range(2)] == [(1, 3), (1, 5)]
    config = {"model_max_length": 4}
    model.with_name("tokenizer_config.json").write_text(json.dumps(config))
    assert read(model, "a.txt", "very good film", *inputs("input_ids")).origin.told.endswith(
        "cut at 4"
    )


def test_refusals(model: Path) -> None:
    ids = inputs("input_ids")
    with refused("QD-SAMPLES-TEXT-INPUT", "'x' float32 [?, 3]"):
        read(model, "a.txt", "good", TensorSpec("x", (None, 3), np.dtype(np.float32)))
    with refused("QD-SAMPLES-TEXT-INPUT", "'pixel_values'"):
        read(model, "a.txt", "good", *inputs("input_ids", "pixel_values"))
    tokenizer = model.with_name("tokenizer.json")
    known = tokenizer.read_text()
    tokenizer.write_text(known.replace('"film":7', '"film":70').replace('"film": 7', '"film": 70'))
    with refused("QD-SAMPLES-TOKENIZER", "token id 70", "8 rows"):
        read(model, "a.txt", "good film", *ids)
    tokenizer.write_text("{}")
    with refused("QD-SAMPLES-TOKENIZER", "tokenizer.json: cannot be read"):
        read(model, "a.txt", "good film", *ids)
    tokenizer.unlink()
    with refused("QD-SAMPLES-TOKENIZER", "no tokenizer.json beside"):
        read(model, "a.txt", "good film", *ids)
