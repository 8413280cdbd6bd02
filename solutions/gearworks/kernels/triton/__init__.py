"""Kernels for a GPU, written in Triton, which also run in its interpreter on any processor."""

from importlib.util import find_spec

LEAST_CAPABILITY = (8, 0)                # Triton's own minimum; a T4 has 7.5
LARGEST_HEAD = 128                       # elements of a head that the attention kernels take


def has_triton_gpu() -> bool:
    """Whether there is a GPU here that Triton compiles for, and Triton itself."""
    if find_spec("torch") is None or find_spec("triton") is None:
        return False
    import torch

    return (torch.cuda.is_available()
            and torch.cuda.get_device_capability() >= LEAST_CAPABILITY)


def power_of_two(number: int, least: int = 16) -> int:
    """The size of a block that holds so many: Triton's blocks are powers of two, and those that
    are multiplied have at least 16 rows and columns.

    >>> power_of_two(10), power_of_two(65), power_of_two(3, least=1)
    (16, 128, 4)
    """
    return max(least, 1 << max(0, number - 1).bit_length())
