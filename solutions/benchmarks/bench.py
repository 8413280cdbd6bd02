"""The engine beside Hugging Face's, on the same weights, threads and machine, in one run.

Run it with `gearworks bench`. Every comparison lets the two sides take turns, and what counts
is the median over a fixed number of rounds of the ratio within one round: whatever else the
machine does disturbs both sides of a round alike, and no round is chosen. The README shows
`results.json`: the newest run on each kind of machine, with the promises that it kept and those
that it missed. `gearworks bench --publish` replaces it, together with the README's tables and
the figures of book/performance.md.
"""

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import batches
import numpy as np
import page
import psutil
import race
import torch
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer as HFTokenizer, decoders, models, pre_tokenizers, trainers
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, utils

from gearworks import hub
from gearworks.decoding import Context
from gearworks.errors import GearworksError
from gearworks.kernels.cpu.model import CompiledModel
from gearworks.language_model import LanguageModel
from gearworks.profiling.machine import processor_name
from gearworks.sampling import SamplingParams, choose
from gearworks.sentencepiece import AnyTokenizer
from gearworks.speculative import NgramProposer, speculate
from gearworks.tokenizer import Tokenizer
from gearworks.weights import load_checkpoint

RESULTS = Path(__file__).with_name("results.json")
README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- gearworks bench: begin -->\n", "<!-- gearworks bench: end -->"
MEGABYTE = 1_000_000
# does the machine do other things? A run that says so is not published
QUIET = "memory reads, the slowest tenth"
ROUNDS = 15             # of a comparison; one that takes long has fewer, always the same number


@dataclass(frozen=True)
class Result:
    """One line of the table.
    A ratio says how many times better ours is, whichever direction is better."""

    what: str
    unit: str
    ours: float
    # what ours is held against: an engine, the machine's limit, or a bound that we set
    beside: str
    theirs: float
    # the median over the rounds; `low` and `high` are the smallest and the largest
    ratio: float
    low: float
    high: float
    target: float               # the ratio that is promised

    @classmethod
    def of(cls, what: str, unit: str, ours: Sequence[float], beside: str,
           theirs: Sequence[float], target: float, amount: float = 0) -> "Result":
        """From what each round measured.
        `amount` turns seconds into amount per second; then more is better."""
        ratios = [their / our for our, their in zip(ours, theirs)]
        shown = [amount / statistics.median(side) if amount else statistics.median(side)
                 for side in (ours, theirs)]
        return cls(what, unit, shown[0], beside, shown[1], statistics.median(ratios),
                   min(ratios), max(ratios), target)


@dataclass(frozen=True)
class Setting:
    """What the measurements share."""

    folder: Path
    threads: int

    @functools.cached_property
    def ours(self) -> LanguageModel:
        return LanguageModel.load(self.folder)

    @functools.cached_property
    def compiled(self) -> LanguageModel:
        """The same weights in the compiled engine, which serves where Numba is there."""
        return replace(self.ours,
                       model=CompiledModel.load(self.folder, "exact", self.threads))

    @functools.cached_property
    def theirs(self) -> Any:
        utils.logging.disable_progress_bar()
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()


def decode(setting: Setting) -> list[Result]:
    """Greedy tokens at batch 1 after a prompt of 64; how close to memory's speed they come."""
    model, count, prompt = setting.ours.model, 48, random_ids(64)

    def ours() -> float:
        cache = model.new_cache(len(prompt) + count)
        logits = model.forward(prompt, np.arange(len(prompt)), cache, logits_at=[-1])
        started = time.perf_counter()
        for position in range(len(prompt), len(prompt) + count):
            logits = model.forward(logits[0].argmax(keepdims=True), np.array([position]), cache)
        return (time.perf_counter() - started) / count

    def hugging_face() -> float:
        ids = torch.from_numpy(prompt)[None]

        def seconds(tokens: int) -> float:
            return timed(lambda: setting.theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
                min_new_tokens=tokens, do_sample=False, pad_token_id=0))
        prefill_alone, whole = seconds(1), seconds(1 + count)
        return (whole - prefill_alone) / count

    weights = np.ones(model.weights.nbytes() // 4, np.float32)

    def memory_reads() -> float:
        """Seconds a token to read every weight once, for as many tokens as the others make."""
        parts = np.array_split(weights, setting.threads)
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(setting.threads) as pool:
            return timed(lambda: [list(pool.map(lambda part: part @ part, parts))
                                  for _ in range(count)]) / count

    matrices = [matrix for layer in model.weights.layers for matrix in vars(layer).values()
                if matrix is not None and matrix.ndim == 2] + [model.weights.lm_head]
    rows = {matrix.shape[1]: np.ones((1, matrix.shape[1]), np.float32) for matrix in matrices}

    def products() -> float:
        """Seconds of the matrix products of a token, and of nothing else."""
        return timed(lambda: [[rows[matrix.shape[1]] @ matrix.T for matrix in matrices]
                              for _ in range(count)]) / count

    beside_hf, hf = alternate(ours, hugging_face)
    # the bound is near
    mine, limit, multiplied = alternate(ours, memory_reads, products, rounds=3 * ROUNDS)
    return [Result.of("decode, batch 1", "tokens/s", beside_hf, "HF generate", hf, 2.0,
                      amount=1),
            Result.of("decode, batch 1", "tokens/s", mine, "memory bandwidth", limit, 0.8,
                      amount=1),
            Result.of("decode, batch 1", "tokens/s", mine, "its matrix products alone",
                      multiplied, 0.75, amount=1),
            Result.of(QUIET, "GB/s", [statistics.quantiles(limit, n=10)[-1]], "their median",
                      [statistics.median(limit)], 0.9, amount=weights.nbytes / 1e9)]


def prefill(setting: Setting) -> list[Result]:
    """Prompts of 512 and 2,048 tokens; both sides compute the last token's logits only."""
    results = []
    for length, implementation, rounds in ((512, "sdpa", ROUNDS), (2048, "eager", 5)):
        prompt = random_ids(length)
        ids = torch.from_numpy(prompt)[None]
        setting.theirs.set_attn_implementation(implementation)
        mine, hf = alternate(
            lambda: timed(lambda: Context(setting.ours.model, length).forward(prompt)),
            lambda: timed(lambda: setting.theirs(ids, logits_to_keep=1)), rounds=rounds)
        beside = "HF forward" if implementation == "sdpa" else f"HF forward, {implementation}"
        results.append(Result.of(f"prefill, {length:,} tokens", "s", mine, beside, hf, 1.0))
    setting.theirs.set_attn_implementation("sdpa")
    return results


def sampling(setting: Setting) -> list[Result]:
    """Choosing a token with every processor on:
    SmolLM2's vocabulary beside its decode step, and one of 151,936."""
    model, prompt, rng = setting.ours.model, random_ids(64), np.random.default_rng(0)
    params = SamplingParams(0.7, 40, 0.9, 1.1, min_p=0.05, typical_p=0.95, presence_penalty=0.5,
                            frequency_penalty=0.5, logit_bias={3: 1.0})
    context = Context(model, len(prompt) + 20 * (ROUNDS + 1))
    logits = context.forward(prompt)
    large = (2 * rng.standard_normal(151_936)).astype(np.float32)
    large[:60] += np.linspace(15, 5, 60, dtype=np.float32)
    # as inside a string of JSON
    allowed, most = (rng.random(size) < 0.9 for size in (len(logits), len(large)))
    chosen, step, chosen_of_many = alternate(
        lambda: timed(lambda: [choose(logits, params, prompt, rng, prompt[:20], allowed)
                               for _ in range(20)]) / 20,
        lambda: timed(lambda: [context.forward([7]) for _ in range(20)]) / 20,
        lambda: timed(lambda: [choose(large, params, prompt, rng, prompt[:20], most)
                               for _ in range(20)]) / 20)
    milliseconds = [[1e3 * seconds for seconds in side]
                    for side in (chosen, step, chosen_of_many)]
    return [Result.of("choose of 49,152, all processors", "ms", milliseconds[0],
                      "5 % of a decode step", [0.05 * each for each in milliseconds[1]], 1.0),
            Result.of("choose of 151,936, all processors", "ms", milliseconds[2], "bound",
                      [2.0] * ROUNDS, 1.0)]


EDIT = """Write this text again, with the name Ada in place of the name Grace:

Grace got up at six. Grace made tea, and fed the cat, and looked out of the window at the \
rain. "It will stop by noon," said
Grace, and the cat, who had opinions about rain, said nothing. At eight Grace took the bus to \
the harbour, where the boats
lay in two rows, and counted them, as she did every morning. There were fourteen. Yesterday \
there had been fifteen."""


def speculation(setting: Setting) -> list[Result]:
    """An answer that repeats its prompt, with guesses from it and without: the same tokens."""
    llm, count = setting.ours, 96
    ids = llm.tokenizer.encode(llm.chat_prompt([{"role": "user", "content": EDIT}]))
    texts = []

    def run(proposer, guesses: int) -> float:
        context, started = Context(llm.model, len(ids) + count), []

        def first(token: int) -> bool:
            started.append(time.perf_counter())
            return False
        texts.append(speculate(context, ids, proposer, count=guesses, max_tokens=count,
                               eos_ids=llm.eos_ids, on_token=first))
        return (time.perf_counter() - started[0]) / (len(texts[-1][0]) - 1)
    guessed, plain = alternate(lambda: run(NgramProposer(), 8), lambda: run(NgramProposer(), 0),
                               rounds=5)
    if any(text != texts[0] for text in texts):
        raise GearworksError("cannot compare", "speculation changed the text",
                             "run solutions/tests/test_speculative.py")
    return [Result.of("rewrite a text, n-gram guesses", "tokens/s", guessed, "without guesses",
                      plain, 1.5, amount=1)]


def batching(setting: Setting) -> list[Result]:
    """A trace of 32 chat requests, in one engine; beside it each alone, and padded batches.

    These runs take minutes each, so there are three rounds, and no warm-up of such length.
    """
    arriving = batches.chat_requests(setting.ours)
    wanted = [request for _, request in arriving]
    tokens = sum(request.max_tokens for request in wanted)
    first = {size: batches.static_batches(setting.theirs, wanted, size)
             for size in batches.STATIC_BATCHES}
    best = min(first, key=first.get)
    sides = [functools.partial(measure, llm, arriving)
             for llm in (setting.ours, setting.compiled)
             for measure in (batches.together, batches.one_by_one)]
    rounds = [(*(side() for side in sides),
               batches.static_batches(setting.theirs, wanted, best) if number else first[best])
              for number in range(3)]
    together, alone, compiled, compiled_alone, static = zip(*rounds)
    padded = f"HF `generate`, padded batches of {best}"
    return [Result.of(what, "tokens/s", ours, beside, theirs, target, amount=tokens)
            for what, ours, single in (("batching, 32 chat requests", together, alone),
                                       ("batching, the same, exact", compiled, compiled_alone))
            for beside, theirs, target in (("one by one", single, 3.0), (padded, static, 2.0))]


def sharing(setting: Setting) -> list[Result]:
    """What serving costs beside the model, what blocks cost, and what a shared prefix saves."""
    llm = setting.ours
    steps = [batches.bookkeeping(llm) for _ in range(5)]
    spent, allowed = [beside for _, beside in steps], [0.05 * step for step, _ in steps]
    hit, cold = alternate(lambda: batches.first_token(llm, True),
                          lambda: batches.first_token(llm, False), rounds=5)
    paged, contiguous = alternate(*batches.paged_and_contiguous(llm))
    http, direct = alternate(*batches.engine_and_http(llm), rounds=5)
    return [Result.of("serving 64 at once, beside the model", "s a step", spent,
                      "5 % of the step", allowed, 1.0),
            Result.of("first token behind 1,000 shared ones", "s", hit, "nothing shared", cold,
                      5.0),
            Result.of("step of 8 at 512 tokens, in blocks", "s", paged, "contiguous caches",
                      contiguous, 1 / 1.35),
            Result.of("16 streams over HTTP", "tokens/s", http, "the engine itself", direct,
                      0.9, amount=16 * 64)]


def load(setting: Setting) -> list[Result]:
    """Opening a file and bringing all of it into our layout; the package leaves the file's.

    And all that a command does before its first token, in a process of its own.
    """
    command = [sys.executable, "-m", "gearworks", "generate", str(setting.folder), "The",
               "--max-tokens", "1"]
    # As for a user: with the compiled modules that the round before has left
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start() -> float:
        return timed(lambda: subprocess.run(command, env=environment, check=True,
                                            stdout=subprocess.DEVNULL))
    first, = alternate(start, rounds=5)
    gguf, file = hub.smollm2_gguf(), setting.folder / "model.safetensors"
    mine, = alternate(lambda: timed(lambda: load_checkpoint(gguf)))
    ours, theirs = alternate(lambda: timed(lambda: load_checkpoint(setting.folder)),
                             lambda: timed(lambda: load_file(file)))
    return [Result.of("load the GGUF", "s", mine, "bound", [3.0] * len(mine), 1.0),
            Result.of("load safetensors", "s", ours, "the safetensors package", theirs,
                      1 / 1.5),
            Result.of("load and start, to the first token", "s", first, "bound",
                      [1.5] * len(first), 1.0)]


def tokenizer(setting: Setting) -> list[Result]:
    """1 MB of text in one call, with an empty word cache; HF's is in Rust, on one thread."""
    path = setting.folder / "tokenizer.json"
    hf = HFTokenizer.from_file(str(path))
    results = []
    for what, text, target in (("encode 1 MB of English", english(), 1.0),
                               ("encode 1 MB of 中文", chinese(), 0.15)):
        nbytes = len(text.encode("utf-8"))

        def ours() -> float:
            cold = Tokenizer.from_file(path)
            return timed(lambda: cold.encode(text))
        mine, theirs = alternate(ours, lambda: timed(lambda: hf.encode(text)))
        results.append(Result.of(what, "MB/s", mine, "HF tokenizers", theirs, target,
                                 amount=nbytes / MEGABYTE))

    def word(length: int) -> float:
        cold = Tokenizer.from_file(path)
        return timed(lambda: cold.encode("a" + "bcdefghij" * (length // 9)))
    whole, half_twice = alternate(lambda: word(MEGABYTE), lambda: 2 * word(MEGABYTE // 2),
                                  rounds=3)
    return [*results, *sentencepiece(),
            Result.of("encode one word of 1 MB", "s", whole, "twice half of it", half_twice,
                      0.7)]


def sentencepiece() -> list[Result]:
    """The same English with vocabularies of SentencePiece's two kinds, which are trained on
    it. Both sides begin with empty caches."""
    text, results = english(), []
    for kind in ("BPE", "Unigram"):
        saved = sentencepiece_vocabulary(kind, text).to_str()

        def encoding(load: Callable[[str], Any]) -> float:
            cold = load(saved)
            return timed(lambda: cold.encode(text))
        mine, theirs = alternate(
            lambda: encoding(lambda saved: AnyTokenizer.from_json(json.loads(saved))),
            lambda: encoding(HFTokenizer.from_str))
        results.append(Result.of(f"encode 1 MB of English, SentencePiece {kind}", "MB/s", mine,
                                 "HF tokenizers", theirs, 0.5,
                                 amount=len(text.encode("utf-8")) / MEGABYTE))
    return results


def sentencepiece_vocabulary(kind: str, text: str) -> HFTokenizer:
    """A vocabulary of 8,000 pieces, as Llama-2 has its BPE and T5 its Unigram."""
    specials = ["<unk>", "<s>", "</s>"]
    if kind == "BPE":
        specials += [f"<0x{byte:02X}>" for byte in range(256)]
        trained = HFTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True,
                                         fuse_unk=True))
        trainer = trainers.BpeTrainer(vocab_size=8_000, special_tokens=specials,
                                      show_progress=False)
    else:
        trained = HFTokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=8_000, special_tokens=specials,
                                          unk_token="<unk>", show_progress=False)
    trained.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", True)
    trained.decoder = decoders.Metaspace("▁", "always")
    trained.train_from_iterator(text.split("\n"), trainer)
    saved = json.loads(trained.to_str())
    # byte tokens are ordinary ones, and not found in a text
    saved["added_tokens"] = [token for token in saved["added_tokens"]
                             if not token["content"].startswith("<0x")]
    return HFTokenizer.from_str(json.dumps(saved))


def memory(setting: Setting) -> list[Result]:
    """The largest resident set of a `gearworks chat`, of loading, and of 8,192 tokens."""
    chat = peak_memory([sys.executable, "-m", "gearworks", "chat", str(setting.folder),
                        "--max-tokens", "64"], b"Tell me about the sea.\n")
    weights = setting.ours.model.weights.nbytes()
    nothing, loaded, prompt = (
        peak_memory([sys.executable, "-c", BEFORE + script, str(setting.folder)])
        for script in ("", LOAD, LOAD + LONG_PROMPT))
    return [Result.of("peak memory of chat", "GB", [chat / 1e9], "bound", [1.3], 1.0),
            Result.of("peak memory of loading", "GB", [(loaded - nothing) / 1e9], "the weights",
                      [weights / 1e9], 1 / 1.2),
            Result.of("peak memory of 8,192 tokens, above the weights", "GB",
                      [(prompt - nothing - weights) / 1e9], "bound", [2.0], 1.0)]


BEFORE = """
import sys
from pathlib import Path
import numpy as np
from gearworks.decoding import Context
from gearworks.model import Model
"""
LOAD = """
model = Model.load(Path(sys.argv[1]))
"""
LONG_PROMPT = """
Context(model, 8192).forward(np.random.default_rng(0).integers(100, 49_000, 8192))
"""


def peak_memory(command: Sequence[str], stdin: bytes = b"") -> float:
    """The largest resident set of a process, in bytes."""
    process = psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    process.stdin.write(stdin)
    process.stdin.close()
    peak = 0
    while process.poll() is None:
        try:
            used = process.memory_info()
        except psutil.NoSuchProcess:
            break
        peak = max(peak, getattr(used, "peak_wset", used.rss))
        time.sleep(0.005)
    if process.wait() != 0:
        raise GearworksError("cannot measure memory",
                             f"{' '.join(command[:4])} … ended with code {process.returncode}",
                             "run `gearworks chat` by hand and see what it says")
    return peak


def racing(setting: Setting) -> list[Result]:
    """Our engines on the file of four bits, beside NumPy, Hugging Face and llama.cpp."""
    path = hub.smollm2_gguf()
    fast, exact = (race.Ours(CompiledModel.load(path, mode, setting.threads))
                   for mode in ("fast", "exact"))
    numpys, hf = race.Ours(setting.ours.model), race.HuggingFace(setting.theirs)
    llama, name = race.llama_cpp(path, setting.threads)
    weights = race.memory_reads(path.stat().st_size, setting.threads)
    one, one_exact, one_numpy, one_llama, one_hf, limit = alternate(
        fast.token, exact.token, numpys.token, llama.token, hf.token, weights)
    long, long_exact, long_llama, long_hf = alternate(
        fast.prompt, exact.prompt, llama.prompt, hf.prompt, rounds=7)
    eight, alone = alternate(lambda: fast.token(8), fast.token, rounds=7)
    eight_exact, alone_exact = alternate(lambda: exact.token(8), exact.token, rounds=7)
    best = [min(pair) for pair in zip(long_llama, long_hf)]
    loaded, first, used = zip(*(race.loading("fast") for _ in range(3)))
    return [
        Result.of("race: decode, fast", "tokens/s", one, name, one_llama, 1.2, amount=1),
        Result.of("race: decode, exact", "tokens/s", one_exact, name, one_llama, 1.0, amount=1),
        Result.of("race: decode, exact", "tokens/s", one_exact, "the NumPy engine", one_numpy,
                  1.5, amount=1),
        Result.of("race: decode, exact", "tokens/s", one_exact, "HF generate", one_hf, 6.0,
                  amount=1),
        Result.of("race: decode, fast", "tokens/s", one, "HF generate", one_hf, 6.0, amount=1),
        Result.of("race: decode, fast", "tokens/s", one, "memory bandwidth", limit, 0.5,
                  amount=1),
        Result.of("race: prefill of 512, fast", "s", long, f"the faster of HF and {name}", best,
                  1.0),
        Result.of("race: prefill of 512, exact", "s", long_exact, "HF forward", long_hf, 1.0),
        Result.of("race: 8 side by side, exact", "tokens/s", [each / 8 for each in eight_exact],
                  "one alone", alone_exact, 4.0, amount=1),
        Result.of("race: 8 side by side, fast", "tokens/s", [each / 8 for each in eight],
                  "one alone", alone, 4.0, amount=1),
        *many_side_by_side(fast, llama, name),
        Result.of("race: load, fast", "s", loaded, "bound", [1.5] * 3, 1.0),
        Result.of("race: load, and the first token", "s", first, "bound", [2.5] * 3, 1.0),
        Result.of("race: memory, fast", "MB", [each / 1e6 for each in used], "bound",
                  [250.0] * 3, 1.0)]


def many_side_by_side(fast: race.Ours, llama: race.LlamaCpp | race.Recorded,
                      name: str) -> list[Result]:
    """32 sequences, where llama.cpp is there to run as many."""
    if isinstance(llama, race.Recorded):
        return []
    ours, theirs = alternate(lambda: fast.token(32), lambda: llama.token(32), rounds=5)
    return [Result.of("race: 32 side by side, fast", "tokens/s", [each / 32 for each in ours],
                      name, [each / 32 for each in theirs], 2.0, amount=1)]


MEASUREMENTS: dict[str, Callable[[Setting], list[Result]]] = {
    "decode": decode, "prefill": prefill, "sampling": sampling, "speculation": speculation,
    "load": load, "tokenizer": tokenizer, "memory": memory, "batching": batching,
    "sharing": sharing, "race": racing}


def alternate(*sides: Callable[[], float], rounds: int = ROUNDS) -> list[tuple[float, ...]]:
    """Each side's seconds in every round; the sides take turns, and one more round warms up."""
    measured = [[side() for side in sides] for _ in range(rounds + 1)]
    return list(zip(*measured[1:]))


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def random_ids(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(100, 49_000, count)


def english() -> str:
    """1 MB of English that any machine has: the documentation of the installed packages."""
    distributions = sorted(importlib.metadata.distributions(),
                           key=lambda distribution: distribution.metadata["Name"].lower())
    texts = (distribution.metadata.get_payload() for distribution in distributions)
    text = "\n".join(text for text in texts if isinstance(text, str))
    if len(text) < MEGABYTE:
        raise GearworksError("cannot measure the tokenizer",
                             "the installed packages come with too little text",
                             "install everything in requirements.txt")
    return text[:MEGABYTE]


def chinese() -> str:
    """1 MB of random sentences, frequent characters frequent: hardly any piece repeats."""
    rng = np.random.default_rng(0)
    common = (
        "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于"
        "着下自之年过发后作里用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还"
        "进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工使情"
        "明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或"
        "新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原")
    frequency = 1 / np.arange(1, len(common) + 1)
    characters = rng.choice(list(common), MEGABYTE // 3, p=frequency / frequency.sum())
    borders = np.cumsum(rng.integers(4, 25, len(characters) // 10))
    characters[borders[borders < len(characters)]] = "，"
    return "".join(characters)


def table(report: dict[str, Any]) -> str:
    """The results in Markdown, with the machine that they come from."""
    machine = report["machine"]
    lines = ["| what | ours | beside | theirs | ratio | its range | promised |",
             "|---|--:|---|--:|--:|--:|--:|"]
    for result in (Result(**entry) for entry in report["results"]):
        missed = ", missed" if result.ratio < result.target else ""
        lines.append(f"| {result.what} | {result.ours:.3g} {result.unit} | {result.beside} | "
                     f"{result.theirs:.3g} {result.unit} | **{result.ratio:.2f}** | "
                     f"{result.low:.2f} to {result.high:.2f} | "
                     f"≥ {result.target:.3g}{missed} |")
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return ("\n".join([*lines, "",
                       f"Measured by `gearworks bench` on {report['date']}: "
                       f"{machine['processor']}, {report['threads']} threads, "
                       f"{machine['memory_gb']} GB, {machine['system']}; {versions}."]) + "\n")


def tables(reports: Sequence[dict[str, Any]]) -> str:
    """A table for each machine; the newest first."""
    return "\n".join(map(table, reports))


def describe_machine() -> dict[str, Any]:
    return {"processor": processor_name(), "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9),
            "system": f"{platform.system()} {platform.machine()}"}


def run(only: Sequence[str] | None = None, json_path: Path | None = None,
        threads: int | None = None, publish: bool = False) -> None:
    """Measure, print the table, and save it:
    to `json_path`, or with `publish` to results.json, in the place of what such a machine gave
    before, and to the README."""
    unknown = set(only or ()) - MEASUREMENTS.keys()
    if unknown:
        raise GearworksError(f"cannot measure {', '.join(sorted(unknown))}",
                             "there is no such measurement",
                             f"name some of {', '.join(MEASUREMENTS)}")
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise GearworksError(f"cannot save to {json_path}", "its folder does not exist",
                             "make it first")
    setting = Setting(hub.smollm2_folder(), threads or os.cpu_count() or 1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(setting.threads)
    torch.set_grad_enabled(False)
    results = []
    with threadpool_limits(setting.threads, "blas"):
        asked_for = [name for name in MEASUREMENTS if not only or name in only]
        for name in (bar := tqdm(asked_for, unit="measurement")):
            bar.set_description(f"Measuring {name}")
            results += MEASUREMENTS[name](setting)
    report = {"date": datetime.date.today().isoformat(), "threads": setting.threads,
              "machine": describe_machine(),
              "versions": {"Python": platform.python_version()} | {
                  name: importlib.metadata.version(name)
                  for name in ("numpy", "torch", "transformers", "tokenizers")},
              "results": [asdict(result) for result in results]}
    print(table(report))
    if publish:
        if any(result.what == QUIET and result.ratio < result.target for result in results):
            raise GearworksError("not published",
                                 "the machine was not quiet: reading memory took longer in "
                                 "some rounds than in others",
                                 "close what else is running, and measure again")
        reports = [report, *(each for each in json.loads(RESULTS.read_text(encoding="utf-8"))
                             if each["machine"] != report["machine"])]
        before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
        README.write_text(before + BEGIN + tables(reports) + END
                          + rest.partition(END)[2], encoding="utf-8")
        _save(reports, RESULTS)
        page.write()
    elif json_path is not None:
        _save(report, json_path)


def _save(figures: dict | list, path: Path) -> None:
    path.write_text(json.dumps(figures, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    print(f"saved to {path}", file=sys.stderr)
