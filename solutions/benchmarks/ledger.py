"""What each optimisation of the engine is worth: a step with it beside the same step without.

`python solutions/benchmarks/ledger.py` measures all of them, or those that are named. Both
sides take turns, and what counts is the median of the ratios within a round. With `--publish`
the figures go into ledger.toml, beside what was expected and where it loses, a profile goes
into profile.json, and book/performance.md shows both; a machine that does other things is
refused.
"""

import datetime
import json
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import page
from bench import Setting, alternate, describe_machine, random_ids, timed

from gearworks import attention, hub, kv_cache, model, products
from gearworks.decoding import Context
from gearworks.errors import GearworksError, UsageError
from gearworks.profiling.machine import available_cores, measure_machine
from gearworks.profiling.profile import BLOCK_SIZE, Work, profile
from gearworks.serving import paged_cache
from gearworks.serving.paged_cache import PagedBatch, PagedKVCache

ROUNDS = 9
Side = Callable[[], float]                  # runs something, and says how many seconds it took


def batch_step(setting: Setting, batch: int, context: int = 128, block_size: int = BLOCK_SIZE,
               rounds: int = 5) -> Side:
    """A decoding step of so many sequences, over a paged cache as a server has it."""
    engine, rng = setting.ours.model, np.random.default_rng(0)
    blocks = -(-(context + 1) // block_size)
    memory = PagedKVCache(engine.config, batch * blocks, block_size)
    memory.keys[:], memory.values[:] = 0.1, 0.1
    # as they come to lie in a server whose sequences grow side by side
    tables = np.arange(batch * blocks).reshape(blocks, batch).T.tolist()
    ids, positions = rng.integers(100, 49_000, batch), np.full(batch, context)

    def step() -> float:
        return timed(lambda: [engine.forward(ids, positions, PagedBatch(
            memory, tables, [context] * batch, [1] * batch)) for _ in range(rounds)]) / rounds
    return step


def prefill(setting: Setting, length: int) -> Side:
    """A prompt of so many tokens, with the logits of its last one."""
    prompt = random_ids(length)
    return lambda: timed(lambda: Context(setting.ours.model, length).forward(prompt))


@contextmanager
def set_to(*settings: tuple[object, str, object]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in settings:
            stack.enter_context(patch.object(owner, name, value))
        yield


def without(side: Side, *settings: tuple[object, str, object]) -> Side:
    """The same, while these attributes have other values."""
    def run() -> float:
        with set_to(*settings):
            return side()
    return run


def few_rows(setting: Setting) -> tuple[Side, Side]:
    """Two rows go through a matrix one after the other, instead of in one product."""
    side = batch_step(setting, 2)
    return side, without(side, (products, "FEW", 1), (products, "EVEN", 1))


def even_rows(setting: Setting) -> tuple[Side, Side]:
    """Five rows are made eight with rows of zeros."""
    side = batch_step(setting, 5)
    return side, without(side, (products, "EVEN", 1))


def fused_projections(setting: Setting) -> tuple[Side, Side]:
    """One product for q, k and v, and one for gate and up, instead of five in all."""
    config, layers = setting.ours.model.config, setting.ours.model.weights.layers
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    x = np.ones((1, config.hidden_size), np.float32)
    whole = [matrix.T for layer in layers for matrix in (layer.qkv_proj, layer.gate_up_proj)]
    parts = [part for layer in layers
             for matrix, borders in ((layer.qkv_proj, [queries, queries + keys]),
                                     (layer.gate_up_proj, [config.intermediate_size]))
             for part in (np.ascontiguousarray(piece.T) for piece in np.split(matrix, borders))]

    def products_with(matrices: list[np.ndarray]) -> Side:
        return lambda: timed(lambda: [[x @ matrix for matrix in matrices]
                                      for _ in range(5)]) / 5
    return products_with(whole), products_with(parts)


def longer_side_contiguous(setting: Setting) -> tuple[Side, Side]:
    """Matrices of more outputs than inputs lie in memory as (in, out), the head too."""
    weights = setting.ours.model.weights
    ours = [matrix for layer in weights.layers for matrix in (layer.gate_up_proj,
                                                              layer.qkv_proj)]
    ours.append(weights.lm_head)
    rows = np.ones((1, weights.lm_head.shape[1]), np.float32)
    as_stored = [np.ascontiguousarray(matrix) for matrix in ours]     # (out, in), as in a file

    def products_with(matrices: list[np.ndarray]) -> Side:
        return lambda: timed(lambda: [[rows @ matrix.T for matrix in matrices]
                                      for _ in range(5)]) / 5
    return products_with(ours), products_with(as_stored)


def wanted_rows_of_the_last_layer(setting: Setting) -> tuple[Side, Side]:
    """In the last layer, only the token whose logits are wanted goes on after attention."""
    side, layer = prefill(setting, 512), model.decoder_layer

    def all_rows(x, weights, config, cos, sin, cache, index, rows=slice(None)):
        return layer(x, weights, config, cos, sin, cache, index)[rows]
    return side, without(side, (model, "decoder_layer", all_rows))


def wanted_logits(setting: Setting) -> tuple[Side, Side]:
    """Of a prompt, the logits of the last token alone."""
    engine, prompt = setting.ours.model, random_ids(512)
    positions = np.arange(len(prompt))

    def logits(which) -> Side:
        return lambda: timed(lambda: engine.forward(prompt, positions,
                                                    engine.new_cache(len(prompt)), which))
    return logits([-1]), logits(slice(None))


def blocks_of_queries(setting: Setting) -> tuple[Side, Side]:
    """A long prompt's attention in blocks of 64 queries, each with the keys that it can see."""
    side = prefill(setting, 1024)
    return side, without(side, (kv_cache, "QUERY_BLOCK", 10**9))


def larger_blocks_of_the_cache(setting: Setting) -> tuple[Side, Side]:
    """Blocks of 64 tokens in the paged cache instead of 16."""
    return (batch_step(setting, 8, context=512),
            batch_step(setting, 8, context=512, block_size=16))


def attention_of_all_at_once(setting: Setting) -> tuple[Side, Side]:
    """The attention of all decoding sequences in a few calls, instead of one by one."""
    side = batch_step(setting, 16)

    def one_by_one(q, keys, values, tables, lengths, counts, rules):
        return np.concatenate([
            attention.paged_attention(q[row:row + 1], keys, values, [tables[row]],
                                      [lengths[row]], [1], rules) for row in range(len(q))])
    return side, without(side, (paged_cache, "paged_attention", one_by_one))


def rows_in_a_batch(setting: Setting) -> tuple[Side, Side]:
    """Sixteen sequences in one step, instead of in sixteen steps."""
    together, alone = batch_step(setting, 16), batch_step(setting, 1)
    return together, lambda: 16 * alone()


OPTIMISATIONS: dict[str, Callable[[Setting], tuple[Side, Side]]] = {
    each.__name__.replace("_", "-"): each
    for each in (rows_in_a_batch, few_rows, even_rows, fused_projections,
                 longer_side_contiguous, wanted_rows_of_the_last_layer, wanted_logits,
                 blocks_of_queries, larger_blocks_of_the_cache, attention_of_all_at_once)}


def measure(name: str, setting: Setting) -> list[float]:
    """How many times as fast the engine is with an optimisation: each round's ratio, sorted."""
    with_it, without_it = alternate(*OPTIMISATIONS[name](setting), rounds=ROUNDS)
    return sorted(slow / fast for fast, slow in zip(with_it, without_it))


def with_figures(text: str, figures: Mapping[str, Sequence[float]], measured_on: str) -> str:
    """The ledger's file with what was measured: each round's ratio, sorted, by name."""
    head, *entries = text.split("[[optimisation]]\n")
    for place, entry in enumerate(entries):
        ratios = figures.get(tomllib.loads(entry)["name"])
        if ratios is None:
            continue
        text, end = entry.rstrip("\n"), entry[len(entry.rstrip("\n")):]
        kept = [line for line in text.splitlines()
                if not line.startswith(("measured", "low =", "high ="))]
        before = next(i for i, line in enumerate(kept) if line.startswith("command ="))
        kept[before:before] = [f"measured = {statistics.median(ratios):.2f}",
                               f"low = {ratios[0]:.2f}", f"high = {ratios[-1]:.2f}",
                               f'measured_on = "{measured_on}"']
        entries[place] = "\n".join(kept) + end
    return "[[optimisation]]\n".join([head, *entries])


def require_quiet() -> None:
    """Raise GearworksError where memory is not read equally fast each time."""
    numbers = np.ones(2**26, np.float32)
    seconds = [timed(numbers.max) for _ in range(30)]
    if statistics.median(seconds) < 0.9 * statistics.quantiles(seconds, n=10)[-1]:
        raise GearworksError("not measured",
                             "the machine is not quiet: reading memory took longer in some "
                             "rounds than in others",
                             "close what else is running, or measure without --publish")


def main(arguments: Sequence[str]) -> None:
    publish = "--publish" in arguments
    names = [each for each in arguments if each != "--publish"] or list(OPTIMISATIONS)
    unknown = set(names) - OPTIMISATIONS.keys()
    if unknown:
        raise UsageError(f"cannot measure {', '.join(sorted(unknown))}",
                         "there is no such optimisation",
                         f"name some of {', '.join(OPTIMISATIONS)}")
    setting = Setting(hub.smollm2_folder(), available_cores())
    if publish:
        require_quiet()
    figures = {}
    for name in names:
        figures[name] = measure(name, setting)
        print(f"{name}: {statistics.median(figures[name]):.2f} × "
              f"({figures[name][0]:.2f} to {figures[name][-1]:.2f})", flush=True)
    if publish:
        machine = measure_machine(setting.threads)
        works = Work(past_tokens=128), Work(batch=8, past_tokens=128), Work(new_tokens=512)
        profiles = [profile(setting.ours.model, work, machine, rounds)
                    for work, rounds in zip(works, (24, 12, 4))]
        require_quiet()
        measured_on = (f"{datetime.date.today()}, {describe_machine()['processor']}, "
                       f"{setting.threads} threads")
        file = page.HERE / "ledger.toml"
        file.write_text(with_figures(file.read_text(encoding="utf-8"), figures, measured_on),
                        encoding="utf-8")
        report = {"measured_on": measured_on, "machine": vars(machine),
                  "profiles": [each.as_json() for each in profiles]}
        (page.HERE / "profile.json").write_text(json.dumps(report, indent=2) + "\n",
                                                encoding="utf-8")
        page.write()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GearworksError as error:
        sys.exit(str(error))
