"""Options of how tokens are chosen, which `generate` and `chat` have in common."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from gearworks.cli import console

if TYPE_CHECKING:                       # slow to import, and not needed to print the help
    from gearworks.language_model import LanguageModel
    from gearworks.sampling import SamplingParams

# Of `samplers.OtherSamplers`, whose defaults hold: name, kind, metavar, help
OTHERS = (
    ("min_tokens", console.whole_number, "N", "no answer ends before it has N tokens"),
    ("dry_multiplier", console.number, "X",
     "DRY: a token that would go on with a repeat loses X or more; 0.8 is usual"),
    ("dry_base", console.number, "B",
     "DRY: how much more for each token of the repeat (default 1.75)"),
    ("dry_allowed_length", console.positive_count, "N",
     "DRY: shorter repeats cost nothing (default 2)"),
    ("dry_penalty_last_n", console.positive_count, "N",
     "DRY: look for repeats in the last N tokens (default: in all)"),
    ("xtc_probability", console.number, "P",
     "XTC: rule out the top choices, for this share of tokens"),
    ("xtc_threshold", console.number, "P",
     "XTC: a top choice has this probability (default 0.1); the least likely one stays"),
    ("top_n_sigma", console.number, "N",
     "choose among tokens at most N standard deviations below the likeliest"),
    ("dynatemp_range", console.number, "R",
     "a temperature R lower where the model is certain, up to R higher where it is not"),
    ("dynatemp_exponent", console.number, "E", "how it rises in between (default 1)"))


def _stop(argument: str) -> str:
    if not argument:
        raise argparse.ArgumentTypeError("an empty text would end every answer at once; "
                                         "another text, or no --stop")
    return _text(argument)


def _text(argument: str) -> str:
    r"""A text in which \n, \t and \\ mean in any shell what they mean in Python."""
    escapes = {"n": "\n", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nt\\])", lambda escape: escapes[escape[1]], console.text(argument))


# Of `SamplingParams`, with what holds where neither the user nor the model says otherwise.
DEFAULTS = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def add_options(command: argparse.ArgumentParser, temperature: float) -> None:
    """Add the options of how tokens are chosen. temperature: the default."""
    command.set_defaults(sampling_defaults=DEFAULTS | {"temperature": temperature})
    command.add_argument("--max-tokens", type=console.count, default=256, metavar="N",
                         help="longest answer (default %(default)s)")
    command.add_argument("--model-settings", action="store_true",
                         help="choose as the model's publisher recommends, where nothing else "
                              "is said here")
    command.add_argument("--temperature", type=console.number, metavar="T",
                         help=f"0 is greedy; higher is more varied (default {temperature})")
    command.add_argument("--top-k", type=console.whole_number, metavar="K",
                         help="choose among the K likeliest; 0 among all")
    command.add_argument("--top-p", type=console.number, metavar="P",
                         help="choose among the likeliest that have probability P together")
    command.add_argument("--min-p", type=console.number, metavar="P",
                         help="choose among tokens at least P times as likely as the likeliest")
    command.add_argument("--repetition-penalty", type=console.number, metavar="R",
                         help="above 1, tokens that occurred become less likely")
    command.add_argument("--presence-penalty", type=console.number, metavar="R",
                         help="subtracted from tokens that were generated")
    command.add_argument("--frequency-penalty", type=console.number, metavar="R",
                         help="subtracted from tokens for each time that they were generated")
    command.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", type=_stop,
        help=r"end the answer before this text (\n is a line break); may be repeated")
    command.add_argument("--seed", type=console.whole_number, metavar="S",
                         help="the same seed gives the same text")
    others = command.add_argument_group("samplers of other engines", "all are off by default")
    for name, kind, metavar, words in OTHERS:
        others.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar,
                            help=words)
    others.add_argument(
        "--dry-sequence-breaker", action="append", metavar="TEXT", type=_text,
        help=r'a text that no repeat reaches across, instead of \n : " and *; may be repeated')


def params(options: argparse.Namespace) -> SamplingParams:
    """The settings, as far as they go without a model. Raises ModelError for bad values."""
    from gearworks.samplers import OtherSamplers
    from gearworks.sampling import SamplingParams

    asked = {name: getattr(options, name) for name, *_ in OTHERS}
    others = OtherSamplers(**{name: value for name, value in asked.items()
                              if value is not None})
    chosen = {name: default if getattr(options, name) is None else getattr(options, name)
              for name, default in options.sampling_defaults.items()}
    return SamplingParams(**chosen, seed=options.seed, others=others)


def given(options: argparse.Namespace) -> list[str]:
    """The names of those options that the user gave a value."""
    names = [*DEFAULTS, "seed", *(name for name, *_ in OTHERS), "dry_sequence_breaker"]
    return [name for name in names if getattr(options, name) is not None]


def for_model(params: SamplingParams, options: argparse.Namespace,
              model: LanguageModel) -> SamplingParams:
    """The same settings, for a model that is there; with its own, if they are wanted."""
    from gearworks.samplers import BREAKERS

    if options.model_settings:
        params = replace(params, **{name: value for name, value in model.recommended.items()
                                    if getattr(options, name) is None})
    return replace(params, others=params.others.for_model(
        model.tokenizer, options.dry_sequence_breaker or BREAKERS, model.eos_ids))


def tell(options: argparse.Namespace, model: LanguageModel, always: bool) -> None:
    """Say on standard error what the model's publisher recommends, if anything, and whether it
    holds. always: also where nobody looks and nothing was asked for."""
    if not model.recommended or not (always or options.model_settings or sys.stderr.isatty()):
        return
    settings = ", ".join(f"{name} {value:g}" for name, value in model.recommended.items())
    print(f"[the model's own settings: {settings}"
          + ("" if options.model_settings else "; --model-settings takes them") + "]",
          file=sys.stderr)
