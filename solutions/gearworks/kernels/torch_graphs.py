"""CUDA graphs for decoding: a step's thousand launches, recorded once and replayed as one.

A step that decodes has the same operations every time; only numbers differ: ids, positions,
where keys lie. So these lie in tensors that stay where they are, a step is recorded over them,
and from then on a step is: write the numbers, replay. A step of B sequences takes the graph of
the next power of two; rows that only fill it up write to the memory's spare block.

Shapes: B sequences, W blocks of a table, V vocabulary, d head size.
"""

from collections.abc import Callable

import torch

from gearworks.kernels.torch_attention import DecodeRows, TorchBatch, TorchPagedCache
from gearworks.kernels.triton import power_of_two

# Decoding steps over one memory before the first is recorded: recording takes as long as many
# steps, and a short answer is done before it would pay
PATIENCE = 8

# (ids, cos, sin, batch) -> logits
DecodeStep = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, TorchBatch], torch.Tensor]


class DecodeGraphs:
    """The recorded steps over one memory. Without CUDA they are computed over the same fixed
    tensors, and not recorded."""

    def __init__(self, memory: TorchPagedCache, step: DecodeStep):
        self.memory, self._step = memory, step
        self.recorded: dict[tuple[int, int], RecordedStep] = {}
        self._pool = None                                    # graphs share their scratch memory
        self._waited = 0

    def ready(self) -> bool:
        """Whether recording pays by now. Counts the steps that ask."""
        self._waited += 1
        return self._waited > PATIENCE

    def run(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
            batch: TorchBatch) -> torch.Tensor:
        """The logits, (B, V), of a step in which every sequence has one row."""
        B, W = batch.decodes.tables.shape
        size = power_of_two(B, least=1), power_of_two(W, least=4)
        if size not in self.recorded:
            recorded = RecordedStep(self.memory, size, cos, self._step)
            self._pool = recorded.record(self._pool)
            self.recorded[size] = recorded
        return self.recorded[size].replay(ids, cos, sin, batch)[:B]


class RecordedStep:
    """Fixed tensors for a step of B rows, and the graph that computes over them."""

    def __init__(self, memory: TorchPagedCache, size: tuple[int, int], cos: torch.Tensor,
                 step: DecodeStep):
        B, W = size
        device, spare = memory.keys.device, memory.spare_block
        self._spare, self._spare_slot = spare, spare * memory.block_size
        self.ids = torch.zeros(B, dtype=torch.int64, device=device)
        self.cos, self.sin = (torch.zeros((B, *cos.shape[1:]), dtype=cos.dtype, device=device)
                              for _ in range(2))
        self.batch = TorchBatch(
            memory, torch.full((B,), self._spare_slot, dtype=torch.int64, device=device), None,
            None, DecodeRows(torch.full((B, W), spare, dtype=torch.int32, device=device),
                             torch.ones(B, dtype=torch.int32, device=device)))
        self._step, self._graph = step, None
        self.logits: torch.Tensor | None = None

    def _compute(self) -> None:
        self.logits = self._step(self.ids, self.cos, self.sin, self.batch)

    def record(self, pool: object) -> object:
        """Record the step, with CUDA; returns the pool of scratch memory for the next one."""
        if self.ids.device.type != "cuda":
            return None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):             # kernels are compiled, libraries woken up
            for _ in range(2):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._compute()
        return self._graph.pool()

    def replay(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
               batch: TorchBatch) -> torch.Tensor:
        """Write a step's numbers into the fixed tensors, and compute; (B, V)."""
        count, width = batch.decodes.tables.shape
        rows = self.batch.decodes
        # what an earlier step left in the other rows would be written to again
        self.batch.slots[count:] = self._spare_slot
        rows.tables[count:] = self._spare
        rows.lengths[count:] = 1
        rows.tables[:count, width:] = self._spare
        for fixed, now in ((self.ids, ids), (self.cos, cos), (self.sin, sin),
                           (self.batch.slots, batch.slots),
                           (rows.lengths, batch.decodes.lengths)):
            fixed[:count].copy_(now)
        rows.tables[:count, :width].copy_(batch.decodes.tables)
        self.replay_alone()
        return self.logits

    def replay_alone(self) -> None:
        """Compute with the numbers that are there."""
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()
