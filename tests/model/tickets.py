#!/usr/bin/env python3
"""Explores every state of the ticket protocol (`docs/cluster-protocol.md`) and checks its invariants.

    python3 tests/model/tickets.py                  all configurations; exit status 0 if every invariant holds
    python3 tests/model/tickets.py --fault NAME     the same with one rule broken: 1 and the shortest trace
    python3 tests/model/tickets.py --faults         every fault, and the invariant that finds it

The numbers of rules (1 to 10) are those of the page. What is modelled is the mended protocol. The first
draft had four holes, which are kept as faults: `take-back-by-ticket`, `held-for-ever`,
`own-row-always-counts` and `queue-in-place`.

What makes the space finite without a bound on attempts, crashes or wrong beliefs:

- An attempt whose row can no longer change is folded into its trial: `FINAL`, or the number of attempts
  that were killed with their worker. Only the attempt a launch is at, and the attempt without a row that
  a dead launch left, are states. Their numbers are unique by rule 3, which `Numbers` explores by itself.
- A dead launch that nothing refers to is forgotten, and its slot may be a new launch. A configuration of
  three launches has three at a time that matter, and any number one after the other.
- Launches are equal, and so are tickets of one shape: states that differ by a permutation are one.
- A suspended launch is one that takes no step for a while, so suspension needs no state. A request that
  is executed after its sender died is the same as a sender that died after it. A row that arrives just
  after a look is the same as an old (stale) look.

Liveness is a run that the model carries out from every state: the living launches go on without a
further misfortune (`progress`), or all of them crash and a person starts a fresh one (`fresh-launch`).
At its end every ticket is `done`, or `held` with its kills, and every attempt has a row.
"""

import argparse
import itertools
import resource
import sys
import time

OPEN, DONE, HELD = -1, -2, -3  # the place of a ticket; a number from 0 is the launch that has it
FINAL = 9  # the state of a trial; less is the number of its attempts that were killed with their worker
PLACES = {OPEN: "open", DONE: "done", HELD: "held"}

# The state of a launch:
#   ("absent",)                           not begun, or forgotten
#   ("idle",)                             it has no ticket that it knows of
#   ("at", ticket, seen)                  at a ticket, between trials; `seen`: bits of the trials that it knows as final
#   ("runs", ticket, seen, trial, row)    in an attempt; `row`: what others wrote about it (NONE, KILLED, OOM)
#   ("gives", ticket)                     the own row of its last attempt is not final; it gives the ticket back
#   ("back", ticket, whom, verdict)       it takes the ticket back from `whom`; rows are written, the rename is next
#   ("rows", whom)                        only with the fault `rename-before-rows`
#   ("dead",) or ("dead", ticket, trial)  gone; the second left an attempt without a row. `ended` is the first
ABSENT, IDLE, DEAD = ("absent",), ("idle",), ("dead",)
NONE, KILLED, OOM = 0, 1, 2
FINE, BAD = False, True  # whether a step is a misfortune

FAULTS = {
    "done-before-row": "rule 4: `done` is written before the last row",
    "done-without-look": "rule 7: no look at the ticket before `done`",
    "done-with-one-final": "rule 6: a ticket taken back is done as soon as one of its trials is",
    "rename-before-rows": "rule 6: the ticket is renamed first, the killed rows are written after it",
    "take-back-to-open": "rule 6: back to `open` also if every trial has its final row",
    "take-back-by-ticket": "rule 6, first draft: only a ticket that bears its number leads to a launch's attempts",
    "ended-is-alive": "rule 6: nothing is taken back from a launch that has ended",
    "held-for-ever": "rule 9 is missing, first draft: nobody looks at a held ticket again",
    "numbers-by-listing": "rule 3: numbers from a listing, the folder made by create_dir_all",
    "never-own": "rules 1 and 2: ENOENT means not mine, and nobody looks for tickets of its own",
    "take-without-reading": "rule 3: rows are not read when a ticket is taken",
    "no-fence": "rule 7: no fence",
    "reclaimer-first": "rule 8: the reclaimer's row counts before that of the launch that ran it",
    "own-row-always-counts": "rule 8, first draft: the own row counts, though it is not final and another's is",
    "give-back-before-row": "rule 5: the ticket is given back before the interrupted row is written",
    "give-back-as-done": "rule 5: a worker that ends writes `done`",
    "queue-in-place": "rule 0, first draft: tickets that a listing lacks are written into the queue",
    "stop-stays": "rule 10: who starts the run again leaves `queue/stop`",
}
HARMLESS = {
    "done-without-look": "the rename is the look: `taken-me` is there only as long as the ticket is mine. The look "
    "saves a message.",
    "take-back-to-open": "who takes the ticket reads the rows, finds nothing left and writes `done`.",
    "no-fence": "the fence saves time, not truth: the attempt runs beside another one of its trial, with a number "
    "and a row of its own, and its `done` meets ENOENT.",
}


class Tickets:
    """Rules 1, 2 and 4 to 10 over one queue."""

    def __init__(
        self, name, tickets, launches, late, kills, wrong, stale, ghosts=False, stop=False, oom=False, fault=None
    ):
        self.name, self.shape, self.launches, self.late = name, tickets, launches, late
        self.kills = kills  # so many kills of one trial hold its ticket
        self.wrong = wrong  # somebody may believe that a living launch is gone
        self.stale = stale  # listings and stat may be old
        self.ghosts = ghosts  # they may even show a ticket as mine that I never had
        self.stop = stop  # `queue/stop` may be written
        self.oom = oom  # who takes back may know that the attempt ran out of memory, which is final
        self.fault = fault
        both = range(len(tickets))
        self.swaps = [p for p in itertools.permutations(both) if all(tickets[a] == tickets[p[a]] for a in both)]

    def start(self):
        tickets = tuple((OPEN, (0,) * trials) for trials in self.shape)
        return tickets, (IDLE,) * self.launches + (ABSENT,) * self.late, False

    # --- steps: (what happens, launch, ticket, is a misfortune, next state)

    def steps(self, state):
        tickets, launches, stop = state
        if self.stop and not stop:
            yield "somebody writes queue/stop", None, None, BAD, (tickets, launches, True)
        if ABSENT in launches:
            me = launches.index(ABSENT)
            yield "begins", me, None, BAD, put(state, me, IDLE)
        for me, launch in enumerate(launches):
            kind = launch[0]
            if kind == "absent" or kind == "dead":
                continue
            if kind == "idle":
                yield from self.looks_round(state, me)
            elif kind == "at":
                yield from self.goes_on(state, me, *launch[1:])
            elif kind == "runs":
                yield from self.attempt_ends(state, me, *launch[1:])
            elif kind == "gives":
                yield from self.gives_back(state, me, *launch[1:])
            elif kind == "back":
                yield from self.takes_back(state, me, *launch[1:])
            elif kind == "rows":
                yield (
                    "writes the killed rows, after the rename",
                    me, None, FINE, put(self.killed_row(state, launch[1]), me, IDLE),
                )
            yield "crashes", me, None, BAD, self.crash(state, me)

    def looks_round(self, state, me):
        tickets, launches, stop = state
        if stop:
            yield "sees queue/stop and ends", me, None, FINE, put(state, me, DEAD)
        for t, (place, trials) in enumerate(tickets):
            if place == me and self.fault != "never-own":  # rule 2
                yield from self.reads_rows(state, me, t, "finds it under its own number, and is not at it")
            elif place == OPEN:  # rule 1
                taken = move(state, t, me)
                yield from self.reads_rows(taken, me, t, "takes it")
                if self.stale or self.fault == "never-own":
                    yield "takes it; the reply is lost, stat is old: it believes that it failed", me, t, BAD, taken
            elif place >= 0 and place != me:  # rule 6
                if self.is_gone(launches[place]):
                    yield from self.looks_at(state, me, t, place, "")
                elif self.wrong:
                    yield from self.looks_at(state, me, t, place, ", wrongly believed gone")
            elif place == HELD and self.fault != "held-for-ever" and self.judge(state, t) != HELD:  # rule 9
                yield (
                    "judges the held ticket again: its kills do not count any more; renames to open",
                    me, t, FINE, move(state, t, OPEN),
                )
            if place != me and self.ghosts:
                yield "believes by an old listing that it still has it", me, t, BAD, put(state, me, ("at", t, 0))
        if self.fault != "take-back-by-ticket":  # rule 6: also without a ticket
            for whom, launch in enumerate(launches):
                is_dead = launch[0] == "dead"
                if whom != me and self.has_no_row(launch) and (is_dead or self.wrong):
                    yield (
                        "writes the killed row of an attempt that launch %s left" % ref(whom),
                        me, None, not is_dead, self.killed_row(state, whom),
                    )
        yield "ends", me, None, BAD, put(state, me, DEAD)  # rule 5

    def reads_rows(self, state, me, t, how):
        """Rule 3: the trials that have a final row are not run again."""
        trials = state[0][t][1]
        final = 0
        for j in range(len(trials)):
            if self.is_final(state, t, j):
                final |= 1 << j
        if self.fault == "take-without-reading":
            final = 0
        yield how, me, t, FINE, put(state, me, ("at", t, final))
        if self.stale and final:
            yield how + "; a final row is not seen yet", me, t, BAD, put(state, me, ("at", t, 0))

    def goes_on(self, state, me, t, seen):
        tickets, _, stop = state
        place, trials = tickets[t]
        left = [j for j in range(len(trials)) if not seen >> j & 1]
        looks = self.fault != "no-fence" and (left or self.fault != "done-without-look")
        if place != me and looks:  # rule 7
            yield "sees that it was taken back", me, t, FINE, put(state, me, IDLE)
        if not left:  # rule 4
            renamed = move(state, t, DONE) if place == me else state
            yield (
                ("renames to done" if place == me else "renames to done: ENOENT, it was taken back"),
                me, t, FINE, put(renamed, me, IDLE),
            )
            return
        begun = put(state, me, ("runs", t, seen, left[0], NONE))
        if stop:
            yield "sees queue/stop", me, t, FINE, put(state, me, ("gives", t))
        yield "begins an attempt of trial %d" % (left[0] + 1), me, t, FINE, begun
        yield "is asked to stop", me, t, BAD, put(state, me, ("gives", t))  # rule 5
        if self.stale and place == me:
            yield "believes by an old listing that it was taken back", me, t, BAD, put(state, me, IDLE)

    def attempt_ends(self, state, me, t, seen, j, row):
        place, trials = state[0][t]
        lost = place != me and self.fault != "no-fence"
        if lost:  # rule 7
            yield (
                "sees that it was taken back, stops the attempt, writes the own row, which is not final",
                me, t, FINE, put(self.own_row(state, me, False), me, IDLE),
            )
        if self.fault == "done-before-row" and place == me and seen | 1 << j == (1 << len(trials)) - 1:
            yield "renames to done before the row", me, t, FINE, move(state, t, DONE)
        yield (
            "writes the final row of trial %d" % (j + 1),
            me, t, lost, put(self.own_row(state, me, True), me, ("at", t, seen | 1 << j)),
        )
        if self.fault == "give-back-before-row" and place == me:
            yield "gives it back before the row", me, t, FINE, move(state, t, OPEN)
        after = self.own_row(state, me, False)
        yield (
            "writes a row that is not final (interrupted, killed), will give back",
            me, t, BAD, put(after, me, ("gives", t)),
        )
        yield (
            "writes a row that is not final (killed, retries left), goes on",
            me, t, BAD, put(after, me, ("at", t, seen)),
        )
        if self.stale and place == me:
            yield (
                "believes by an old listing that it was taken back, stops the attempt, writes the own row, which is not final",
                me, t, BAD, put(after, me, IDLE),
            )

    def gives_back(self, state, me, t):
        """Rule 5."""
        place = DONE if self.fault == "give-back-as-done" else OPEN
        renamed = move(state, t, place) if state[0][t][0] == me else state
        yield (
            ("gives it back" if renamed is not state else "gives it back: ENOENT, it was taken back"),
            me, t, FINE, put(renamed, me, IDLE),
        )

    def looks_at(self, state, me, t, whom, how):
        """Rule 6, first half: read everything, write the killed rows."""
        how = "looks, to take it back from launch %s%s: " % (ref(whom), how)
        is_wrong = not self.is_gone(state[1][whom])
        of_ticket = self.fault == "take-back-by-ticket" and state[1][whom][1:2] != (t,)
        written = state if self.fault == "rename-before-rows" or of_ticket else self.killed_row(state, whom)
        verdict = self.judge(written, t)
        if self.fault == "take-back-to-open" and verdict == DONE:
            verdict = OPEN
        yield (
            how + "writes the killed rows; verdict %s" % PLACES[verdict],
            me, t, is_wrong, put(written, me, ("back", t, whom, verdict)),
        )
        if self.stale:
            yield (
                how + "sees nothing of its attempts and rows; verdict open",
                me, t, BAD, put(state, me, ("back", t, whom, OPEN)),
            )
        if self.oom and self.has_no_row(state[1][whom]):
            written = self.oom_row(state, whom)
            verdict = self.judge(written, t)
            yield (
                how + "writes an oom row; verdict %s" % PLACES[verdict],
                me, t, BAD, put(written, me, ("back", t, whom, verdict)),
            )

    def takes_back(self, state, me, t, whom, verdict):
        """Rule 6, second half: the rename. It fails if the ticket has another name now."""
        is_there = state[0][t][0] == whom
        renamed = move(state, t, verdict) if is_there else state
        then = ("rows", whom) if self.fault == "rename-before-rows" else IDLE
        yield (
            ("renames to %s" % PLACES[verdict] if is_there else "renames: ENOENT, somebody was faster"),
            me, t, FINE, put(renamed, me, then),
        )

    # --- rows

    @staticmethod
    def has_no_row(launch):
        return launch[0] == "runs" and launch[4] == NONE or len(launch) == 3 and launch[0] == "dead"

    def is_gone(self, launch):
        return launch[0] == "dead" and not (self.fault == "ended-is-alive" and launch == DEAD)

    def own_row(self, state, me, is_final):
        """Rule 8: the own row counts; a row that is final counts before one that is not."""
        _, t, _, j, row = state[1][me]
        if self.fault == "reclaimer-first" and row == KILLED:
            return self.kill(state, t, j)
        return final(state, t, j) if is_final else state

    def killed_row(self, state, whom):
        launch = state[1][whom]
        if not self.has_no_row(launch):
            return state
        if launch[0] == "runs":
            return put(state, whom, launch[:4] + (KILLED,))
        return self.kill(put(state, whom, DEAD), launch[1], launch[2])

    def oom_row(self, state, whom):
        launch = state[1][whom]
        t, j = (launch[1], launch[3]) if launch[0] == "runs" else launch[1:]
        if launch[0] == "dead":
            return final(put(state, whom, DEAD), t, j)
        if self.fault == "own-row-always-counts":
            return put(state, whom, launch[:4] + (OOM,))
        return final(put(state, whom, launch[:4] + (KILLED,)), t, j)

    def kill(self, state, t, j):
        kills = state[0][t][1][j]
        return state if kills == FINAL else trial(state, t, j, min(kills + 1, self.kills))

    def crash(self, state, me):
        launch = state[1][me]
        if launch[0] != "runs":
            return put(state, me, DEAD)
        _, t, _, j, row = launch
        if row == NONE:
            return put(state, me, ("dead", t, j))
        return self.kill(put(state, me, DEAD), t, j) if row == KILLED else final(put(state, me, DEAD), t, j)

    def is_final(self, state, t, j):
        if state[0][t][1][j] == FINAL:
            return True
        return self.fault == "own-row-always-counts" and any(
            l[0] == "runs" and l[1] == t and l[3:] == (j, OOM) for l in state[1]
        )

    def is_poison(self, state, t, j):
        """Killed with its worker as often as is allowed, by the rows that count."""
        kills = state[0][t][1][j]
        if kills == FINAL or self.is_final(state, t, j):
            return False
        return kills + sum(l[0] == "runs" and l[1] == t and l[3:] == (j, KILLED) for l in state[1]) >= self.kills

    def judge(self, state, t):
        trials = range(len(state[0][t][1]))
        enough = any if self.fault == "done-with-one-final" else all
        if enough(self.is_final(state, t, j) for j in trials):
            return DONE
        return HELD if any(self.is_poison(state, t, j) for j in trials) else OPEN

    # --- invariants

    def broken(self, state):
        """The invariant that this state breaks, or None."""
        tickets, launches, _ = state
        for t, (place, trials) in enumerate(tickets):
            if place == DONE and not all(self.is_final(state, t, j) for j in range(len(trials))):
                return "done-is-final: ticket %s is done, and a trial of it has no final row" % ref(t, "T")
            if (
                place == HELD
                and not self.wrong
                and not self.stale
                and not any(self.is_poison(state, t, j) for j in range(len(trials)))
            ):
                return "held-is-killed: ticket %s is held without a trial that was killed %d times" % (
                    ref(t, "T"),
                    self.kills,
                )
        if self.wrong or self.stale:
            return None
        running = [(l[1], l[3]) for l in launches if l[0] == "runs"]
        if len(running) != len(set(running)):
            return "one-at-a-time: two launches run one trial, though nobody was wrong about another"
        if any(tickets[t][1][j] == FINAL for t, j in running):
            return "not-again: a trial that has its final row is run again, though every look was fresh"
        for l, launch in enumerate(launches):
            if self.has_no_row(launch) and launch[0] == "dead" and tickets[launch[1]][0] != l:
                return "attempts-have-rows: an attempt of launch %s has no row, and no ticket leads to it" % ref(l)
        return None

    def unfinished(self, state):
        """What is missing at the end of a run without further misfortunes, or None."""
        for t, (place, trials) in enumerate(state[0]):
            if place == HELD and not any(self.is_poison(state, t, j) for j in range(len(trials))):
                return "ticket %s stays held, and no trial of it was killed %d times by the rows that count" % (
                    ref(t, "T"),
                    self.kills,
                )
            if place == OPEN or place >= 0:
                return "ticket %s stays %s" % (
                    ref(t, "T"),
                    "open" if place == OPEN else "in the hands of launch %s" % ref(place),
                )
        for l, launch in enumerate(state[1]):
            if self.has_no_row(launch):
                return "the attempt that launch %s left stays without a row" % ref(l)
        return None

    def next_without_misfortune(self, state):
        for what, who, t, is_misfortune, then in self.steps(state):
            if not is_misfortune:
                return what, who, t, is_misfortune, then
        return self.started_by_a_person(state)

    def started_by_a_person(self, state):
        """Rule 10, if no launch lives and something is unfinished."""
        tickets, launches, stop = state
        if any(l[0] not in ("absent", "dead") for l in launches) or not self.unfinished(state):
            return None
        me = launches.index(ABSENT) if ABSENT in launches else len(launches)
        then = tickets, launches[:me] + (IDLE,) + launches[me + 1 :], stop and self.fault == "stop-stays"
        return "is started by a person", me, None, FINE, then

    def all_crash(self, state):
        for me, launch in enumerate(state[1]):
            if launch[0] not in ("absent", "dead"):
                state = self.crash(state, me)
        return state

    # --- symmetry

    @staticmethod
    def forget(state):
        """Without the dead launches that nothing refers to."""
        tickets, launches, stop = state
        if DEAD not in launches:
            return state
        used = {place for place, _ in tickets}
        used.update([l[2] if l[0] == "back" else l[1] for l in launches if l[0] == "back" or l[0] == "rows"])
        return (
            tickets,
            tuple([ABSENT if l == DEAD and i not in used else l for i, l in enumerate(launches)]),
            stop,
        )

    def canonical(self, state):
        """One of the states that differ from this one by a permutation of launches and of equal tickets."""
        tickets, launches, stop = self.forget(state)
        if len(self.swaps) == 1:
            return sort_launches(tickets, launches, stop)
        first, second = tickets  # at most two tickets of one shape
        a, b = (min(first[0], 0), first[1]), (min(second[0], 0), second[1])
        if a < b:
            return sort_launches(tickets, launches, stop)
        swapped = tuple([l if len(l) == 1 or l[0] == "rows" else (l[0], 1 - l[1]) + l[2:] for l in launches])
        if a > b:
            return sort_launches((second, first), swapped, stop)
        return min(sort_launches(tickets, launches, stop), sort_launches((second, first), swapped, stop))


def sort_launches(tickets, launches, stop):
    marks = []
    for i, l in enumerate(launches):
        refers = [t for t, (place, _) in enumerate(tickets) if place == i]
        refers += [9 + m[1] - m[3] for m in launches if m[0] == "back" and m[2] == i]
        marks.append((l[:2] + l[3:] if l[0] == "back" else l, refers, i))
    marks.sort()
    order = [m[2] for m in marks]
    if order == sorted(order):
        return tickets, launches, stop
    new = {old: i for i, old in enumerate(order)}
    tickets = tuple([(new[p], trials) if p >= 0 else (p, trials) for p, trials in tickets])
    launches = [launches[i] for i in order]
    for i, l in enumerate(launches):
        if l[0] == "back":
            launches[i] = ("back", l[1], new[l[2]], l[3])
        elif l[0] == "rows":
            launches[i] = ("rows", new[l[1]])
    return tickets, tuple(launches), stop


def ref(i, letter="L"):
    return "{%s%d}" % (letter, i)


def put(state, me, launch):
    tickets, launches, stop = state
    return tickets, launches[:me] + (launch,) + launches[me + 1 :], stop


def move(state, t, place):
    tickets, launches, stop = state
    return tickets[:t] + ((place, tickets[t][1]),) + tickets[t + 1 :], launches, stop


def trial(state, t, j, value):
    tickets, launches, stop = state
    place, trials = tickets[t]
    return (
        tickets[:t] + ((place, trials[:j] + (value,) + trials[j + 1 :]),) + tickets[t + 1 :],
        launches,
        stop,
    )


def final(state, t, j):
    return trial(state, t, j, FINAL)


class Numbers:
    """Rule 3 (attempts) and the folders of launches: unique numbers by mkdir. Bound: 6 numbers, 3 launches.

    State: per number 0 (no folder), 1 (a folder that nobody uses), 2 (one launch's), 3 (two launches');
    per launch ("looks",), ("tries", number) or ("has", number)."""

    name, has_liveness = "numbers by mkdir", False

    def __init__(self, fault=None):
        self.fault = fault

    def start(self):
        return (0,) * 6, (("looks",),) * 3

    def steps(self, state):
        folders, launches = state
        for me, launch in enumerate(launches):

            def then(launch, number=None, value=None):
                made = folders if number is None else folders[: number - 1] + (value,) + folders[number:]
                return made, launches[:me] + (launch,) + launches[me + 1 :]

            if launch[0] == "looks":
                highest = max([n + 1 for n, folder in enumerate(folders) if folder], default=0)
                for seen in range(highest + 1):  # a listing may be old
                    yield (
                        "lists, sees %d as the highest number" % seen,
                        me, None, seen < highest, then(("tries", seen + 1)),
                    )
            elif launch[0] == "has":
                yield "is through with its number, looks for the next one", me, None, FINE, then(("looks",))
            elif launch[1] <= len(folders):
                number = launch[1]
                folder = folders[number - 1]
                if folder == 0:
                    yield "mkdir %d succeeds" % number, me, None, FINE, then(("has", number), number, 2)
                    yield (
                        "mkdir %d: the reply is lost, EEXIST" % number,
                        me, None, BAD, then(("tries", number + 1), number, 1),
                    )
                elif self.fault == "numbers-by-listing":
                    yield (
                        "create_dir_all %d succeeds on what is there" % number,
                        me, None, FINE, then(("has", number), number, folder + 1),
                    )
                else:
                    yield "mkdir %d: EEXIST, next number" % number, me, None, FINE, then(("tries", number + 1))

    def canonical(self, state):
        return state[0], tuple(sorted(state[1]))

    def broken(self, state):
        return "one-owner: two launches have one number" if 3 in state[0] else None


class Making:
    """Rule 0: the queue is made whole. Two submitters and workers, two tickets.

    State: per ticket its names in the queue, or None without a queue; per submitter ("looks",),
    ("writes", tickets written, in its draft) or ("attends",)."""

    name, has_liveness = "making of the queue", False

    def __init__(self, fault=None):
        self.fault = fault

    def start(self):
        return None, (("looks",),) * 2

    def steps(self, state):
        queue, submitters = state
        for t, names in enumerate(queue or ()):
            for name, after in (("open", "taken"), ("taken", "done")):
                if name in names:
                    renamed = tuple(sorted(set(names) - {name} | {after}))
                    then = queue[:t] + (renamed,) + queue[t + 1 :], submitters
                    yield "a worker renames it to %s" % after, None, t, FINE, then
        for me, submitter in enumerate(submitters):

            def then(submitter, queue=queue):
                return queue, submitters[:me] + (submitter,) + submitters[me + 1 :]

            if submitter[0] == "attends":
                continue
            if submitter[0] == "looks":
                if queue:
                    yield "sees the queue, attends", me, None, FINE, then(("attends",))
                yield (
                    "sees no queue" + (", by an old look" if queue else ""),
                    me, None, bool(queue), then(("writes", 0)),
                )
                continue
            yield "crashes; another one is started", me, None, BAD, then(("looks",))
            written = submitter[1]
            if self.fault == "queue-in-place":
                yield from self.writes_in_place(then, queue or ((), ()), me, written)
            elif written < 2:
                yield "writes it into its draft", me, written, FINE, then(("writes", written + 1))
            elif queue is None:
                yield "renames its draft to `queue`", me, None, FINE, then(("attends",), (("open",),) * 2)
                yield (
                    "renames its draft to `queue`; the reply is lost",
                    me, None, BAD, then(("looks",), (("open",),) * 2),
                )
            else:
                yield "renames its draft to `queue`: ENOTEMPTY", me, None, FINE, then(("attends",))

    @staticmethod
    def writes_in_place(then, queue, me, written):
        if written == 2:
            yield "has a whole queue", me, None, FINE, then(("attends",))
            return
        names = queue[written]
        if names:
            yield "lists, sees it", me, written, FINE, then(("writes", written + 1))
        added = queue[:written] + (tuple(sorted({*names, "open"})),) + queue[written + 1 :]
        yield (
            "lists%s, does not see it, writes it as open" % (" (an old listing)" if names else ""),
            me, written, bool(names), then(("writes", written + 1), added),
        )

    def canonical(self, state):
        return state[0], tuple(sorted(state[1]))

    def broken(self, state):
        for t, names in enumerate(state[0] or ()):
            if len(names) > 1:
                return "one-place: ticket %s is in the queue as %s" % (
                    ref(t, "T"),
                    " and as ".join(names),
                )
            if not names and self.fault is None:
                return "whole-queue: there is a queue without ticket %s" % ref(t, "T")
        return None


def configurations(fault=None):
    nobody_is_wrong = dict(kills=3, wrong=False, stale=False, stop=True, oom=True, fault=fault)
    wrong = dict(wrong=True, stale=True, fault=fault)
    return [
        Numbers(fault),
        Making(fault),
        Tickets("two tickets of a trial, nobody is wrong", (1, 1), 2, 1, **nobody_is_wrong),
        Tickets("a ticket of two trials, nobody is wrong", (2,), 2, 1, **nobody_is_wrong),
        Tickets(
            "a ticket of a trial, old looks",
            (1,),
            2,
            1,
            kills=3,
            wrong=False,
            stale=True,
            stop=True,
            oom=True,
            fault=fault,
        ),
        Tickets("a ticket of a trial, wrong beliefs", (1,), 2, 1, kills=3, stop=True, oom=True, **wrong),
        Tickets("a ticket of two trials, wrong beliefs", (2,), 2, 1, kills=2, oom=True, **wrong),
        Tickets("a ticket of a trial, four launches", (1,), 3, 1, kills=2, ghosts=True, **wrong),
        Tickets("two tickets of a trial, wrong beliefs", (1, 1), 2, 1, kills=2, **wrong),
    ]


# --- exploring


class Violation(Exception):
    """An invariant, the path of canonical states to where it fails, and for liveness those that follow."""

    def __init__(self, invariant, path, after=None, all_crash=False):
        super().__init__(invariant)
        self.invariant, self.path, self.after, self.all_crash = invariant, path, after, all_crash


def explore(model):
    """All states, breadth first. Returns how many states, steps and levels there are."""
    begin = model.canonical(model.start())
    came_from = {begin: None}
    calm = {}  # the next state without a further misfortune
    level, steps, depth = [begin], 0, 0
    canonical, broken, has_liveness = (
        model.canonical,
        model.broken,
        getattr(model, "has_liveness", True),
    )
    while level:
        following = []
        for state in level:
            for _, _, _, is_misfortune, then in model.steps(state):
                steps += 1
                key = canonical(then)
                if key not in came_from:
                    came_from[key] = state
                    invariant = broken(key)
                    if invariant:
                        raise Violation(invariant, path_to(came_from, key))
                    following.append(key)
                if not is_misfortune and has_liveness and state not in calm:
                    calm[state] = key
        level = following
        depth += bool(level)
    if has_liveness:
        check_liveness(model, came_from, calm)
    return len(came_from), steps, depth


def check_liveness(model, came_from, calm):
    """From each state, in the order found: the living go on; or all crash and a fresh launch begins."""
    proved = set()
    for state in came_from:
        for all_crash in (False, True):
            key = model.canonical(model.all_crash(state)) if all_crash else state
            chain = {}
            stuck = None
            while key not in proved and key is not None and not stuck:
                chain[key] = None
                if key not in calm:
                    found = model.next_without_misfortune(key)
                    calm[key] = model.canonical(found[4]) if found else None
                if calm[key] is None:
                    stuck = model.unfinished(key)
                elif calm[key] in chain:
                    stuck = "the run goes round in a circle"
                key = calm[key]
            if stuck:
                name = "fresh-launch" if all_crash else "progress"
                raise Violation("%s: %s" % (name, stuck), path_to(came_from, state), list(chain)[1:], all_crash)
            proved.update(chain)


def path_to(came_from, key):
    path = []
    while key is not None:
        path.append(key)
        key = came_from[key]
    return path[::-1]


# --- telling a trace


class Names:
    """Slots of launches as numbers that are never used twice, tickets as 0001, 0002."""

    def __init__(self, count):
        self.launch = dict(enumerate(range(1, count + 1)))

    def begin(self, slot):
        self.launch[slot] = max(self.launch.values()) + 1

    def tell(self, text):
        for slot, number in self.launch.items():
            text = text.replace(ref(slot), str(number))
        return text.replace("{T0}", "0001").replace("{T1}", "0002")

    def step(self, what, who, t):
        where = [] if who is None else ["launch %d" % self.launch[who]]
        where += [] if t is None else ["ticket 000%d" % (t + 1)]
        return self.tell("%s: %s" % (", ".join(where), what) if where else what)


def trace(model, violation):
    """The lines that tell a path, with the same names from its first step to its last. Its states are
    canonical, so each step is looked up again from the state that it really leads from."""
    forget = getattr(model, "forget", lambda state: state)
    state = model.start()
    names = Names(getattr(model, "launches", 3))
    path = list(violation.path[1:])
    if violation.after:
        path += [None] + violation.after
    for key in path:
        if key is None:
            yield "every launch crashes" if violation.all_crash else "from here on nobody has a misfortune"
            state = forget(model.all_crash(state)) if violation.all_crash else state
            continue
        steps = list(model.steps(state))
        if violation.after:
            steps[:0] = filter(None, [model.started_by_a_person(state)])
        what, who, t, _, then = next(step for step in steps if is_same(model, step[4], key))
        if what in ("begins", "is started by a person"):
            names.begin(who)
        yield names.step(what, who, t)
        state = forget(then)
    if "circle" in violation.invariant:
        yield "and so on without end"
    missing = model.broken(state) if violation.after is None else model.unfinished(state)
    yield "so " + (names.tell(missing) if missing else violation.invariant).split(": ")[-1]


def is_same(model, state, key):
    """Whether a permutation of launches and tickets makes one of the other. (`canonical` leaves a few
    such pairs apart, which costs states and nothing else.)"""
    state = model.canonical(state)
    if not isinstance(model, Tickets) or state == key:
        return state == key
    tickets, launches, stop = state
    if sorted(l[0] for l in launches) != sorted(l[0] for l in key[1]):
        return False
    for order in itertools.permutations(range(len(launches))):
        for swap in model.swaps:
            if permuted(tickets, launches, order, swap) + (stop,) == key:
                return True
    return False


def permuted(tickets, launches, order, swap):
    out = []
    for l in (launches[i] for i in order):
        if l[0] == "back":
            l = l[:2] + (order.index(l[2]), l[3])
        if l[0] == "rows":
            l = ("rows", order.index(l[1]))
        elif len(l) > 1:
            l = (l[0], swap.index(l[1])) + l[2:]
        out.append(l)
    moved = [tickets[i] for i in swap]
    return tuple((order.index(p) if p >= 0 else p, trials) for p, trials in moved), tuple(out)


def explain(model, violation):
    lines = list(trace(model, violation))
    for number, line in enumerate(lines[:-1]):
        print("  %2d. %s" % (number + 1, line))
    print("  %s" % lines[-1])


def check(fault=None):
    """True if every invariant holds in every configuration."""
    begin = time.process_time()
    for model in configurations(fault):
        start = time.process_time()
        try:
            states, steps, depth = explore(model)
        except Violation as violation:
            print("%s: broken: %s" % (model.name, violation.invariant.split(": ")[0]))
            explain(model, violation)
            return False
        seconds = time.process_time() - start
        print(
            "%-41s %7d states %8d transitions  depth %2d %6.1f s  complete"
            % (model.name, states, steps, depth, seconds),
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("every invariant holds; %.0f s, %.0f MiB" % (time.process_time() - begin, peak))
    return True


def check_faults():
    """True if each fault is found by an invariant, or is known to be harmless and is not found."""
    is_as_said = True
    for fault, what in FAULTS.items():
        found = None
        # The large configuration adds nothing that a harmless fault could be found by in less than a minute.
        models = configurations(fault)[:-1] if fault in HARMLESS else configurations(fault)
        for model in models:
            try:
                explore(model)
            except Violation as violation:
                found = violation
                break
        is_as_said &= (found is None) == (fault in HARMLESS)
        print("%-22s %s" % (fault, what))
        if found:
            invariant = found.invariant.split(": ")[0]
            print(
                "%22s found by %s in %d steps (%s)" % ("", invariant, len(found.path) - 1, model.name),
                flush=True,
            )
        else:
            print(
                "%22s not found: %s" % ("", HARMLESS.get(fault, "NO INVARIANT FINDS IT")),
                flush=True,
            )
    return is_as_said


def main():
    parser = argparse.ArgumentParser(description="Explores every state of the ticket protocol.")
    parser.add_argument("--fault", choices=FAULTS, metavar="NAME", help="break one rule: " + ", ".join(FAULTS))
    parser.add_argument(
        "--faults",
        action="store_true",
        help="break each rule in turn and name the invariant that finds it",
    )
    arguments = parser.parse_args()
    return 0 if (check_faults() if arguments.faults else check(arguments.fault)) else 1


if __name__ == "__main__":
    sys.exit(main())
