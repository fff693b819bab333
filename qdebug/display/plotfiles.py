"""Which figures of ranges go to which files; checked before the work starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qdebug.display import plots
from qdebug.errors import StoreError, UsageError
from qdebug.outputfiles import check_writable, output_exists
from qdebug.results.ranges import RangesResult, TensorDynamics
from qdebug.wording import option

_SUFFIXES = (".svg", ".png")
_OVERVIEW = "overview.png"
_LONGEST_STEM = 80


@dataclass(frozen=True)
class PlotFiles:
    """What the setting `plot` asks for.

    Attributes:
        path: a .svg or .png file, or a folder (one that exists, or a name without a suffix).
        tensors: those asked for by name.
        top: without them, the first so many get a figure each in a folder.
        force: replace existing files.

    Raises:
        UsageError: another suffix, several figures for one file, or matplotlib is missing.
        StoreError: the file exists and `force` is False, or it cannot be written.
    """

    path: str
    tensors: tuple[str, ...]
    top: int
    force: bool

    def __post_init__(self) -> None:
        plots.require_matplotlib()
        target = Path(self.path)
        if self.is_folder:
            self._check_new(target / _OVERVIEW)
            if not target.is_dir() and not target.absolute().parent.is_dir():
                raise StoreError(
                    f"{option('plot')}: {self.path}: no such folder",
                    f"Run 'mkdir -p {self.path}'.",
                    code="QD-STORE-OUTPUT-PATH",
                )
            return
        if target.suffix not in _SUFFIXES:
            raise UsageError(
                f"{option('plot')}: {self.path}: figures are .svg or .png files",
                "Give such a file, or a folder.",
                code="QD-USAGE-PLOT",
            )
        if len(self.tensors) > 1:
            raise UsageError(
                f"{option('plot')}: {self.path} is one file, but {len(self.tensors)} tensors are "
                "requested",
                "Give a folder, or one tensor.",
                code="QD-USAGE-PLOT",
            )
        check_writable(self.path, option("plot"))
        self._check_new(target)

    @property
    def is_folder(self) -> bool:
        """Whether `path` is to hold several figures."""
        return is_folder(self.path)

    def write(self, result: RangesResult) -> list[str]:
        """Draw; return the paths written.

        Raises:
            StoreError: a file of a tensor exists and `force` is False, or the disk refuses.
        """
        if not self.is_folder:
            figure = (
                plots.tensor_figure(result.tensors[0])
                if self.tensors
                else plots.overview_figure(result)
            )
            return [plots.save_figure(figure, Path(self.path), force=self.force)]
        folder = Path(self.path)
        files = _tensor_files(folder, self.tensors, self.top, result)
        for path in files:
            self._check_new(path)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{option('plot')}: {folder}: {error.strerror}",
                "Give another path.",
                code="QD-STORE-OUTPUT-PATH",
            ) from error
        figures = {folder / _OVERVIEW: plots.overview_figure(result)}
        figures |= {path: plots.tensor_figure(tensor) for path, tensor in files.items()}
        return [plots.save_figure(f, path, force=self.force) for path, f in figures.items()]

    def _check_new(self, path: Path) -> None:
        if path.exists() and not self.force:
            raise output_exists(str(path), option("plot"))


def drawn_files(path: str, tensors: tuple[str, ...], top: int, result: RangesResult) -> list[str]:
    """The paths that `PlotFiles` of the same arguments writes for `result`."""
    if not is_folder(path):
        return [path]
    folder = Path(path)
    return [str(folder / _OVERVIEW), *map(str, _tensor_files(folder, tensors, top, result))]


def _tensor_files(
    folder: Path, tensors: tuple[str, ...], top: int, result: RangesResult
) -> dict[Path, TensorDynamics]:
    shown = result.tensors if tensors else result.tensors[:top]
    return {folder / _file_name(tensor): tensor for tensor in shown}


def is_folder(path: str) -> bool:
    """Whether figures at `path` go into a folder: one that exists, or a name without a suffix."""
    target = Path(path)
    return path.endswith("/") or target.is_dir() or (bool(path) and not target.suffix)


def _file_name(tensor: TensorDynamics) -> str:
    """The position tells apart what is equal once it is fit for a file system."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", tensor.name).strip("._")[-_LONGEST_STEM:]
    return f"{tensor.position:04d}_{stem}.png"
