"""The command `gearworks generate`: a prompt or many of them, continued in one of three ways.

Tokens are chosen one by one, or the likeliest text is searched for with beams, or contrastive
search looks for one that does not repeat itself. The text goes to standard output, and all that
is known about it to standard error, or with `--json` both as one object. Many prompts are
answered together, one JSON object a line in the order of the prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearworks.cli import console, sampling
from gearworks.errors import GearworksError, UsageError

if TYPE_CHECKING:                       # slow to import, and not needed to print the help
    from gearworks.language_model import LanguageModel
    from gearworks.sampling import SamplingParams, TokenLogprob

Load = Callable[[str, bool, str], "LanguageModel"]
SOURCES = ("PROMPT", "--prompt-file", "--batch")


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `generate`, but for the model and the engine."""
    command.add_argument("prompt", metavar="PROMPT", type=console.text, nargs="?",
                         help="the text to continue; - reads standard input")
    command.add_argument("--prompt-file", type=Path, metavar="FILE",
                         help="continue the text in this file")
    command.add_argument("--batch", type=Path, metavar="FILE",
                         help="continue all prompts of a file, one a line, together, and print "
                              "a JSON object a line; in a .jsonl each line is a JSON string, "
                              'or an object with a "prompt"')
    command.add_argument("--chat", action="store_true",
                         help="treat the prompt as a user's message")
    command.add_argument("--system", metavar="TEXT", type=console.text,
                         help="with --chat: what the model is told before the message")
    command.add_argument("--json", action="store_true",
                         help="print one JSON object instead of the text")
    command.add_argument("--schema", type=Path, metavar="FILE",
                         help="answer in JSON that this JSON schema accepts")
    command.add_argument("--logprobs", type=console.count, metavar="N",
                         help="tell each token's log-probability, and those of the N likeliest")
    command.add_argument("--beams", type=console.positive_count, metavar="N",
                         help="search for the likeliest text with N beams")
    command.add_argument("--length-penalty", type=console.number, metavar="X",
                         help="with --beams: above 0 favours long texts (default 1)")
    command.add_argument("--contrastive", type=console.number, metavar="ALPHA",
                         help="search for a text that does not repeat itself, 0 to 1: how much "
                              "that counts; 0.6 is usual")
    command.add_argument("--candidates", type=console.positive_count, metavar="K",
                         help="with --contrastive: how many tokens are tried at each step "
                              "(default 4)")
    sampling.add_options(command, temperature=0.0)


def run(options: argparse.Namespace, load: Load) -> None:
    """Run the command. load(name, chat, backend): finds and loads a model."""
    # What can be refused without the model is refused before it is looked for
    params = sampling.params(options)
    refuse_combinations(options, params)
    prompts = read_prompts(options)
    schema = None if options.schema is None else read_schema(options.schema)
    backend = options.backend
    if options.contrastive is not None and backend == "auto":
        backend = "numpy"                           # it needs hidden states, which others keep
    model = load(options.model, options.chat, backend)
    params = sampling.for_model(params, options, model)
    sampling.tell(options, model, always=False)
    if options.batch is not None:
        answer_all(model, prompts, options, params, schema)
    elif options.beams is not None or options.contrastive is not None:
        search(model, prompts[0], options)
    else:
        answer(model, prompts[0], options, params, schema)


def refuse_combinations(options: argparse.Namespace, params: SamplingParams) -> None:
    """Raise UsageError for options that mean nothing together."""
    for name, needs in (("system", "chat"), ("length_penalty", "beams"),
                        ("candidates", "contrastive")):
        if getattr(options, name) is not None and getattr(options, needs) in (None, False):
            raise _conflict(name, f"it belongs to --{needs}", f"--{needs} as well")
    searches = [name for name in ("beams", "contrastive") if getattr(options, name) is not None]
    if not searches:
        return
    if len(searches) == 2:
        raise _conflict("beams", "--contrastive is another search", "one of the two")
    for name in ("batch", "schema", "logprobs", "stop", "model_settings"):
        if getattr(options, name) not in (None, [], False):
            raise _conflict(name, f"--{searches[0]} searches in a way of its own, without it",
                            f"leave out --{searches[0]}")
    given = sampling.given(options)
    if given:
        raise _conflict(given[0], f"--{searches[0]} draws nothing and changes no logits",
                        f"leave out --{searches[0]}")
    if options.contrastive is not None:
        if not 0 <= options.contrastive <= 1:
            raise _conflict("contrastive", f"{options.contrastive} is not between 0 and 1",
                            "0.6, which is usual")
        if options.backend not in ("auto", "numpy"):
            raise _conflict("contrastive", "it needs hidden states, which "
                            f"{options.backend} does not hand out", "--engine numpy")


def _conflict(name: str, why: str, hint: str) -> UsageError:
    return UsageError(f"cannot use --{name.replace('_', '-')} here", why, hint)


# --- prompts ----------------------------------------------------------------------------------

def read_prompts(options: argparse.Namespace) -> list[str]:
    """The prompts, from wherever they are to come. Raises GearworksError for none."""
    given = [source for source, value in zip(SOURCES, (options.prompt, options.prompt_file,
                                                       options.batch)) if value is not None]
    if len(given) != 1:
        raise UsageError("cannot run gearworks generate",
                         f"{' and '.join(given)} say what to continue" if given
                         else "PROMPT is missing", "one of " + ", ".join(SOURCES))
    if options.batch is not None:
        prompts = list(_lines(options.batch))
    elif options.prompt_file is not None:
        prompts = [_read(options.prompt_file)]
    else:
        prompts = [_stdin() if options.prompt == "-" else options.prompt]
    if not all(prompts) and not options.chat or not prompts:
        raise GearworksError("cannot generate", "the prompt is empty",
                             "give the model at least one character to continue")
    return prompts


def _stdin() -> str:
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    return sys.stdin.read()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")    # Windows' byte order mark is no text
    except (OSError, ValueError) as error:
        raise GearworksError(f"cannot read the prompt {path}", str(error),
                             "a file of text in UTF-8") from None


def _lines(path: Path) -> Iterable[str]:
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            yield line
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        prompt = said.get("prompt") if isinstance(said, Mapping) else said
        if not isinstance(prompt, str) or not prompt:
            raise GearworksError(f"cannot read the prompt in line {number} of {path}",
                                 f"it is {line!r:.80}",
                                 'a JSON string, or an object with a "prompt"')
        yield prompt


def read_schema(path: Path) -> str:
    """The grammar of the answers that the JSON schema in a file accepts."""
    from gearworks.structured import json_grammar

    try:
        # Editors on Windows put a byte order mark in front
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise GearworksError(f"cannot read the schema {path}", str(error),
                             "give a file that holds a JSON schema") from None
    return json_grammar(schema)


def _follow(grammar: str, model: LanguageModel):
    from gearworks.structured import GrammarVocabulary, TokenGrammar

    vocabulary = GrammarVocabulary(model.tokenizer, model.model.config.vocab_size,
                                   model.eos_ids)
    return lambda: TokenGrammar(vocabulary, grammar)


def _text(model: LanguageModel, prompt: str, options: argparse.Namespace) -> tuple[str, bool]:
    """What the model reads, and whether the tokenizer puts its BOS in front."""
    if not options.chat:
        return prompt, True
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return model.chat_prompt([*system, {"role": "user", "content": prompt}]), False


# --- answers ----------------------------------------------------------------------------------

def answer(model: LanguageModel, prompt: str, options: argparse.Namespace,
           params: SamplingParams, schema: str | None) -> None:
    """Continue one prompt, token by token."""
    grammar = None if schema is None else _follow(schema, model)()
    text, bos = _text(model, prompt, options)
    generation = model.generate(
        text, add_special_tokens=bos, params=params, max_tokens=options.max_tokens,
        stop=options.stop, grammar=grammar, top_logprobs=options.logprobs,
        on_text=None if options.json else print_now)
    if options.json:
        told = {"prompt_ids": generation.prompt_ids, "ids": generation.ids,
                "text": generation.text, "finish_reason": generation.finish_reason,
                "usage": generation.usage,
                "seconds": {"prefill": round(generation.prefill_seconds, 6),
                            "decode": round(generation.decode_seconds, 6)}}
        if options.logprobs is not None:
            told["logprobs"] = [_as_json(model, each) for each in generation.logprobs]
        print(json.dumps(told))
        return
    print(flush=True)
    for each in generation.logprobs:
        print(_as_line(model, each), file=sys.stderr)
    if grammar is not None and not grammar.may_end():
        raise GearworksError("this is only the beginning of an answer in JSON",
                             f"it was cut off after {len(generation.ids)} tokens",
                             "raise --max-tokens, or let the schema bound what is long")


def _as_json(model: LanguageModel, token: TokenLogprob) -> dict[str, Any]:
    def one(id: int, logprob: float) -> dict[str, Any]:
        return {"id": id, "text": model.tokenizer.decode([id]), "logprob": logprob}
    return one(token.id, token.logprob) | {"top": [one(*each) for each in token.top]}


def _as_line(model: LanguageModel, token: TokenLogprob) -> str:
    """Such as `-0.132  " Paris"   of " Paris" -0.132, " the" -2.871`."""
    def shown(id: int) -> str:
        return json.dumps(model.tokenizer.decode([id]), ensure_ascii=False)
    others = ", ".join(f"{shown(id)} {logprob:.3f}" for id, logprob in token.top)
    return f"{token.logprob:8.3f}  {shown(token.id):<14}" + (f"  of {others}" if others else "")


def search(model: LanguageModel, prompt: str, options: argparse.Namespace) -> None:
    """Continue one prompt by a search: with beams, or contrastive."""
    text, bos = _text(model, prompt, options)
    prompt_ids = model.tokenizer.encode(text, add_special_tokens=bos)
    if options.beams is not None:
        from gearworks.beam import beam_search

        found = beam_search(model.model, prompt_ids, options.beams, options.max_tokens,
                            model.eos_ids,
                            1.0 if options.length_penalty is None else options.length_penalty)
        texts = [[id for id in each.ids if id not in model.eos_ids] for each in found]
        scores = [{"score": each.score} for each in found]
    else:
        from gearworks.contrastive import contrastive_search

        texts = [contrastive_search(model.model, prompt_ids, options.max_tokens,
                                    options.candidates or 4, options.contrastive,
                                    model.eos_ids)]
        scores = [{}]
    told = [{"ids": ids, "text": model.tokenizer.decode(ids)} | score
            for ids, score in zip(texts, scores)]
    if options.json:
        print(json.dumps({"prompt_ids": prompt_ids, "found": told}))
    else:
        print(told[0]["text"])


def answer_all(model: LanguageModel, prompts: list[str], options: argparse.Namespace,
               params: SamplingParams, schema: str | None) -> None:
    """Continue many prompts together, each as it would be alone; one line of JSON for each."""
    from gearworks.serving.engine import LLMEngine
    from gearworks.serving.request import Request

    engine = LLMEngine(model)
    grammar = None if schema is None else _follow(schema, model)
    answers: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        text, bos = _text(model, prompt, options)
        ids = model.tokenizer.encode(text, add_special_tokens=bos)
        answers.append({"index": number, "prompt": prompt, "text": "", "ids": []})
        if options.logprobs is not None:
            answers[-1]["logprobs"] = []
        try:
            engine.add_request(Request(
                ids, params, max_tokens=options.max_tokens, stop=options.stop,
                top_logprobs=options.logprobs, grammar=grammar, id=str(number)))
        except GearworksError as error:             # of this prompt; the others go on
            _fail(answers[-1], error)
    printed = _print_in_order(answers, 0)
    while engine.has_unfinished():
        for delta in engine.step():
            one = answers[int(delta.request_id)]
            one["text"] += delta.text
            one["ids"] += delta.ids
            if options.logprobs is not None:
                one["logprobs"] += [_as_json(model, each) for each in delta.logprobs]
            if delta.error is not None:
                _fail(one, delta.error)
            elif delta.finish_reason is not None:
                one["finish_reason"] = delta.finish_reason
        printed = _print_in_order(answers, printed)
    failed = sum("error" in each for each in answers)
    if failed:
        raise GearworksError(f"{failed} of {len(answers)} prompts were not answered",
                             "their lines say why", "shorter prompts, or others")


def _fail(answer: dict[str, Any], error: GearworksError) -> None:
    answer |= {"finish_reason": "error", "error": f"{error.what}: {error.why}"}


def _print_in_order(answers: list[dict[str, Any]], printed: int) -> int:
    """Print the answers that are done, but none before those before it."""
    while printed < len(answers) and "finish_reason" in answers[printed]:
        print(json.dumps(answers[printed]), flush=True)
        printed += 1
    return printed


def print_now(text: str) -> None:
    """Print a piece of an answer at once."""
    print(text, end="", flush=True)
