"""What the processes of one worker may use up, together or each."""

import os
from contextlib import suppress

PROCESSOR_SECONDS = 200     # of each process; a judge that is gone can stop nothing
MEMORY = 4 * 2**30          # bytes, of all processes together; checks need a small part of it
PROCESSES = 64              # threads count, too
OPEN_FILES = 256
FILE_BYTES = 64 * 2**20     # the longest file that can be written
DISK_BYTES = 256 * 2**20    # all files together, in memory


def restrict(*, walled: bool) -> None:
    """Set this process's own limits, which those that it starts inherit.

    walled: inside a sandbox, where nobody else's processes and files count.
    """
    import resource                         # of systems that can fork
    limits = {resource.RLIMIT_CPU: PROCESSOR_SECONDS, resource.RLIMIT_CORE: 0,
              resource.RLIMIT_DATA: MEMORY}
    if walled:
        limits |= {resource.RLIMIT_AS: _address_space() + MEMORY,   # counts shared memory, too
                   resource.RLIMIT_NPROC: PROCESSES, resource.RLIMIT_NOFILE: OPEN_FILES,
                   resource.RLIMIT_FSIZE: FILE_BYTES, resource.RLIMIT_MEMLOCK: 0,
                   resource.RLIMIT_MSGQUEUE: 0}
    for which, limit in limits.items():
        with suppress(ValueError, OSError):     # a limit that is there already may be lower
            resource.setrlimit(which, (limit, limit))


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as status:
        return int(status.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
