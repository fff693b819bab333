"""What a page is made of, as data. The program in the page (scripts/page) reads these records as
JSON, as `results.to_json` writes them; nothing else passes between the two."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qdebug import __version__
from qdebug.results.shown_samples import ShownSample

Kind = Literal["compare", "calibrate", "bisect", "repair", "sweep", "ranges", "inspect", "model"]
"""The command whose result a run shows; "model" for a network without one."""


@dataclass(frozen=True)
class Node:
    """A node of the network.

    Attributes:
        name: as in the model. op: its ONNX type.
        scope: the blocks that it is in, outermost first: from its name, or repeated blocks.
        inputs: the nodes that it reads, as positions in Network.nodes; constants are not nodes.
        tensors: what it computes, by name.
        shape: of the first of those, such as "1×64×56×56"; "" where it is not known.
        weight: the shape of its weight; "" without one.
        layer: the layer of the result that it belongs to, as a position in `result.layers`; null
            where the result has none of it.
        group: the name of the layer that it is fused into, in the result or not: what the points
            of a search pin; "" for a node outside all layers.
        planned: the precision that was asked for; "" where nobody asked.
        built: what the engine computes it in; "" where that is not known.
    """

    name: str
    op: str
    scope: tuple[str, ...]
    inputs: tuple[int, ...]
    tensors: tuple[str, ...]
    shape: str = ""
    weight: str = ""
    layer: int | None = None
    group: str = ""
    planned: str = ""
    built: str = ""


@dataclass(frozen=True)
class Network:
    """The network, in execution order.

    Attributes:
        inputs, outputs: tensors by name.
        readers_of_inputs: for each input, the nodes that read it.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    readers_of_inputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Kernel:
    """A layer of the engine.

    Attributes:
        name: as the runtime names it.
        role: matrix, other, reformat, opaque or control (engine_info.layers.Role).
        precision: it computes in; "" where that is not known.
        nodes: those that it computes, as positions in Network.nodes; of one that only moves or
            converts data, those that it does it for.
        ms: of one execution; null where it was not measured.
        detail: tactic, formats and shapes, for people.
    """

    name: str
    role: str
    precision: str
    nodes: tuple[int, ...]
    ms: float | None
    detail: str = ""


@dataclass(frozen=True)
class Histogram:
    """How the values of a tensor are distributed, in bins of equal width from `low` to `high`.

    Attributes:
        reference, candidate: counts; null where the run keeps none.
        amax: the largest magnitude that the candidate's scale can hold; null for a tensor that is
            not quantized. bounds: the smallest and the largest value that it can hold.
        step: between two codes. clipped: the share of the candidate's values beyond the bounds, or
            of the reference's where there are no others; null where it is not known.
        samples: that were counted: the kept ones, or those of the calibration.
    """

    low: float
    high: float
    reference: tuple[int, ...] | None
    candidate: tuple[int, ...] | None
    amax: float | None = None
    bounds: tuple[float, float] | None = None
    step: float | None = None
    clipped: float | None = None
    samples: Literal["kept", "calibration"] = "kept"


@dataclass(frozen=True)
class Channels:
    """Each channel of a tensor.

    Attributes:
        axis: which axis they are along. count: how many there are; the lists may be of the worst.
        index: the number of each. amax: largest magnitude in the reference; null for NaN and Inf.
        sqnr_db: of the channel; null where it is infinite or not a number.
    """

    axis: int
    count: int
    index: tuple[int, ...]
    amax: tuple[float | None, ...]
    sqnr_db: tuple[float | None, ...]


@dataclass(frozen=True)
class Scatter:
    """Pairs of values, drawn evenly from all that are kept."""

    reference: tuple[float, ...]
    candidate: tuple[float, ...]


@dataclass(frozen=True)
class Picture:
    """A tensor of one sample as rows and columns.

    Attributes:
        sample: its number. channel: which one is shown; null for all that there are.
        shape: of the whole tensor.
        height, width: of what is shown; a larger tensor was averaged down.
        colours: 3 where it is an image in colours, else 1.
        low, high: the values that 0 and 255 stand for. largest_error: that 255 stands for in error.
        reference, candidate, error: bytes in base64, by row, colours last; error is the magnitude
            of the difference, 255 also where it is not a number.
    """

    sample: int
    channel: int | None
    shape: tuple[int, ...]
    height: int
    width: int
    colours: int
    low: float
    high: float
    largest_error: float
    reference: str
    candidate: str
    error: str


@dataclass(frozen=True)
class TensorDetails:
    """What a tensor's activations show. A part is null where the run does not keep what it needs.

    Attributes:
        samples: how many are kept of it, and so counted here.
        kept: their numbers.
    """

    name: str
    samples: int
    kept: tuple[int, ...]
    histogram: Histogram | None
    channels: Channels | None
    scatter: Scatter | None
    picture: Picture | None


@dataclass(frozen=True)
class Missing:
    """Something that the page cannot show.

    Attributes:
        what: such as "activations". reason: why. remedy: what to do to have it.
    """

    what: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Reproduction:
    """How to get the same result again.

    Attributes:
        command: a command line. versions: of packages. hashes: SHA-256 of files, by their role.
    """

    command: str
    versions: Mapping[str, str]
    hashes: Mapping[str, str]


@dataclass(frozen=True)
class RunData:
    """One result, and what is known about the network that it is about.

    Attributes:
        label: the name of the file. headline: the result in a sentence.
        result: its JSON, as the command's --json writes it; null for a network without one.
        network: null where the model is not at hand.
        details: the tensors that details are at hand of: name to number of the chunk with them.
        unfinished: the run is still being written.
        shown: the samples that lose most by the task (results/shown_samples.py).
    """

    label: str
    kind: Kind
    headline: str
    result: Mapping[str, Any] | None
    network: Network | None
    kernels: tuple[Kernel, ...] = ()
    details: Mapping[str, int] | None = None
    missing: tuple[Missing, ...] = ()
    reproduction: Reproduction | None = None
    unfinished: bool = False
    shown: tuple[ShownSample, ...] = ()


@dataclass(frozen=True)
class PageData:
    """All that a page shows: one run, or several to be compared.

    Attributes:
        served: it is shown by `qdebug view`, which gives details when they are asked for.
        version: of the files that are served; another one means that they were replaced.
    """

    title: str
    qdebug: str
    created: str
    runs: tuple[RunData, ...]
    served: bool = False
    version: str = ""

    @classmethod
    def now(cls, runs: tuple[RunData, ...], *, served: bool = False, version: str = "") -> PageData:
        """The page of these runs that this version makes at this moment."""
        title = " and ".join(run.label for run in runs)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(f"{title} – qdebug", __version__, created, runs, served, version)
