"""The command line: each command is a typed function in a file of its own; imports happen inside, so ``--help`` is
quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from kinema4d.cli.annotate import annotate
from kinema4d.cli.calibrate import calibrate
from kinema4d.cli.control import control
from kinema4d.cli.curate import curate
from kinema4d.cli.data_doctor import doctor as data_doctor
from kinema4d.cli.doctor import doctor
from kinema4d.cli.encode import encode
from kinema4d.cli.evaluate import evaluate
from kinema4d.cli.export import export
from kinema4d.cli.generate import generate
from kinema4d.cli.ingest import ingest
from kinema4d.cli.objects_fit import fit_object_command
from kinema4d.cli.objects_generate import generate_objects
from kinema4d.cli.objects_simulate import simulate_object_command
from kinema4d.cli.objects_train import train_objects
from kinema4d.cli.record_libero import record_libero
from kinema4d.cli.shards import shards
from kinema4d.cli.simulate import simulate
from kinema4d.cli.split import split
from kinema4d.cli.stats import stats
from kinema4d.cli.train import train
from kinema4d.cli.view import view
from kinema4d.cli.weights import weights

COMMANDS: dict[str, Any] = {
    "control": control,
    "simulate": simulate,
    "train": train,
    "evaluate": evaluate,
    "view": view,
    "calibrate": calibrate,
    "doctor": doctor,
    "weights": weights,
    "data": {
        "generate": generate,
        "ingest": ingest,
        "record-libero": record_libero,
        "annotate": annotate,
        "doctor": data_doctor,
        "curate": curate,
        "split": split,
        "stats": stats,
        "shards": shards,
        "encode": encode,
        "export": export,
    },
    "objects": {
        "generate": generate_objects,
        "fit": fit_object_command,
        "train": train_objects,
        "simulate": simulate_object_command,
    },
}
"""Every command; a dict is a group of commands."""
GROUPS = {
    "data": "Make, bring in, check, choose, split and convert 4D robot episodes.",
    "objects": "Make 4D objects, find the degrees of freedom of one from its own meshes or foretell them for any, and simulate it.",
}
"""What each group is for."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors of the user's making are one line on stderr and exit code 2."""
    try:
        _app(COMMANDS).cli(prog="kinema4d", args=arguments)
    except ValueError as error:
        print(f"kinema4d: error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None


def _app(commands: Mapping[str, Any]) -> tyro.extras.SubcommandApp:
    app = tyro.extras.SubcommandApp()
    for name, command in commands.items():
        if isinstance(command, dict):
            app.command(_app(command), name=name, help=GROUPS[name])
        else:
            app.command(command, name=name)
    return app
