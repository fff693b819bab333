"""What a page can be made of: run files, the JSON of results, and results in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.commands.inspect import inspect
from qdebug.commands.report.reproduction import reproduction_of_run
from qdebug.config.look import InspectSettings
from qdebug.engine_info.files.description import describe_engine
from qdebug.engine_info.files.opening import engine_file_kind
from qdebug.engine_info.layers import EngineInfo, InfoSource
from qdebug.errors import ModelError, PlanError, QdebugError, StoreError, UsageError, given_by
from qdebug.execute.gather import from_records
from qdebug.execute.measure_options import CHANNEL_AXIS
from qdebug.inmemory import InMemory
from qdebug.inputfiles import read_bytes
from qdebug.network.layers import find_layers
from qdebug.network.load import ModelFile, read_model
from qdebug.network.prepare import prepare_model
from qdebug.page.data import Kind, Missing, RunData
from qdebug.page.details import KeptTensors
from qdebug.page.network import kernels_of, network_of
from qdebug.plan.description import DescribedGrid, Description, describe
from qdebug.plan.planfile import parse_plan
from qdebug.plan.quantize import symmetric_grid
from qdebug.result import Result, from_json
from qdebug.results.compare import CompareResult
from qdebug.results.inspect import InspectResult
from qdebug.results.recorded import Run
from qdebug.results.shown_samples import ShownSample
from qdebug.store.reader import RunReader
from qdebug.wording import option

_VERSION = 1


@dataclass(frozen=True)
class Source:
    """One result for a page.

    Attributes:
        data: what the page says of it, without details.
        order: the tensors that there are details of, those of the worst layers first.
        kept: reads them; None where the source has none.
    """

    data: RunData
    order: tuple[str, ...] = ()
    kept: KeptTensors | None = None


def of_run(reader: RunReader, model: str | None, label: str = "") -> Source:
    """What an open run file says.

    Args:
        reader: of the file.
        model: the network, for a file that does not hold it.
        label: what the page calls the run; "" takes the file's name.

    Raises:
        StoreError: the file is damaged.
        ModelError: `model` cannot be read.
    """
    with Run(reader.path) as run:
        headline = _headline(run.result)
    result, manifest = reader.results, reader.manifest
    missing: list[Missing] = []
    described = described_in(reader) or _of_model(model, manifest.get("model"), missing)
    kept = KeptTensors(reader, _grids(reader, described), _axes(described), _Calibrated(reader))
    missing += _absent(reader, result)
    order = tuple(name for name in _order(result, described) if name in kept.names)
    data = RunData(
        label=label or reader.path.name,
        kind="compare",
        headline=headline,
        result=result,
        network=network_of(described, result) if described else None,
        kernels=kernels_of(described, result) if described else (),
        missing=tuple(missing),
        reproduction=reproduction_of_run(manifest),
        shown=_shown_in(reader),
    )
    return Source(data, order, kept)


def _shown_in(reader: RunReader) -> tuple[ShownSample, ...]:
    """The samples that a run file shows.

    Raises:
        StoreError: they are damaged.
    """
    try:
        return tuple(from_json(ShownSample, entry) for entry in reader.shown)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{reader.path}: the worst samples cannot be read: {error}",
            "Copy the file again, or repeat the comparison.",
            code="QD-STORE-DAMAGED",
        ) from error


def _absent(reader: RunReader, result: Mapping[str, Any]) -> Iterator[Missing]:
    """What a run does not have, and which setting of compare gives it."""
    if not reader.samples:
        yield Missing(
            "activations",
            "The run keeps no activations, so there are no channels, points and pictures.",
            f"Compare again with {option('keep', 'worst:8')}.",
        )
    if not result.get("effect"):
        yield Missing(
            "effects",
            "What each layer costs at the outputs was not measured.",
            f"Compare again with {option('effect', 'fast')}.",
        )


def described_in(reader: RunReader) -> Description | None:
    """The network that a run file holds.

    Raises:
        StoreError: it cannot be read.
    """
    if not reader.network_text:
        return None
    try:
        return Description.from_text(reader.network_text)
    except ValueError as error:
        raise StoreError(
            f"{reader.path}: the network cannot be read: {error}",
            "Copy the file again, or repeat the comparison.",
            code="QD-STORE-DAMAGED",
        ) from error


def _of_model(given: str | None, named: object, missing: list[Missing]) -> Description | None:
    """The network by its model: the one given, or the one that a result names, where that is still
    the same. Where there is none, `missing` gets an entry.

    Raises:
        ModelError: the given one cannot be read.
    """
    told = named if isinstance(named, Mapping) else {}
    path, digest = str(told.get("path", "")), told.get("sha256")
    if given is not None:
        with given_by("model"):
            file = read_model(given)
        if digest not in (file.sha256, None):
            reason = f"{given} is not the file that was run: its SHA-256 is another one."
            by_name = "What the page shows of it is matched with the result by the names of nodes."
            missing.append(Missing("proof of the network", reason, by_name))
        return _described(file)
    try:
        file = read_model(path)
        if digest in (file.sha256, None):
            return _described(file)
        reason = f"{path} is not the model that was run: it has changed."
    except (ModelError, PlanError):
        reason = f"The result does not hold the network, and the model {path} cannot be read."
    missing.append(
        Missing("network", reason, f"Give the model that was run with {option('model')}.")
    )
    return None


def _described(file: ModelFile) -> Description:
    graph = prepare_model(file).graph
    return describe(graph, find_layers(graph), {})


def _grids(reader: RunReader, described: Description | None) -> dict[str, DescribedGrid]:
    """What tensors are rounded to: as the file says, or else by the ranges of the plan."""
    told = {t.name: t.grid for t in described.tensors if t.grid} if described else {}
    if told or not reader.plan_text or reader.network_text:
        return told
    try:
        ranges = parse_plan(reader.plan_text, "plan").tensors
    except QdebugError:
        return {}  # of another version
    found = {}
    for name, entry in ranges.items():
        if not isinstance(entry.amax, tuple):
            grid = symmetric_grid(entry.amax)
            found[name] = DescribedGrid(-entry.amax, entry.amax, grid.step)
    return found


def _axes(described: Description | None) -> dict[str, int]:
    """The axes of channels that follow from operators."""
    if described is None:
        return {}
    return {
        tensor: CHANNEL_AXIS[node.op]
        for node in described.nodes
        for tensor in node.outputs
        if node.op in CHANNEL_AXIS
    }


class _Calibrated(Mapping[str, TensorHistogram]):
    """What calibration saw of each tensor, read when it is asked for: of a large network it is more
    than the page needs."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    def __getitem__(self, tensor: str) -> TensorHistogram:
        """See Mapping: also what another version of qdebug wrote is not there."""
        record = self._reader.range_record(tensor)
        return from_records({tensor: record}).histograms[tensor]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.range_names)

    def __len__(self) -> int:
        return len(self._reader.range_names)


def _order(result: Mapping[str, Any], described: Description | None) -> list[str]:
    """Tensors in the order of their importance: what the worst layers compute and read, then all
    others."""
    reads: dict[str, list[str]] = {}
    for node in described.nodes if described else ():
        reads.setdefault(node.layer, []).extend(node.inputs)
    found: dict[str, None] = {}
    for layer in result["layers"]:
        found |= dict.fromkeys([layer["tensor"], *reads.get(layer["name"], ())])
    return list(found | dict.fromkeys(t["name"] for t in result["tensors"]))


def of_json(path: str, model: str | None) -> Source:
    """A file that `--json` of a command wrote.

    Raises:
        UsageError: it is not that, or of a newer version.
        ModelError: `model` cannot be read.
    """
    result = _read_result(path)
    try:
        headline: str = from_json(str, result["headline"])
        if _kind(result) == "compare":
            headline = _headline(CompareResult.from_dict(result))
        # The JSON of an inspection holds the layers of its engine, though not the model's nodes.
        info = from_json(EngineInfo, result) if _kind(result) == "inspect" else None
        if info is not None and info.source is InfoSource.ONNX:
            info = None  # the file is a model, which tells more
        return _of_result(Path(path).name, result, headline, model, info)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: has the schema {result['schema']!r}, but not its content: {error}",
            "Write the file again.",
            code="QD-USAGE-RESULT-FILE",
        ) from error


def of_result(found: Result, model: str | None, label: str = "") -> Source:
    """A result in memory.

    Args:
        found: the result.
        model: the network; None takes the one that the result names.
        label: what the page calls the result; "" takes the name of the model.

    Raises:
        ModelError: `model` cannot be read.
    """
    result = found.to_dict()
    info = found.info if isinstance(found, InspectResult) else None
    return _of_result(label or _named_model(result), result, _headline(found), model, info)


def _headline(found: Result) -> str:
    """A result in a sentence; of a comparison without its model and its verdict, which the page
    says beside it."""
    said = found.VIEWS.summary(found) if isinstance(found, CompareResult) else ""
    return said or found.headline()


def _of_result(
    label: str,
    result: Mapping[str, Any],
    headline: str,
    model: str | None,
    info: EngineInfo | None = None,
) -> Source:
    """`info`: of an inspected engine, which tells of the network where no model is given."""
    missing: list[Missing] = []
    if info is None or model is not None:
        described = _of_model(model, _model_of(result), missing)
    else:
        described = describe_engine(info)
        if not info.nodes:
            missing.append(_without_nodes())
    kind = _kind(result)
    if kind == "compare":
        missing.append(
            Missing(
                "activations",
                "The result is without its run file, so there are no histograms, channels, points "
                "and pictures.",
                f"Compare again with {option('output', 'run.h5')}, and report that file.",
            )
        )
    data = RunData(
        label=label,
        kind=kind,
        headline=headline,
        result=result,
        network=network_of(described, result) if described else None,
        kernels=kernels_of(described, result) if described else (),
        missing=tuple(missing),
    )
    return Source(data)


def _without_nodes() -> Missing:
    return Missing(
        "network",
        "The engine's file does not tell which nodes its model has: the graph shows its layers.",
        f"Give the model that was built with {option('model')}.",
    )


def _model_of(result: Mapping[str, Any]) -> object:
    """The path and SHA-256 of the model that a result is about. An inspection has none, but the
    file itself may be one."""
    return result.get("model") or {"path": result.get("file", "")}


def _named_model(result: Mapping[str, Any]) -> str:
    named: Any = _model_of(result)
    return Path(str(named.get("path", ""))).name


def _kind(result: Mapping[str, Any]) -> Kind:
    kind: Kind = result["schema"].removeprefix("qdebug.").partition("/")[0]
    return kind


def _read_result(path: str) -> dict[str, Any]:
    """The JSON of a result.

    Raises:
        UsageError: it is not that, or of a newer version.
    """
    try:
        found = json.loads(read_bytes(path))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}",
            "Give a run file of compare, or the JSON of a result.",
            code="QD-USAGE-FILE-UNREADABLE",
        ) from error
    except (ValueError, RecursionError):
        found = None
    schema = str(found.get("schema", "")) if isinstance(found, dict) else ""
    kind, _, version = schema.removeprefix("qdebug.").partition("/")
    if not schema.startswith("qdebug.") or kind not in _KINDS:
        raise UsageError(
            f"{path}: neither a run file nor the JSON of a result",
            f"Give a run file of compare, or what --json of {', '.join(_KINDS)} wrote.",
            code="QD-USAGE-RESULT-FILE",
        )
    if version != str(_VERSION):
        raise UsageError(
            f"{path}: has the schema {schema!r}; this qdebug reads 'qdebug.{kind}/{_VERSION}'",
            "Use the version of qdebug that wrote it.",
            code="QD-USAGE-RESULT-VERSION",
        )
    return dict(found)


_KINDS = tuple(kind for kind in get_args(Kind) if kind != "model")


def of_engine(file: str, more: Mapping[str, Any], model: str | None) -> Source:
    """What inspect finds in a file.

    Args:
        more: other files of the same engine, by the settings of inspect.

    Raises:
        QdebugError: one of them cannot be read, or is of another engine.
    """
    return of_result(inspect(InspectSettings(file=file, **more)), model, Path(file).name)


def joined(files: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The files, each with those after it that tell of the same engine: its profile, times and
    GPU. The settings of `inspect` name these."""
    found: list[tuple[str, dict[str, str]]] = []
    for file in files:
        setting = (
            None
            if isinstance(file, InMemory) or Path(file).suffix != ".json"
            else engine_file_kind(Path(file))
        )
        if found and setting is not None and setting not in ("layers", *found[-1][1]):
            found[-1][1][setting] = file
        else:
            found.append((file, {}))
    return found
