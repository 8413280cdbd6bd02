"""`gearworks profile`: its options, the steps that it runs, and what it leaves behind."""

import argparse
import json
import sys
from pathlib import Path

from gearworks.cli import console
from gearworks.errors import NotAvailableError

PREFILL, CONTEXT = 512, 128
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Profile</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{ max-width: 56rem; margin: 1rem auto; padding: 0 1rem }}</style></head>
<body>{figure}</body></html>
"""


def add_options(command: console.Parser) -> None:
    """The options of the command."""
    command.add_argument("--batch", type=console.positive_count, default=8, metavar="N",
                         help="sequences of the batch that is profiled beside a single one "
                              "(default %(default)s)")
    command.add_argument("--context", type=console.positive_count, metavar="N",
                         help="tokens that each sequence has in its cache when it decodes "
                              f"(default {CONTEXT}, or fewer where the model has no room)")
    command.add_argument("--prefill", type=console.positive_count, metavar="N",
                         help="tokens of the prompt that is profiled "
                              f"(default {PREFILL}, or what the model was made for)")
    command.add_argument("--rounds", type=console.positive_count, default=12, metavar="N",
                         help="how often each decoding step runs; a prefill runs a quarter as "
                              "often (default %(default)s)")
    command.add_argument("--json", action="store_true",
                         help="print one JSON object instead of the tables")
    command.add_argument("--figure", type=Path, metavar="FILE",
                         help="draw the profile too, as a page for a browser")


def run(options: argparse.Namespace) -> None:
    """Profile a decoding step, one of a batch, and a prefill."""
    figure = options.figure
    if figure is not None and (figure.is_dir() or not figure.absolute().parent.is_dir()):
        raise NotAvailableError(f"cannot save {figure}",
                                "it is a folder" if figure.is_dir()
                                else "its folder does not exist",
                                "the name of a file in a folder that exists")
    with console.interrupts_raise():
        _profile(options)


def _profile(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from gearworks.backends import load_model
    from gearworks.hub import find_model
    from gearworks.profiling.machine import measure_machine
    from gearworks.profiling.profile import Work, limits, profile

    model = load_model(find_model(options.model), options.backend,
                       say=lambda line: print(line, file=sys.stderr, flush=True))
    room = model.config.max_position_embeddings
    context = options.context or min(CONTEXT, room - 1)
    works = [Work(past_tokens=context),
             Work(new_tokens=options.prefill or min(PREFILL, room))]
    if options.batch > 1:
        works.insert(1, Work(batch=options.batch, past_tokens=context))
    machine = measure_machine()
    profiles = []
    for work in (bar := tqdm(works, unit=" steps", leave=False, disable=None)):
        bar.set_description(f"Profiling {work.name}")
        rounds = options.rounds if work.new_tokens == 1 else max(1, options.rounds // 4)
        profiles.append(profile(model, work, machine, rounds))
    if options.json:
        print(json.dumps({"model": options.model, "machine": vars(machine),
                          "profiles": [each.as_json() for each in profiles]}))
    else:
        print("\n\n".join([*(each.table() for each in profiles), limits(machine)]))
    if options.figure is not None:
        from gearworks.viz import step_profile

        page = _PAGE.format(figure=step_profile(profiles).html)
        options.figure.write_text(page, encoding="utf-8")
