"""What to do instead where a setting of other commands is given to one that has none of that
name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qdebug.config.commands import COMMANDS, Command
from qdebug.config.option import ENGINE, TENSORRT, settings_of
from qdebug.wording import option

_OF_SAMPLES = ("check", "init", "compare", "calibrate", "ranges", "bisect", "repair", "sweep")
"""Commands that run a model on samples: for others a setting of these makes no sense."""
_SEARCHED = ("never_pin", "pin_to")
_LIMITS = ("target", "max_drop", "max_rise")
_SETS = ("calib_data", "holdout", "inputs", "calib_samples", "holdout_share")


def instead(command: Command, name: str) -> str:
    """The next step for somebody who gave `command` the setting `name`, which only other commands
    have; "" where no command has it."""
    others = [c for c in COMMANDS.values() if name in _names(c)]
    if not others or (name in _names(command) and not is_told(command, name)):
        return ""  # `repair` has a switch of the name pin, and no --pin
    if command.name in _OF_SAMPLES:
        given = _ADVICE.get((command.name, name)) or _ADVICE.get(("", name))
        found = given or _by_group(command, name)
        if found:
            return _spelled(found)
    return f"`qdebug {others[0].name} --help` says what it does there."


def is_told(command: Command, name: str) -> bool:
    """Whether there is an advice for this very setting, however near another one is spelled."""
    return (command.name, name) in _ADVICE


def _names(command: Command) -> dict[str, str]:
    """The settings of a command, and the groups they stand in."""
    declared = (*settings_of(command.settings), *settings_of(command.shown))
    return {setting.name: setting.option.group for setting in declared}


def _by_group(command: Command, name: str) -> str:
    groups = {names[name] for c in COMMANDS.values() if name in (names := _names(c))}
    if groups & {ENGINE, TENSORRT} and command.name in _SIMULATED:
        return _SIMULATED[command.name]
    if name in (*_LIMITS, *_SEARCHED) and "fail_on" in _names(command):
        limit = "" if name in _SEARCHED else " {fail_on=metric>=0.97} is what must hold here."
        return f"`qdebug bisect` and `qdebug repair` search for what holds.{limit}"
    if name in (*_LIMITS, *_SEARCHED):
        return "`qdebug bisect` and `qdebug repair` search for what holds."
    if command.name == "init" and name in _SETS:
        return _INIT
    return ""


_INIT = (
    "Write `qdebug init MODEL DATA`: init divides the samples, and writes both parts as calib-data "
    "and inputs into the file, where other sets can be named."
)
_SIMULATED: Mapping[str, str] = {
    "check": "check runs FP32 on ONNX Runtime. `qdebug compare` runs other backends.",
    "init": "Write it into the file that init makes: `qdebug compare` reads it there.",
    "calibrate": "calibrate judges in the simulation. Then: `qdebug compare MODEL` with "
    "{calibration=FILE} and {backend}.",
    "ranges": "Ranges are FP32's on ONNX Runtime. `qdebug compare` runs other backends.",
    "repair": "repair judges in the simulation. Then: `qdebug compare REPAIRED.onnx` with "
    "{reference=MODEL} and {backend}.",
}
"""Of commands that build no engine, for the settings of engines."""

_ADVICE: Mapping[tuple[str, str], str] = {
    ("bisect", "reference"): "Give the FP32 model as MODEL, which bisect quantizes. Of a file that "
    "is quantized already, `qdebug compare QUANTIZED` with {reference=FP32} finds the layers, and "
    "`qdebug repair QUANTIZED` with {reference=FP32} keeps the fewest in higher precision.",
    ("", "reference"): "Give the FP32 model as MODEL: nothing is compared with it here.",
    ("ranges", "inputs"): "Give samples as {calib_data}, and those that may exceed their ranges as "
    "{holdout}.",
    ("calibrate", "inputs"): "Samples are given with {calib_data}; those that judge are {holdout}.",
    ("compare", "holdout"): "compare judges by {inputs}; ranges are those of {calib_data}.",
    ("compare", "holdout_share"): "compare judges by all of {inputs}; ranges are those of "
    "{calib_data}.",
    ("sweep", "holdout"): "sweep judges by {inputs}; ranges are those of {calib_data}.",
    ("sweep", "holdout_share"): "sweep judges by all of {inputs}; ranges are those of "
    "{calib_data}.",
    ("repair", "holdout"): "Give them as {inputs}: one half decides which remedies are kept, the "
    "other chooses between the networks that these lead to, and checks the answer.",
    ("check", "holdout"): "Give them as {inputs}: check looks at one set, and at {calib_data}.",
    ("bisect", "fail_on"): "What must hold is {target=metric>=0.97}: bisect ends with 1 where no "
    "answer meets it.",
    ("repair", "fail_on"): "What must hold is {target=metric>=0.97}: repair ends with 1 where "
    "nothing meets it.",
    ("", "fail_on"): "`qdebug compare` checks conditions.",
    ("bisect", "group"): "{worst_group=NAME} makes a target hold for each group of samples; "
    "`qdebug compare` lists groups.",
    ("repair", "group"): "{worst_group=NAME} makes a target hold for each group of samples; "
    "`qdebug compare` lists groups.",
    ("compare", "worst_group"): "{group=NAME} lists the metric by groups; `qdebug bisect` and "
    "`qdebug repair` make a target hold for the worst of them.",
    ("", "worst_group"): "`qdebug bisect` and `qdebug repair` make a target hold for the worst "
    "group of samples; `qdebug compare` lists groups.",
    ("init", "time_limit"): "init runs no search. `qdebug bisect` and `qdebug repair` stop after a "
    "time.",
    ("", "time_limit"): "This command runs to its end; fewer samples ({samples=N}) take less time. "
    "`qdebug bisect` and `qdebug repair` stop after a time.",
    ("init", "samples"): "init divides all of them. Commands that read the file it makes can be "
    "given fewer.",
    ("", "group"): "`qdebug compare` lists the metric by groups of samples.",
    ("repair", "pin"): "Pin it in a plan: `qdebug compare MODEL` with {pin=NAME} and "
    "{save_plan=plan.yaml}; then `qdebug repair MODEL` with {plan=plan.yaml}.",
    ("sweep", "pin"): "Pin it in a plan: `qdebug compare MODEL` with {pin=NAME} and "
    "{save_plan=plan.yaml}; then `qdebug sweep MODEL` with {plan=plan.yaml}.",
    ("bisect", "save_plan"): "bisect writes its plan with {output=precision.yaml}.",
    ("", "save_plan"): "`qdebug compare`, `qdebug repair` and `qdebug bisect` write plans.",
    ("", "trt_cache"): "`qdebug calibrate` writes one, and `qdebug export PLAN` with "
    "{to=trt-cache}.",
    ("", "top"): "All are in the JSON: {json_to=-}.",
    ("", "framework"): "`qdebug check` compares the model with what the framework gave.",
    ("", "capture"): "`qdebug compare` keeps tensors beside the outputs.",
    ("", "html"): "{json_to=FILE.json} writes all that is known.",
    ("bisect", "allow_unquantized"): "Leave it out: bisect says which layers stay unquantized.",
    ("repair", "allow_unquantized"): "Leave it out: repair says which layers stay unquantized.",
    ("", "plan"): "`qdebug compare` runs plans.",
    ("", "metric"): "`qdebug compare` and `qdebug calibrate` judge by metrics.",
}
"""By command, "" for all others that run a model, and setting; {names} in braces are spelled as the
user writes them."""


def _spelled(advice: str) -> str:
    def setting(found: re.Match[str]) -> str:
        name, _, value = found[1].partition("=")
        return option(name, value or None)

    return re.sub(r"\{(.*?)\}", setting, advice)
