"""`gearworks serve`: its options, and what is refused before a model is loaded."""

import argparse
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gearworks.cli import console
from gearworks.errors import UsageError
from gearworks.server.listener import bound

if TYPE_CHECKING:                   # nothing is loaded before the options are known to be right
    from gearworks.language_model import LanguageModel

KEY_VARIABLE = "GEARWORKS_API_KEY"


def add_options(command: console.Parser) -> None:
    """The options of the command, most of them named as vLLM's."""
    command.add_argument("--host", type=_host, default="127.0.0.1",
                         help="address to listen on (default %(default)s: this machine only)")
    command.add_argument("--port", type=_port, default=8000,
                         help="0 for any that is free (default %(default)s)")
    command.add_argument("--api-key", type=_key, metavar="KEY",
                         help="what clients have to show; by default what the environment "
                              f"variable {KEY_VARIABLE} says, or nothing")
    command.add_argument("--served-model-name", nargs="+", type=_name, metavar="NAME",
                         help="what clients call the model; several are allowed, the first is "
                              "the one that answers show (default: MODEL)")
    command.add_argument("--max-num-seqs", type=console.positive_count, default=64, metavar="N",
                         help="answers that run at once (default %(default)s)")
    command.add_argument("--max-num-batched-tokens", type=console.positive_count, default=512,
                         metavar="N", help="tokens of one step (default %(default)s)")
    command.add_argument("--max-model-len", type=console.positive_count, metavar="N",
                         help="longest prompt with its answer, in tokens (default: what the "
                              "model was made for)")
    command.add_argument("--block-size", type=console.positive_count, metavar="N",
                         help="tokens of one block of the KV cache")
    command.add_argument("--num-blocks", type=console.positive_count, metavar="N",
                         help="blocks of the KV cache (default: 1 GiB of them, or what one "
                              "answer needs)")
    command.add_argument("--kv-cache-dtype", choices=("float32", "int8", "int4"),
                         default="float32",
                         help="numbers of the KV cache; int8 and int4 take about a fourth and "
                              "a sixth of the memory, and change answers a little (default "
                              "%(default)s)")
    command.add_argument("--max-queue", type=console.count, default=128, metavar="N",
                         help="answers that may wait beyond those that can run; others are "
                              "told to come again (default %(default)s)")
    command.add_argument("--grace", type=_seconds, default=30.0, metavar="SECONDS",
                         help="how long running answers may take to finish when the server is "
                              "stopped (default %(default)g)")
    command.add_argument("--speculative-tokens", type=console.count, default=0, metavar="N",
                         help="tokens that are guessed ahead, fewer where guesses fail; the "
                              "answers stay the same (default %(default)s)")
    command.add_argument("--no-prefix-caching", action="store_true",
                         help="compute every prompt anew")
    command.add_argument("--batch-invariant", action="store_true",
                         help="the same numbers for an answer, whatever runs beside it; slower")
    command.add_argument("--allow-origin", action="append", default=[], type=_origin,
                         metavar="ORIGIN",
                         help="let web pages of this origin use the server, such as "
                              "http://localhost:3000; * for all of them; may be repeated")


def serve(options: argparse.Namespace, load: Callable[[], "LanguageModel"]) -> int:
    """Run the server until it is stopped. load: loads the model.

    What cannot work is refused before: a port that is taken, sizes that contradict each other
    or the model.
    """
    if options.max_num_batched_tokens < options.max_num_seqs:
        raise UsageError("cannot use this --max-num-batched-tokens",
                         f"each of --max-num-seqs {options.max_num_seqs} answers needs a token "
                         "in each step", "raise the one or lower the other")
    if options.num_blocks is not None and options.block_size is not None and (
            options.num_blocks * options.block_size < (options.max_model_len or 2)):
        raise UsageError("cannot use this --num-blocks",
                         f"they hold {options.num_blocks * options.block_size} tokens, and an "
                         f"answer may have {options.max_model_len or 2}",
                         "raise it, or lower --max-model-len")
    if options.api_key is None and KEY_VARIABLE in os.environ:
        try:
            options.api_key = _key(os.environ[KEY_VARIABLE])
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"cannot use {KEY_VARIABLE}", str(error),
                             "unset it, or give it another value") from None
    with bound(options.host, options.port) as listener:
        _refuse_length(options)
        return _run(options, load(), listener)


def _refuse_length(options: argparse.Namespace) -> None:
    """Raise ModelError for a --max-model-len that is too much for the model."""
    from gearworks.hub import find_model
    from gearworks.serving.engine import model_len
    from gearworks.weights import open_checkpoint

    with console.interrupts_raise():                        # it may have to be fetched
        path = find_model(options.model)
    config, file = open_checkpoint(path)
    file.close()
    model_len(config, options.max_model_len)


def _run(options: argparse.Namespace, language_model: "LanguageModel",
         listener: socket.socket) -> int:
    from gearworks.server.access import is_loopback
    from gearworks.server.graceful import GracefulServer
    from gearworks.server.service import Options, Service
    from gearworks.serving.engine import LLMEngine

    logging.basicConfig(level=logging.INFO, stream=sys.stderr,
                        format="%(asctime)s %(levelname)s %(message)s")
    names = tuple(options.served_model_name or [options.model])
    sizes = {name: getattr(options, name) for name in ("block_size", "num_blocks")
             if getattr(options, name) is not None}
    engine = LLMEngine(language_model, max_model_len=options.max_model_len,
                       max_num_batched_tokens=options.max_num_batched_tokens,
                       max_num_seqs=options.max_num_seqs,
                       enable_prefix_caching=not options.no_prefix_caching,
                       speculative_tokens=options.speculative_tokens,
                       batch_invariant=options.batch_invariant,
                       kv_cache_dtype=options.kv_cache_dtype, **sizes)
    service = Service(engine, Options(names, options.host, options.api_key,
                                      tuple(options.allow_origin), options.max_queue))
    if not is_loopback(options.host) and options.api_key is None:
        print("Anybody who reaches this machine can use the server: --api-key asks them for a "
              "key.", file=sys.stderr, flush=True)
    server = GracefulServer(
        service, listener, options.grace,
        lambda address: print(f"Gearworks serves {names[0]} at {address}", flush=True))
    server.run()
    return 1 if service.engine.error is not None else 0


def _host(argument: str) -> str:
    """An argument that is an address or a name of one."""
    name = argument.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        if not name or any(sign in name for sign in ":/@ ") or not name.isascii():
            raise argparse.ArgumentTypeError(
                f"{argument:.80} is no address; such as 127.0.0.1") from None
        return name


def _port(argument: str) -> int:
    """An argument that is a port."""
    port = console.count(argument)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"{argument:.80} is no port; 0 to 65535")
    return port


def _key(argument: str) -> str:
    """An argument that is an API key: what an HTTP header can carry."""
    if not argument or not argument.isascii() or not argument.isprintable() or " " in argument:
        raise argparse.ArgumentTypeError("it cannot be sent as a key; letters, digits and "
                                         "signs, without spaces")
    return argument


def _name(argument: str) -> str:
    """An argument that names a model."""
    if not console.text(argument).strip():
        raise argparse.ArgumentTypeError("it is empty; a name")
    return argument


def _seconds(argument: str) -> float:
    """An argument that is a time."""
    value = console.number(argument)
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{argument:.80} is no time; seconds, 0 to 86400")
    return value


def _origin(argument: str) -> str:
    """An argument that is the origin of a web page."""
    from urllib.parse import urlsplit

    if argument in ("*", "null"):
        return argument
    try:
        parts = urlsplit(argument)
        host = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        host = None
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{argument:.80} is no origin; such as "
                                         "http://localhost:3000")
    return argument.rstrip("/").lower()
