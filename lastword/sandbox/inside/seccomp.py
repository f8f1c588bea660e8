"""Seccomp: a process gives up system calls, for itself and its children.

What no answer to a programming task needs is refused at every level: keys, shared memory of System V,
message queues, tracing, mounts, namespaces, rings, kernel modules. A program without a machine of its own
(`bare`) has no sockets either, stays in its process group, and changes neither the rights of files nor
anything of other processes.
"""

import ctypes
import os
import sys
from struct import pack

from lastword.sandbox.inside.libc import call

_SET_SECCOMP, _BY_FILTER = 22, 2  # <linux/prctl.h>
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOWED, _IDLE, _REFUSED, _UNKNOWN = 0x7FFF0000, 0x50000, 0x50001, 0x50026  # with 0, EPERM, ENOSYS
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16  # where <linux/seccomp.h> has them; arguments take 8 bytes
_OTHER_INTERFACE = 0x40000000  # x86_64 under other numbers
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = (
    1,
    2,
    10,
    16,
)  # of sockets: unix, internet, internet 6, netlink, all of its own machine
_STREAM, _PACKETS = 1, 5  # pairs that cannot be sent elsewhere, as those of datagrams can

# Numbers by name, of x86_64 and aarch64; 0 where there is none.
_NEVER = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "perf_event_open": (298, 241), "bpf": (321, 280),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "swapon": (167, 224),
    "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89),
    "reboot": (169, 142), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "syslog": (103, 116),
}  # fmt: skip
_NEVER_BARE = {
    "socket": (41, 198), "setsid": (112, 157), "setpgid": (109, 154), "ioprio_set": (251, 30),
    "chown": (92, 0), "lchown": (94, 0), "fchownat": (260, 54), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "setxattrat": (463, 463), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "removexattrat": (466, 466),
}  # fmt: skip
# Landlock has no word for the rights and times of files. Copying a file sets them, so the calls seem to work.
_IDLE_BARE = {
    "chmod": (90, 0), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, 0),
    "utimes": (235, 0), "futimesat": (261, 0), "utimensat": (280, 88),
}  # fmt: skip
_TRUNCATE = {"truncate": (76, 45)}  # Landlock knows it from version 3
# Their first argument is a process; 0 is the caller.
_OF_ITSELF_BARE = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_CLONE, _CLONE3, _SOCKET, _PAIR, _PRIORITY = (56, 220), 435, (41, 198), (53, 199), (141, 140)


def refuse(*, bare: bool, landlock: int) -> bool:
    """Give the calls up, and say so: not every kernel and machine has a filter. No way back.

    `landlock` is the version that holds: what it lacks is refused here.
    """
    machine = os.uname().machine
    if machine not in _MACHINES or sys.maxsize < 2**32:
        return False
    steps = b"".join(pack("HBBI", *step) for step in _filter(machine, bare, landlock))
    held = ctypes.create_string_buffer(steps, len(steps))
    program = ctypes.create_string_buffer(pack("HP", len(steps) // 8, ctypes.addressof(held)))
    try:
        call("prctl", _SET_SECCOMP, ctypes.c_ulong(_BY_FILTER), program, *[ctypes.c_ulong(0)] * 2)
    except OSError:
        return False
    return True


Step = tuple[int, int, int, int]  # what, steps to skip if true, if false, with which value


def _filter(machine: str, bare: bool, landlock: int) -> list[Step]:
    which = list(_MACHINES).index(machine)
    steps = [_load(_MACHINE), *_unless(_MACHINES[machine]), _load(_NUMBER)]
    if machine == "x86_64":
        steps += [(_IF_AT_LEAST, 0, 1, _OTHER_INTERFACE), _ends(_REFUSED)]
    refused = _NEVER | (_NEVER_BARE if bare else {}) | (_TRUNCATE if bare and landlock < 3 else {})
    for answer, calls in ((_REFUSED, refused), (_IDLE, _IDLE_BARE if bare else {})):
        for numbers in calls.values():
            if numbers[which]:
                steps += _for(numbers[which], [_ends(answer)])
    # What it is to do lies in memory, where a filter cannot look; the older call does the same.
    steps += _for(_CLONE3, [_ends(_UNKNOWN)])
    namespaces = [_argument(0), (_IF_ANY, 0, 1, _NEW_NAMESPACES), _ends(_REFUSED), _ends(_ALLOWED)]
    steps += _for(_CLONE[which], namespaces)
    if bare:
        steps += _for(_PAIR[which], [_argument(1), (_AND, 0, 0, 0xF), *_only(_STREAM, _PACKETS)])
        for numbers in _OF_ITSELF_BARE.values():
            steps += _for(numbers[which], [_argument(0), *_only(0)])
        one = [_argument(0), *_unless(0), _argument(1), *_only(0)]  # not of all processes of a user
        steps += _for(_PRIORITY[which], one)
    else:
        steps += _for(_SOCKET[which], [_argument(0), *_only(*_FAMILIES)])
    return [*steps, _ends(_ALLOWED)]


def _load(place: int) -> Step:
    return _LOAD, 0, 0, place


def _argument(at: int) -> Step:
    return _load(_ARGUMENT + 8 * at)


def _ends(answer: int) -> Step:
    return _RETURN, 0, 0, answer


def _unless(value: int) -> list[Step]:
    return [(_IF_EQUAL, 1, 0, value), _ends(_REFUSED)]


def _for(number: int, steps: list[Step]) -> list[Step]:
    """The steps if it is this call; they end, so that what was loaded is still the number."""
    return [(_IF_EQUAL, 0, len(steps), number), *steps]


def _only(*values: int) -> list[Step]:
    allow = [step for value in values for step in ((_IF_EQUAL, 0, 1, value), _ends(_ALLOWED))]
    return [*allow, _ends(_REFUSED)]
