"""Loads modules of an assembled engine, each as if it were the first, and tells which fail.

Run as a file, by an interpreter that has the engine's folder first on its path: it imports
nothing of the course itself. Arguments: seconds, then `package.module:name,name` for each
module, with the names that it must define. For each one a line of JSON: {"module", "error",
"lines"}; lines are the places that the error passed through, outermost first. When the time is
up, the stack goes to standard error.
"""

import faulthandler
import importlib
import json
import os
import sys
import traceback
import warnings


def main() -> None:
    news = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)                                            # what learners print is no news
    warnings.simplefilter("ignore")
    seconds, *modules = sys.argv[1:]
    for wanted in modules:
        module, _, names = wanted.partition(":")
        faulthandler.dump_traceback_later(float(seconds), exit=True)
        for name in [name for name in sys.modules if name.partition(".")[0] == "gearworks"]:
            del sys.modules[name]
        error, lines = "", []
        try:
            loaded = importlib.import_module(module)
            for name in names.split(","):
                getattr(loaded, name)
        except BaseException as caught:                      # sys.exit, too
            error = traceback.format_exception_only(caught)[-1].strip()
            lines = [[frame.filename, frame.lineno]
                     for frame in traceback.extract_tb(caught.__traceback__)]
            if isinstance(caught, SyntaxError) and caught.filename:
                lines.append([caught.filename, caught.lineno])
        faulthandler.cancel_dump_traceback_later()
        news.write(json.dumps({"module": module, "error": error, "lines": lines}) + "\n")
        news.flush()
    os._exit(0)                            # a thread that a learner started keeps nothing alive


if __name__ == "__main__":
    main()
