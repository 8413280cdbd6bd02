"""The command `gearworks load`: its options, and what it says of a run."""

import argparse
import math
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path

from gearworks.cli import console
from gearworks.errors import GearworksError, NotAvailableError, UsageError

# What needs httpx, asyncio or NumPy is imported late: no other command has to wait for it

REQUESTS = 32                                   # of a synthetic load without any other end


def add_load(parser: console.Parser) -> None:
    """Add the command to the parser of `gearworks`."""
    command = parser.add_command(
        "load", "measure a server under load",
        "Send requests to a server with OpenAI's API as users would, whenever they come and "
        "whatever became of those before, and measure what each of them waited for. Latencies "
        "count from the moment at which a request was to be sent.")
    command.add_argument("url", metavar="URL", nargs="?",
                         help="of the server, such as http://127.0.0.1:8000")
    command.add_argument("--model", metavar="NAME", type=console.text,
                         help="default: the first that the server has")
    command.add_argument("--api-key", metavar="KEY", type=_header,
                         help="default: the environment's OPENAI_API_KEY")
    command.add_argument("--endpoint", choices=("chat", "completions"), default="chat",
                         help="what to ask for (default %(default)s)")
    command.add_argument("--rate", type=_rate, metavar="R",
                         help="arrivals a second on average; inf for all at once (default 1)")
    command.add_argument("--burstiness", type=console.number_above_0, metavar="S",
                         help="shape of the gamma distribution of the gaps between arrivals: 1 "
                              "is a Poisson process, the default; less is burstier")
    command.add_argument("--concurrency", type=console.positive_count, metavar="N",
                         help="a closed loop instead: N clients, each of which asks again when "
                              "it has its answer")
    command.add_argument("--trace", metavar="FILE", type=console.text,
                         help="replay the requests of a trace in JSON Lines; chat is one that "
                              "comes with gearworks")
    command.add_argument("--prompt-tokens", type=_lengths, metavar="M[:SIGMA[:MOST]]",
                         help="lognormal lengths of prompts: the median, the deviation of "
                              "their logarithm (0 if left out), and the longest (default "
                              "32:1.2:512)")
    command.add_argument("--output-tokens", type=_lengths, metavar="M[:SIGMA[:MOST]]",
                         help="the same of answers (default 64:0.8:256)")
    command.add_argument("--prefix", type=_prefixes, metavar="SHARE:TOKENS[:DOCUMENTS]",
                         help="let this share of the prompts begin with one of so many shared "
                              "documents of so many tokens")
    command.add_argument("--ignore-eos", action="store_true",
                         help="ask for answers of full length, where the server can do that")
    command.add_argument("--seed", type=console.whole_number, default=0, metavar="S",
                         help="the same seed sends the same prompts at the same times, so a "
                              "prefix cache knows them already (default %(default)s)")
    command.add_argument("--max-requests", type=console.positive_count, metavar="N",
                         help=f"default {REQUESTS}, or the whole trace, or what --duration "
                              "leaves room for")
    command.add_argument("--duration", type=console.number_above_0, metavar="SECONDS",
                         help="no request arrives later")
    command.add_argument("--timeout", type=console.number_above_0, default=600.0,
                         metavar="SECONDS",
                         help="for one request, from its sending (default %(default)g)")
    command.add_argument("--warmup", type=console.count, default=1, metavar="N",
                         help="requests before the run, which are not measured (default "
                              "%(default)s)")
    command.add_argument("--goodput", type=_bound, nargs="+", action="extend", default=[],
                         metavar="NAME:MS",
                         help="count the answers within all these bounds: ttft, tpot, e2e, "
                              "each with milliseconds")
    command.add_argument("--json", type=Path, metavar="FILE",
                         help="save all timings and figures")
    command.add_argument("--plot", type=Path, metavar="FILE.svg",
                         help="draw the waiting times, and the requests in flight")
    command.add_argument("--record", type=Path, metavar="FILE",
                         help="save the load as a trace that can be replayed, with the "
                              "lengths that the answers really had")
    command.add_argument("--compare", type=Path, nargs=2, metavar="FILE",
                         help="show two files of --json side by side, and measure nothing")
    command.add_argument("--allow-remote", action="store_true",
                         help="test a server that is not on this machine, with the consent of "
                              "its owner")
    command.set_defaults(run=_run)


def _header(argument: str) -> str:
    """An argument that a header of HTTP can hold."""
    if not argument.isascii() or not argument.isprintable():
        raise argparse.ArgumentTypeError("it has characters that no header can hold; the key "
                                         "without spaces or line breaks around it")
    return argument


def _rate(argument: str) -> float:
    value = console.number(argument)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{argument:.80} is not a number above 0")
    return value


def _parts(argument: str, least: int, most: int) -> list[float]:
    """The numbers of an argument in which colons stand between them."""
    try:
        parts = [float(part) for part in argument.split(":")]
    except ValueError:
        parts = []
    if not least <= len(parts) <= most or not all(0 <= part < 1e9 for part in parts):
        raise argparse.ArgumentTypeError(f"{argument:.80} is not {least} to {most} numbers "
                                         "with colons between them")
    return parts


def _lengths(argument: str):
    from gearworks.load.prompts import Lengths

    parts = _parts(argument, 1, 3)
    median, sigma, most = parts + [0.0, 4096.0][len(parts) - 1:]
    if median < 1 or most < 1:
        raise argparse.ArgumentTypeError(f"{argument:.80} makes texts of no token; "
                                         "a median of at least 1, such as 64:0.8:256")
    return Lengths(median, sigma, round(most))


def _prefixes(argument: str):
    from gearworks.load.prompts import Prefixes

    share, tokens, documents = [*_parts(argument, 2, 3), 1][:3]
    if share > 1:
        raise argparse.ArgumentTypeError(f"a share of {share:g} is more than all; a share "
                                         "between 0 and 1, such as 0.5:256:4")
    return Prefixes(share, round(tokens), max(1, round(documents)))


def _bound(argument: str) -> tuple[str, float]:
    from gearworks.load.statistics import BOUNDED

    name, _, value = argument.partition(":")
    try:
        bound = float(value) / 1000
    except ValueError:
        bound = math.nan
    if name not in BOUNDED or not 0 < bound < math.inf:
        raise argparse.ArgumentTypeError(f"{argument:.80} is no bound; any of ttft:500 "
                                         "tpot:50 e2e:9000, behind the URL")
    return name, bound


def _run(options: argparse.Namespace) -> int | None:
    if options.compare:
        return _compare(*options.compare)
    if options.url is None:
        raise UsageError("cannot run gearworks load", "URL is missing",
                         "the server's address, or --compare with two files")
    # What can be refused without the server is refused before it is asked
    _refuse_contradictions(options)
    url = _address(options)
    key = _key(options.api_key)
    requests = _requests(options)
    _require_places(options)
    return _test(options, url, key, requests)


def _refuse_contradictions(options: argparse.Namespace) -> None:
    synthetic = [name for name in ("rate", "burstiness", "prompt_tokens", "output_tokens",
                                   "prefix") if getattr(options, name) is not None]
    if options.trace is not None and synthetic:
        raise UsageError("cannot replay this trace",
                         f"--{synthetic[0].replace('_', '-')} is a matter of the trace itself",
                         "--trace alone, or no --trace")
    timed = [name for name in ("rate", "burstiness") if getattr(options, name) is not None]
    if options.concurrency is not None and timed:
        raise UsageError(f"cannot use --{timed[0]} with --concurrency",
                         "in a closed loop requests begin when answers end",
                         "--rate for an open loop, or --concurrency for a closed one")
    if options.rate == math.inf and options.duration and options.max_requests is None:
        raise UsageError("cannot send endlessly many requests at once",
                         "--rate inf gives no end to them, and nor does --duration",
                         "--max-requests")


def _address(options: argparse.Namespace) -> str:
    from gearworks.load.client import base_url, is_own_machine

    url = base_url(options.url)
    if not options.allow_remote and not is_own_machine(url):
        raise UsageError(f"will not test {url:.80}",
                         "it is another machine: a load test takes its service from others, "
                         "and looks like an attack",
                         "--allow-remote, if its owner agrees")
    return url


def _key(given: str | None) -> str | None:
    key = given if given is not None else os.environ.get("OPENAI_API_KEY")
    try:
        return _header(key) if key else None
    except argparse.ArgumentTypeError:
        raise UsageError("cannot use OPENAI_API_KEY",
                         "it has characters that no header can hold",
                         "the key without spaces or line breaks around it") from None


def _requests(options: argparse.Namespace) -> Iterable:
    """The load: what is asked for and when; a list, save for a closed loop without an end."""
    from random import Random

    from gearworks.load import arrivals, prompts, trace

    limit = options.max_requests
    if options.trace is not None:
        requests = iter(trace.read_trace(trace.find_trace(options.trace)))
    else:
        rate = math.inf if options.concurrency else options.rate or 1.0
        random = Random(options.seed)
        requests = prompts.requests(
            arrivals.arrivals(rate, options.burstiness or 1.0, Random(f"{options.seed} gaps")),
            options.prompt_tokens or prompts.Lengths(32, 1.2, 512),
            options.output_tokens or prompts.Lengths(64, 0.8, 256),
            options.prefix or prompts.Prefixes(), random)
        if limit is None and options.duration is None:
            limit = REQUESTS
    requests = islice(requests, limit)
    if options.concurrency:
        return requests
    if options.duration is not None:
        requests = takewhile(lambda request: request.arrival < options.duration, requests)
    found = list(requests)
    if not found:
        raise UsageError("there is nothing to send",
                         f"no request arrives within {options.duration:g} s",
                         "a longer --duration")
    return found


def _require_places(options: argparse.Namespace) -> None:
    """What cannot be saved is refused before it is measured."""
    from gearworks.load.plot import require_matplotlib

    if options.plot is not None:
        if options.plot.suffix != ".svg":
            raise UsageError(f"cannot draw {options.plot}", "pictures are drawn as SVG",
                             "--plot with a name that ends in .svg")
        require_matplotlib()
    for path in (options.json, options.plot, options.record):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise NotAvailableError(f"cannot save {path}",
                                    "it is a folder" if path.is_dir()
                                    else "its folder does not exist",
                                    "the name of a file in a folder that exists")


def _planned(requests: Iterable, seed: int) -> Iterator:
    from gearworks.load.prompts import text
    from gearworks.load.run import Planned

    for number, request in enumerate(requests):
        yield Planned(request, text(request, seed, number))


def _test(options: argparse.Namespace, url: str, key: str | None, requests: Iterable) -> int:
    import asyncio
    from datetime import UTC, datetime

    from tqdm import tqdm

    from gearworks.load import report
    from gearworks.load.client import Client
    from gearworks.load.measurement import Stopwatch
    from gearworks.load.run import Run

    clock = Stopwatch()
    client = Client(url, endpoint=options.endpoint, key=key, ignore_eos=options.ignore_eos,
                    timeout=options.timeout, clock=clock)
    load = _planned(requests, options.seed)
    total = None
    if isinstance(requests, list):
        load, total = list(load), len(requests)
    settings = {"url": url, "model": options.model, "endpoint": options.endpoint,
                "load": _described(options), "seed": options.seed,
                "ignore_eos": options.ignore_eos,
                "started": datetime.now(UTC).isoformat(timespec="seconds")}
    bar = tqdm(total=total, desc="Load", unit=" requests", leave=False, disable=None)

    def show(run: Run) -> None:
        bar.set_postfix_str(f"{run.in_flight} in flight, {run.failed} failed", refresh=False)
        bar.update(run.finished - bar.n)

    run = Run(client.send, clock, on_change=show)

    async def measure() -> None:
        async with client:
            settings["model"] = await client.choose_model(options.model)
            await client.warm_up(options.warmup, options.seed)
            clock.start()
            if options.concurrency:
                await run.closed_loop(load, options.concurrency, options.duration)
            else:
                await run.open_loop(load)

    interrupted = False
    with console.interrupts_raise():
        try:
            asyncio.run(measure())
        except KeyboardInterrupt:
            if not run.measurements:
                raise
            interrupted = True
        finally:
            bar.close()
        result = report.Result(settings, dict(options.goodput), run.measurements)
        print(f"{url}, {settings['model']}, {settings['load']}:")
        print(report.table(result))
        for line in report.first_failures(run.measurements):
            print(line, file=sys.stderr)
        _save(options, result, run)
    if interrupted:
        print("gearworks load: interrupted; these are the figures up to then", file=sys.stderr)
        return 130
    if all(measured.error is not None for measured in run.measurements):
        raise GearworksError("there is nothing to measure", "no answer came whole",
                             "see above what the server said, and ask it for less")
    return 0


def _described(options: argparse.Namespace) -> str:
    """In a few words when requests are sent."""
    source = f"trace {options.trace}" if options.trace is not None else "requests"
    if options.concurrency:
        return f"{source} in a closed loop of {options.concurrency}"
    if options.trace is not None:
        return source
    return (f"{source} in an open loop at {options.rate or 1:g}/s, "
            f"burstiness {options.burstiness or 1:g}")


def _save(options: argparse.Namespace, result, run) -> None:
    from gearworks.load import plot, report, trace
    from gearworks.load.run import as_trace

    if options.json is not None:
        report.save(result, options.json)
    if options.record is not None:
        trace.write_trace(options.record, as_trace(run.planned, run.measurements))
    if options.plot is not None:
        plot.plot(result, options.plot)


def _compare(first: Path, second: Path) -> None:
    from gearworks.load import report

    print(report.comparison(report.load(first), report.load(second), [first.stem, second.stem]))
