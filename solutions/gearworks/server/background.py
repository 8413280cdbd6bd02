"""A server in a thread of this process: for notebooks, and for tests over real connections."""

import threading

from gearworks.errors import NotAvailableError
from gearworks.server.graceful import GracefulServer, Patience
from gearworks.server.listener import bound
from gearworks.server.service import Options, Service
from gearworks.serving.engine import LLMEngine


class BackgroundServer:
    """Serves an engine on a port of this machine, from its creation until `stop`.

    url: its address, such as http://127.0.0.1:51234. engine, service, uvicorn: what it runs.
    """

    def __init__(self, engine: LLMEngine, name: str = "gearworks", port: int = 0,
                 grace: float = 5.0, patience: Patience | None = None, **options):
        """name: of the model; port: 0 for any that is free; grace: seconds that running answers
        get when it stops; patience: with slow clients; options: of the service.
        Raises NotAvailableError when the port is taken."""
        self.engine = engine
        self.service = Service(engine, Options(**{"models": (name,)} | options))
        self.url = ""
        ready = threading.Event()

        def on_ready(address: str) -> None:
            self.url = address
            ready.set()
        self.uvicorn = GracefulServer(self.service, bound("127.0.0.1", port), grace, on_ready,
                                      patience or Patience())
        # a daemon: a notebook that is closed must not wait for it
        self.thread = threading.Thread(target=self.uvicorn.run, daemon=True)
        self.thread.start()
        while not ready.wait(0.1):
            if not self.thread.is_alive():
                raise NotAvailableError("the server did not start", "its thread has ended",
                                        "what it printed says why")

    def stop(self) -> None:
        """Let running answers finish within the grace time, and end."""
        self.uvicorn.should_exit = True
        self.thread.join()

    def __enter__(self) -> "BackgroundServer":
        return self

    def __exit__(self, *error) -> None:
        self.stop()
