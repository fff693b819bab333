"""Damage to a file, as its format is built: what a random byte would seldom hit."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import yaml
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Mutation = Callable[[random.Random, bytes], bytes]

INTEGERS = (0, 1, -1, 2, 7, 127, 255, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**62))
FLOATS = (0.0, -1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), 0.1)
TEXTS = (
    *("", "x", "conv1", "out", "\0", "a\0b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\r\nline"),
    *("\x9b31m", "\u202egnp", "name" * 500, "../../etc/passwd", "/dev/zero", "%s%n", "[red]x[/]"),
    *("[/nothing]", "{0}", "畳み込み", "\ud800", "é\u0301", "a: b", "'", '"', "\\", "-", "*", "~"),
)
WORDS = ("Conv", "Relu", "Gemm", "MatMul", "If", "Loop", "Constant", "QuantizeLinear", "Frobnicate")
VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], {"": None}, "", "text", "\ud800", "\0", "nan", "1e400"),
    *(0, -1, 10**400, 2**63, 1e308, -0.5, float("nan"), float("inf"), [1, 2], {"a": 1}),
)


def of_name(name: str) -> tuple[Mutation, ...]:
    """The mutations that suit a file of this name."""
    return _OF_SUFFIX.get(Path(name).suffix, (raw_bytes, text_lines))


def raw_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few bytes are changed, removed, doubled, or the end is cut off."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not found:
            break
        at = rng.randrange(len(found))
        length = min(rng.choice((1, 1, 4, 64)), len(found) - at)
        kind = rng.randrange(6)
        if kind == 0:
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del found[at : at + length]
        elif kind == 3:
            found[at:at] = found[at : at + length]
        elif kind == 4:
            found[at : at + 8] = struct.pack("<q", rng.choice(INTEGERS))[: max(0, len(found) - at)]
        else:
            del found[at:]
    return bytes(found)


def text_lines(rng: random.Random, data: bytes) -> bytes:
    """A line, or a word in it, is removed, doubled, moved or replaced."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(lines))
        kind = rng.randrange(5)
        if kind == 0:
            del lines[at]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines)), lines[at])
        elif kind == 2:
            lines[at] = rng.choice(TEXTS)
        else:
            words = lines[at].split(" ")
            words[rng.randrange(len(words))] = str(rng.choice((*TEXTS, *INTEGERS, *FLOATS)))
            lines[at] = " ".join(words)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


# ---- protocol buffers


def protobuf(kind: type[Message]) -> Mutation:
    """Fields of messages of this kind, anywhere in them, are changed, removed or doubled."""

    def mutate(rng: random.Random, data: bytes) -> bytes:
        message = kind()
        message.ParseFromString(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            _mutate_message(rng, rng.choice(_messages(message)))
        return message.SerializeToString()

    return mutate


def _messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if _is_repeated(field) else [value]:
                found += _messages(each)
    return found


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(getattr(field, "is_repeated", False))


def _mutate_message(rng: random.Random, message: Message) -> None:
    fields = list(message.DESCRIPTOR.fields)
    there = [field for field, _ in message.ListFields()]
    field = rng.choice(there if there and rng.random() < 0.85 else fields)
    if _is_repeated(field):
        _mutate_list(rng, getattr(message, field.name), field)
    elif rng.random() < 0.2 or field.message_type is not None:
        message.ClearField(field.name)
    else:
        _assign(message, field, rng)


def _mutate_list(rng: random.Random, items: Any, field: FieldDescriptor) -> None:
    kind = rng.randrange(4)
    if items and kind == 0:
        del items[rng.randrange(len(items))]
    elif items and kind == 1:
        copied = list(items)
        rng.shuffle(copied)
        copied = [type(i).FromString(i.SerializeToString()) for i in copied if _is_message(i)] or (
            copied
        )
        del items[:]
        items.extend(copied)
    elif items and kind == 2:
        items.append(items[rng.randrange(len(items))])
    elif field.message_type is not None:
        _mutate_message(rng, items.add())
    elif items:
        items[rng.randrange(len(items))] = _odd(rng, field, items[0])
    else:
        items.append(_odd(rng, field, None))


def _is_message(value: object) -> bool:
    return isinstance(value, Message)


def _assign(message: Message, field: FieldDescriptor, rng: random.Random) -> None:
    try:
        setattr(message, field.name, _odd(rng, field, getattr(message, field.name)))
    except (ValueError, TypeError):  # a number that the field has no room for
        message.ClearField(field.name)


def _odd(rng: random.Random, field: FieldDescriptor, before: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return raw_bytes(rng, before or b"\0\0\0\0")
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice((*TEXTS[:25], *WORDS)).replace("\ud800", "")
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM):
        return rng.choice([*range(26), *(i for i in INTEGERS if abs(i) < 2**31)])
    if field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64):
        return rng.choice([*range(8), *(i for i in INTEGERS if 0 <= i < 2**32)])
    return rng.choice([*range(8), *INTEGERS])


# ---- arrays


def npy(rng: random.Random, data: bytes) -> bytes:
    """The text of the header is changed, within its length or with a length that is right."""
    if not data.startswith(b"\x93NUMPY") or len(data) < 12:
        return raw_bytes(rng, data)
    length = int.from_bytes(data[8:10], "little")
    header, rest = data[10 : 10 + length], data[10 + length :]
    text = header.decode("latin-1")
    swaps = (
        *(("<f4", t) for t in ("<f8", ">f4", "<i4", "|O", "|V4", "<U9", "<M8[s]", "|S3", "<c8")),
        *(("False", "True"), ("fortran_order", "order"), ("(3,", "(-3,"), ("(3,", "(3.5,")),
        *((" 8)", " 2**63)"), (" 8)", f" {2**62})"), ("(3, 3", "(0, 3"), ("}", ""), ("{", "")),
        *(("'descr'", "'descr' 'x'"), ("(3, 3, 8, 8)", "()"), ("(3, 3, 8, 8)", "(" * 90)),
    )
    old, new = rng.choice(swaps)
    changed = text.replace(old, new) if rng.random() < 0.8 else raw_bytes(rng, header).decode("l1")
    if rng.random() < 0.5:
        changed = changed[:length].ljust(length)
    encoded = changed.encode("latin-1", "replace")
    return data[:8] + struct.pack("<H", len(encoded) % 65536) + encoded + rest


def npz(rng: random.Random, data: bytes) -> bytes:
    """A member is damaged, renamed, removed or doubled; or the archive itself is."""
    if rng.random() < 0.3:
        return raw_bytes(rng, data)
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        chosen = rng.choice(old.namelist())
        way = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        for name in old.namelist():
            content = old.read(name)
            if name == chosen:
                kind = rng.randrange(6)
                if kind == 0:
                    continue
                if kind == 1:
                    name = (
                        "n"
                        + rng.choice(TEXTS[:20]).replace("\0", "").replace("\ud800", "")
                        + ".npy"
                    )
                elif kind == 2:
                    content = raw_bytes(rng, content)
                else:
                    content = npy(rng, content)
            new.writestr(name, content, way)
    found = written.getvalue()
    return raw_bytes(rng, found) if rng.random() < 0.2 else found


# ---- HDF5


def hdf5(rng: random.Random, data: bytes) -> bytes:
    """A dataset, an attribute or a link is removed or replaced by another of another kind."""
    memory = io.BytesIO(data)
    with h5py.File(memory, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        for _ in range(rng.choice((1, 1, 2))):
            _mutate_node(rng, file, rng.choice(names))
    return memory.getvalue()


def _mutate_node(rng: random.Random, file: h5py.File, name: str) -> None:
    try:
        node = file.get(name)
    except RuntimeError:  # a link that an earlier mutation made leads to itself
        node = None
    if node is None:
        return
    kind = rng.randrange(5)
    if kind == 0:
        owner = rng.choice((node, file))
        keys = list(owner.attrs)
        if keys:
            key = rng.choice(keys)
            del owner.attrs[key]
            if rng.random() < 0.8:
                owner.attrs[key] = rng.choice(_CONTENTS)
    elif kind == 1 and isinstance(node, h5py.Dataset):
        _mutate_json(rng, file, name, node)
    else:
        content = node[()].reshape(-1) if _is_array(node) else rng.choice(_CONTENTS)
        del file[name]
        if kind == 2:
            file[name] = content if rng.random() < 0.5 else rng.choice(_CONTENTS)
        elif kind == 3:
            file[name] = rng.choice((h5py.SoftLink("/tensors"), h5py.ExternalLink("data.h5", "x")))
        elif kind == 4:
            file.create_group(name)


def _is_array(node: Any) -> bool:
    return isinstance(node, h5py.Dataset) and len(node.shape or ()) > 1 and node.dtype.kind in "fiu"


def _mutate_json(rng: random.Random, file: h5py.File, name: str, node: h5py.Dataset) -> None:
    """The text that a dataset holds, where it holds any."""
    found = node[()]
    text = found if isinstance(found, bytes) else getattr(found, "tobytes", bytes)()
    changed = (json_text if text[:1] in (b"{", b"[") else text_lines)(rng, text)
    del file[name]
    if isinstance(found, bytes):
        file[name] = changed.replace(b"\0", b"")
    else:
        file[name] = np.frombuffer(changed, np.uint8)


_CONTENTS: tuple[Any, ...] = (
    *("", "text", "\x1b[31m", "{}", "[]", 0, -1, 10**9, 1.5, float("nan"), True),
    *(np.zeros((0,)), np.zeros((2, 2)), np.arange(5), np.zeros(3, "S4"), np.zeros(3, complex)),
)


# ---- text formats


def json_text(rng: random.Random, data: bytes) -> bytes:
    """A value anywhere in it is replaced, removed or doubled."""
    try:
        document = json.loads(data)
    except ValueError:
        return raw_bytes(rng, data)
    for _ in range(rng.choice((1, 1, 3))):
        document = _mutated(rng, document)
    return json.dumps(document).encode("utf-8")


def _mutated(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.93:
        key = rng.choice(list(value))
        kind = rng.randrange(8)
        changed = dict(value)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[rng.choice(TEXTS)] = changed.pop(key)
        else:
            changed[key] = _mutated(rng, value[key])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.93:
        at = rng.randrange(len(value))
        kind = rng.randrange(8)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return [*value, value[at]]
        return [*value[:at], _mutated(rng, value[at]), *value[at + 1 :]]
    return rng.choice((*VALUES, rng.choice(TEXTS)))


def yaml_text(rng: random.Random, data: bytes) -> bytes:
    """As `json_text`; or an alias, a tag or a merge is put in."""
    if rng.random() < 0.2:
        return rng.choice(_BOMBS).encode() + data
    try:
        document = yaml.safe_load(data)
    except yaml.YAMLError:
        return text_lines(rng, data)
    for _ in range(rng.choice((1, 1, 3))):
        document = _mutated(rng, document)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode(
        "utf-8", "surrogatepass"
    )


def _bomb(levels: int, line: str) -> str:
    first = "a0: &a0 {x: 1, y: 2}\n"
    return first + "".join(line.format(n=n, m=n - 1) for n in range(1, levels))


_BOMBS = (
    _bomb(40, "a{n}: &a{n} [*a{m}, *a{m}, *a{m}]\n"),
    _bomb(24, "a{n}: &a{n} {{<<: *a{m}, b{n}: *a{m}, c{n}: *a{m}}}\n"),
    _bomb(30, "a{n}: &a{n} {{<<: [*a{m}, *a{m}]}}\n"),
    "a: &a [*a]\n",
    "a: !!python/object/apply:os.getcwd []\n",
    "a: " + "[" * 3000 + "\n",
    "tensors: {a: &b {amax: 1}, c: *b}\n",
    "? [1, 2]\n: 3\n",
    "a: 2024-13-45\n",
    f"a: {'9' * 5000}\n",
    "a: 1e400\nb: 0x\nc: 0o9\n",
    "%YAML 9.9\n---\n",
    "--- a\n--- b\n",
)

_OF_SUFFIX: Mapping[str, tuple[Mutation, ...]] = {
    ".onnx": (protobuf(onnx.ModelProto),) * 4 + (raw_bytes,),
    ".pb": (protobuf(onnx.TensorProto), raw_bytes),
    ".npy": (npy, npy, raw_bytes),
    ".npz": (npz,),
    ".h5": (hdf5, hdf5, hdf5, raw_bytes),
    ".json": (json_text, json_text, json_text, raw_bytes),
    ".yaml": (yaml_text, yaml_text, yaml_text, text_lines, raw_bytes),
}
