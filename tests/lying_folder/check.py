#!/usr/bin/env python3
"""Checks that `lying.c` lies in each of its ways, and only where it is told to.

    python3 tests/lying_folder/check.py     compiles the library (CC, else cc) in a temporary folder, prints what
                                            was seen, exits with 1 if a lie did not occur or occurred elsewhere

Each check runs in a process of its own under the library: `check.py NAME FOLDER`. FOLDER/lying lies, FOLDER/honest
does not. CPython calls libc for all of these, so a script is enough.
"""

import errno
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time

KINDS = [
    "rename reply",
    "mkdir reply",
    "old listing",
    "slow sync",
    "read fault",
    "open fault",
    "rename fault",
    "full",
]


def outcome(call, *arguments, **more):
    """The name of the error of a call, or its value."""
    try:
        return call(*arguments, **more)
    except OSError as error:
        return errno.errorcode[error.errno]


def tell(what, seen, is_right):
    print("  %-4s %s: %s" % ("ok" if is_right else "BAD", what, seen), flush=True)
    return is_right


def count_lies():
    with open(os.environ["LYING_COUNTS"], "rb") as file:
        return struct.unpack("%dq" % len(KINDS), file.read())


def age():
    """Seconds since this process began, as the library counts them (to a hundredth)."""
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        start = int(stat.read().rpartition(")")[2].split()[19])
        return float(uptime.read().split()[0]) - start / os.sysconf("SC_CLK_TCK")


def lost_replies(lying, honest):
    """renames and mkdirs are done, though every fifth answers with an error; by path and by descriptor."""
    right = True
    for folder, low, high in ((lying, 10, 80), (honest, 0, 0)):
        name = os.path.basename(folder)
        descriptor = os.open(folder, os.O_RDONLY)
        for how, base, more in (("path", folder + "/", {}), ("descriptor", "", {"dir_fd": descriptor})):
            both = {"src_dir_fd": descriptor, "dst_dir_fd": descriptor} if more else {}
            lost = {"rename": 0, "mkdir": 0}
            for i in range(200):
                open("%s/%s-%d.open" % (folder, how, i), "w").close()
                source, target = "%s%s-%d.open" % (base, how, i), "%s%s-%d.taken" % (base, how, i)
                lost["rename"] += outcome(os.rename, source, target, **both) == "ENOENT"
                lost["mkdir"] += outcome(os.mkdir, "%s%s-%d" % (base, how, i), **more) == "EEXIST"
            names = os.listdir(folder)
            done = sum(n.endswith(".taken") for n in names) == sum(n[-1].isdigit() for n in names)
            done &= not any(n.endswith(".open") for n in names)
            right &= tell(
                "200 calls by %s in %s" % (how, name),
                "%s; all done: %s" % (lost, done),
                done and all(low <= n <= high for n in lost.values()),
            )
        os.close(descriptor)
    missing = outcome(os.rename, lying + "/missing", lying + "/other"), outcome(os.mkdir, lying)
    return right & tell("true errors", missing, missing == ("ENOENT", "EEXIST"))


def old_listings(lying, honest):
    """A listing asked again within 1 s shows the old names, by path, by descriptor and by scandir."""
    right = True
    for folder, is_old in ((lying, True), (honest, False)):
        name = os.path.basename(folder)
        open(folder + "/first", "w").close()
        before = os.listdir(folder)
        open(folder + "/second", "w").close()
        os.remove(folder + "/first")
        descriptor = os.open(folder, os.O_RDONLY)
        seen = [os.listdir(folder), os.listdir(descriptor), [entry.name for entry in os.scandir(folder)]]
        os.close(descriptor)
        right &= tell(
            "at once in " + name,
            "%s, then %s" % (before, seen),
            before == ["first"] and seen == [["first"] if is_old else ["second"]] * 3,
        )
        time.sleep(1.1)
        seen = os.listdir(folder)
        right &= tell("after 1.1 s in " + name, seen, seen == ["second"])
    many = ["%04d.open" % i for i in range(3000)]
    os.mkdir(lying + "/many")
    for name in many:
        open(lying + "/many/" + name, "w").close()
    seen = [sorted(os.listdir(lying + "/many")) == many for _ in range(2)]
    return right & tell("3,000 names, twice", seen, seen == [True, True])


def slow_syncs(lying, honest):
    right = True
    for folder, slow in ((lying, 2), (honest, 0)):
        before = count_lies()[3]
        with open(folder + "/file", "w") as file:
            took = []
            for call in (os.fsync, os.fdatasync):
                start = time.monotonic()
                call(file.fileno())
                took.append(round(time.monotonic() - start, 3))
        is_right = count_lies()[3] - before == slow and (min(took) >= 0.2 or not slow)
        right &= tell("seconds of fsync, fdatasync in " + os.path.basename(folder), took, is_right)
    return right


def faults(lying, honest):
    """EIO and ESTALE from open, read, listdir and rename; of the failed renames about half were executed."""
    right = True
    for folder, lies in ((lying, True), (honest, False)):
        name = os.path.basename(folder)
        while isinstance(outcome(os.open, folder + "/file", os.O_RDWR | os.O_CREAT), str):
            pass
        while isinstance(descriptor := outcome(os.open, folder + "/file", os.O_RDONLY), str):
            pass
        executed = 0
        seen = {call: {} for call in ("open", "read", "pread", "listdir", "rename")}
        for i in range(300):
            opened = outcome(os.open, folder + "/file", os.O_RDONLY)
            if isinstance(opened, int):
                os.close(opened)
            os.link(folder + "/file", "%s/old-%d" % (folder, i))
            renamed = outcome(os.rename, "%s/old-%d" % (folder, i), "%s/new-%d" % (folder, i))
            executed += renamed is not None and os.path.exists("%s/new-%d" % (folder, i))
            results = {
                "open": opened,
                "read": outcome(os.read, descriptor, 1),
                "pread": outcome(os.pread, descriptor, 1, 0),
                "listdir": outcome(os.listdir, folder),
                "rename": renamed,
            }
            for call, result in results.items():
                if isinstance(result, str):
                    seen[call][result] = seen[call].get(result, 0) + 1
        for call, errors in seen.items():
            as_expected = sorted(errors) == (["EIO", "ESTALE"] if lies else [])
            right &= tell("300 times %s in %s" % (call, name), errors, as_expected)
        failed = sum(seen["rename"].values())
        right &= tell(
            "failed renames that were executed in " + name,
            "%d of %d" % (executed, failed),
            0 < executed < failed if lies else executed == 0,
        )
    return right


def full(lying, honest):
    """ENOSPC from 1.5 s to 2.5 s after the start of the process."""
    right = True
    files = {folder: os.open(folder + "/file", os.O_RDWR | os.O_CREAT) for folder in (lying, honest)}
    for when, is_full in ((0.0, False), (1.7, True), (2.7, False)):
        time.sleep(max(0, when - age()))
        for folder in (lying, honest):
            fresh = "%s/at-%.1f" % (folder, when)
            results = [
                outcome(os.write, files[folder], b"x"),
                outcome(os.pwrite, files[folder], b"x", 0),
                outcome(os.writev, files[folder], [b"x"]),
                outcome(os.posix_fallocate, files[folder], 0, 10),
                outcome(os.mkdir, fresh + "-folder"),
                outcome(os.open, fresh, os.O_WRONLY | os.O_CREAT),
            ]
            errors = [r if isinstance(r, str) else "" for r in results]
            existing = outcome(os.open, folder + "/file", os.O_WRONLY | os.O_CREAT)
            expected = ["ENOSPC" if is_full and folder == lying else ""] * 6
            is_right = errors == expected and isinstance(existing, int)
            right &= tell("after %.1f s in %s" % (when, os.path.basename(folder)), errors, is_right)
    return right


def threads(lying, honest):
    """Eight threads at once, with every lie: each rename is done once, nothing crashes."""
    taken = [0] * 8
    for i in range(400):
        while isinstance(outcome(os.open, "%s/%03d.open" % (lying, i), os.O_CREAT | os.O_WRONLY), str):
            pass

    def work(me):
        for i in range(400):
            outcome(os.listdir, lying)
            outcome(os.rename, "%s/%03d.open" % (lying, i), "%s/%03d.taken-%d" % (lying, i, me))
            taken[me] += os.path.exists("%s/%03d.taken-%d" % (lying, i, me))

    workers = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return tell("takes of 400 tickets by 8 threads", taken, sum(taken) == 400)


def seeds(lying, honest):
    """Children of one process draw differently (the process id is added to the seed)."""
    drawn = set()
    for child in range(4):
        if os.fork() == 0:
            bits = ["%d" % isinstance(outcome(os.mkdir, "%s/%d-%d" % (lying, child, i)), str) for i in range(40)]
            with open("%s/%d" % (honest, child), "w") as file:
                file.write("".join(bits))
            os._exit(0)
        os.wait()
        drawn.add(open("%s/%d" % (honest, child)).read())
    return tell("draws of 4 children", sorted(drawn), len(drawn) == 4)


# name: (check, variables, kinds of lies that must be counted)
CHECKS = {
    "lost replies": (lost_replies, {"LYING_REPLY": "0.2"}, (0, 1)),
    "old listings": (old_listings, {"LYING_STALE": "1"}, (2,)),
    "slow syncs": (slow_syncs, {"LYING_FSYNC_MS": "200"}, (3,)),
    "faults": (faults, {"LYING_FAULT": "0.2"}, (4, 5, 6)),
    "full": (full, {"LYING_FULL_AFTER": "1.5", "LYING_FULL_UNTIL": "2.5"}, (7,)),
    "threads": (threads, {"LYING_REPLY": "0.2", "LYING_STALE": "0.01", "LYING_FAULT": "0.05"}, (0, 2, 5, 6)),
    "seeds": (seeds, {"LYING_REPLY": "0.5"}, (1,)),
    "no folder": (
        lambda lying, honest: tell("mkdir", outcome(os.mkdir, lying + "/new"), True),
        {"LYING_FOLDER": "", "LYING_REPLY": "1"},
        (),
    ),
}


def run(name, library, folder):
    """One check in a process of its own; the lies that it counted must be those of the check, and no others."""
    _, variables, kinds = CHECKS[name]
    here = os.path.join(folder, name.replace(" ", "-"))
    for part in ("lying", "honest"):
        os.makedirs(os.path.join(here, part))
    counts = os.path.join(here, "counts")
    with open(counts, "wb") as file:
        file.write(bytes(8 * len(KINDS)))
    told = {
        "LD_PRELOAD": library,
        "LYING_FOLDER": here + "/lying",
        "LYING_SEED": "7",
        "LYING_COUNTS": counts,
        **variables,
    }
    print(name, " ".join("%s=%s" % item for item in variables.items()), flush=True)
    status = subprocess.run([sys.executable, __file__, name, here], env={**os.environ, **told}).returncode
    with open(counts, "rb") as file:
        lies = struct.unpack("%dq" % len(KINDS), file.read())
    counted = {KINDS[kind]: number for kind, number in enumerate(lies) if number}
    return tell("lies counted", counted, sorted(counted) == sorted(KINDS[kind] for kind in kinds)) and status == 0


def main():
    if len(sys.argv) == 3:
        check = CHECKS[sys.argv[1]][0]
        return 0 if check(sys.argv[2] + "/lying", sys.argv[2] + "/honest") else 1
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "lying.so")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lying.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, source, "-ldl"],
            check=True,
        )
        failed = [name for name in CHECKS if not run(name, library, folder)]
    print("failed: " + ", ".join(failed) if failed else "each lie occurred, and only where it was asked for")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
