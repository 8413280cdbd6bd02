"""The system calls that no worker needs: a filter for bubblewrap, a profile for containers.

Namespaces hide other processes, the network and the files. What they leave open, and what would
carry something from one question to the next, is refused here: System V's memory and messages,
which outlive their process; keys, which no namespace holds; memory that no limit counts;
scheduling and limits of other processes; tracing; sockets of other kinds than the network's;
namespaces within the sandbox.
"""

import errno
import platform
import struct

# Each name with its number on x86-64 and on 64-bit ARM (linux/arch/x86/entry/syscalls and
# include/uapi/asm-generic/unistd.h).
REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semctl": (66, 191), "semop": (65, 193), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "personality": (135, 92),
    "quotactl": (179, 60), "reboot": (169, 142), "swapon": (167, 224), "acct": (163, 89),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
}
CLONE, CLONE3, SOCKET, PRLIMIT = (56, 220), (435, 435), (41, 198), (302, 261)
NEW_NAMESPACES = 0x7E020000                     # CLONE_NEWNS to CLONE_NEWNET
FAMILIES = (1, 2, 10, 16)                       # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16                    # in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000                               # x86-64's calls under other numbers


def filter_program(machine: str = platform.machine()) -> bytes | None:
    """The filter in the kernel's format, struct sock_filter[]; None for other machines."""
    if machine not in _MACHINES:
        return None
    column, architecture = _MACHINES[machine]

    def refuse(error: int) -> tuple[int, int, int, int]:
        return (_RETURN, 0, 0, _ERROR | error)

    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture),
               (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER),
               (_AT_LEAST, 0, 1, _X32), refuse(errno.ENOSYS)]
    for numbers in REFUSED.values():
        program += [(_EQUAL, 0, 1, numbers[column]), refuse(errno.EPERM)]
    # its flags lie in memory, where no filter sees them; whoever calls it then calls `clone`
    program += [(_EQUAL, 0, 1, CLONE3[column]), refuse(errno.ENOSYS)]
    program += [(_EQUAL, 0, 4, CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT),
                (_ANY_BIT, 0, 1, NEW_NAMESPACES), refuse(errno.EPERM),
                (_RETURN, 0, 0, _ALLOW)]
    program += [(_EQUAL, 0, 4, PRLIMIT[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT),
                (_EQUAL, 1, 0, 0), refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    program += [(_EQUAL, 0, 3 + len(FAMILIES), SOCKET[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT),
                *((_EQUAL, len(FAMILIES) - place, 0, family)
                  for place, family in enumerate(FAMILIES)),
                refuse(errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *line) for line in program)


def container_profile() -> dict:
    """The same for podman and docker, in their format."""
    def refused(*names: str, error: int = errno.EPERM, args: list[dict] = ()) -> dict:
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": [*args]}

    def first(operator: str, value: int, **more: int) -> list[dict]:
        return [{"index": 0, "op": f"SCMP_CMP_{operator}", "value": value, **more}]

    flags = [1 << bit for bit in range(32) if NEW_NAMESPACES >> bit & 1]
    others = sorted({*range(FAMILIES[-1])} - {*FAMILIES})
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        refused(*REFUSED), refused("clone3", error=errno.ENOSYS),
        *(refused("clone", args=first("MASKED_EQ", flag, valueTwo=flag)) for flag in flags),
        refused("prlimit64", args=first("NE", 0)),
        *(refused("socket", error=errno.EAFNOSUPPORT, args=first("EQ", family))
          for family in others),
        refused("socket", error=errno.EAFNOSUPPORT, args=first("GT", FAMILIES[-1]))]}
