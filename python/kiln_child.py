"""A trial of kiln in Python: the child's side of docs/child-protocol.md. One file, standard library only, Python 3.8 or newer.

    import kiln_child

    with kiln_child.trial(default={"train.steps": 100, "train.batch_size": 8}) as trial:
        trial.honours("train.steps train.batch_size train.seed")
        ...                                              # build the model and the batches
        trial.ready(parameters=1234, total_steps=trial["train.steps"])
        for step in trial.steps():
            batch = step.next(batches)                   # optional: its time counts as data wait
            step.done(samples=len(batch), loss=update(batch))
        trial.finish(valid_loss=trial.evaluate(measure_it))

Started by kiln, it sends messages and writes steps.csv, epochs.csv and trial.json. Started by hand, it trains with the defaults
and prints lines for people. A command (`model.kind: command`) needs only `kiln_child.line(samples_per_second=812.5)`.
"""

import contextlib
import csv
import errno
import faulthandler
import json
import math
import os
import signal
import sys
import time
import traceback

PROTOCOL = TRIAL_FILE = TRIAL_RESULT = 1
FAILED, BAD_FILE, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED = 1, 2, 4, 5, 130
PROGRESS_SECONDS, SECONDS_BETWEEN_LINES = 0.2, 1.0  # For kiln, for people.
STEPS = ("kiln_table run_seconds epoch step loss learning_rate step_seconds data_wait_seconds is_warmup gradient_norm_squared "
         "micro_gradient_norm_squared gradient_signal gradient_noise gradient_noise_scale").split()
EPOCHS = (
    "kiln_table run_seconds epoch step train_loss valid_loss valid_perplexity evaluation_seconds samples valid_top1 valid_top5"
    " valid_mean_absolute_error valid_hit_rate valid_bleu4 valid_chrf"
).split()
COUNTED = ("kiln_trial_result", "trial", "attempt", "outcome", "reason", "steps", "left_out_steps", "notes")
COUNTS = ("parameters", "flops_per_sample", "skipped_steps", "allocator_retries", "train_samples", "steps_to_target", "lowest_valid_step")
CONTAINERS = ("class_names", "metrics", "flags", "left_out_of_data", "window_pairs", "libraries", "library_files")
NUMBERS = ("train_loss", "valid_", "lowest_valid_loss", "mfu", "mean_", "max_", "energy_", "persistence_", "majority_", "gradient_noise_")
NUMBER_ENDS = ("_per_step", "_seconds", "_per_second", "_fraction", "_to_target", "_joules", "_watts", "_flops", "_tokens", "_samples")
OUTSIDE_KILN = {"measure.warmup_steps": 10, "measure.warmup_seconds": 2.0, "measure.log_every": 10, "device": "cpu", "folder": "."}


class BatchesEnded(RuntimeError, StopIteration):
    """The iterator of batches has no more; a program that begins it again catches it as StopIteration."""


class Refused(Exception):
    """A key, or a value of one, that this program does not support."""


class Diverged(Exception):
    """A loss that is NaN or infinite."""


class Interrupted(BaseException):
    """SIGTERM or SIGINT asked the trial to stop."""


def trial(default=None):
    """The trial that kiln asks for, for a `with` block; started by hand, one with the values of `default` (dotted keys)."""
    return Trial(default or {})


def line(**values):
    """Prints one JSON line, for the `{key: …}` metrics of a command."""
    print(json.dumps({name: _number(value) for name, value in values.items()}), flush=True)


def _now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _number(value):
    """A plain number of a tensor or array with one value; waits for its device."""
    return value.item() if hasattr(value, "item") else value


def _is_count(name):
    return name.endswith("_bytes") or name in COUNTS


def _is_figure(name, value):
    """Whether a column may have this value; text is for columns that are no numbers."""
    if isinstance(value, bool):
        return False
    if _is_count(name):
        return isinstance(value, int) and value >= 0
    if name.startswith(NUMBERS) or name.endswith(NUMBER_ENDS):
        return isinstance(value, (int, float))
    if name not in CONTAINERS:
        return isinstance(value, (int, float, str))
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return isinstance(value, (dict, list, tuple))


def _is_of_command(path):
    """Whether a `trial.yaml`, which has one key per line, is of a command."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return False
    section = None
    for text in lines:
        section = text if text[:1].strip() else section
        if section == "model:" and text == "  kind: command":
            return True
    return False


def _name_of_loss(value):
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"


class Trial:
    def __init__(self, default):
        self._default, self._asked, self._program = {**OUTSIDE_KILN, **default}, None, os.path.basename(sys.argv[0])
        self._honoured = self._total_steps = self._steps_per_epoch = self._wait = self._event = self._tables = None
        self._made, self._open, self._recent, self._row_losses = 0, [], [], []
        self._samples_seen, self._trained_seconds, self._window, self._window_seconds = 0, 0.0, None, None
        self._result, self._notes, self._finished, self._stopped_by, self._busy = {}, {}, False, None, False
        self._evaluated_at, self._loss, self._is_text = None, None, False  # Only the loss of text has a perplexity.
        self._mark = self._sent = self._since = _now()
        self._cut_said, self._cut_is_said = 0, False
        self._excluded = self._samples_since = self._waited_since = 0

    # The settings -----------------------------------------------------------------------------------------------------

    @property
    def is_of_kiln(self):
        return self._asked is not None

    def get(self, key, otherwise=None):
        """The value of a dotted key such as `train.batch_size`; a key that has none gives `otherwise`."""
        if self._asked is None:
            return self._default.get(key, otherwise)
        value = self._asked
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return otherwise
            value = value[part]
        return value

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(f"the trial has no `{key}`" + ("" if self.is_of_kiln else "; name it in `default`"))
        return value

    def honours(self, names):
        """Names every key that this program reads (`train.optimizer.*` is all below). Any other key that is not at its
        default ends the trial as `failed`, by its name."""
        self._honoured = set(names.split() if isinstance(names, str) else names)
        differs = list(self.get("differs_from_defaults", [])) if self.is_of_kiln else []
        differs += [key for key, plain in (("devices_per_trial", 1), ("origin", None)) if self.get(key, plain) != plain]
        ignored = [f"`{key}`" for key in differs if not self._is_honoured(key)]
        if ignored:
            raise Refused(f"{self._program} does not support {', '.join(ignored)}; remove the key or choose another engine")

    def only(self, key, *values):
        """The value of a key, which must be one of these."""
        if self.get(key) not in values:
            have = ", ".join(f"`{value}`" for value in values)
            raise Refused(f"`{key}` is `{self.get(key)}`; {self._program} supports {have}")
        return self.get(key)

    def _is_honoured(self, key):
        parts = key.split(".")
        return key in self._honoured or any(".".join(parts[:end]) + ".*" in self._honoured for end in range(1, len(parts)))

    # The course of a trial --------------------------------------------------------------------------------------------

    def ready(self, parameters, total_steps, steps_per_epoch=None, device_name=None, libraries=None):
        """Model and data are built. Call `honours` before."""
        if self._honoured is None:
            raise RuntimeError("call trial.honours(…) before trial.ready(…): no key may be ignored silently")
        self._total_steps, self._steps_per_epoch = int(total_steps), steps_per_epoch
        parameters, libraries = int(parameters), {name: str(version) for name, version in (libraries or {}).items()}
        self._result.update(parameters=parameters, libraries=libraries)
        if device_name:  # Without one kiln writes the processor's model or the GPU's name.
            self._result["device_name"] = device_name
        name = device_name or self["device"]
        self._say("ready", parameters=parameters, total_steps=self._total_steps, device_name=name, libraries=libraries)
        if not self.is_of_kiln:
            print(f"{parameters:,} parameters, {self._total_steps} steps on {name}", flush=True)

    def steps(self, wait=None, event=None, at_window=None):
        """Yields each step; call its `done`. `wait` waits for the device (torch.cuda.synchronize), `event` makes a timed event
        of its stream (lambda: torch.cuda.Event(enable_timing=True)), `at_window` is called when the measured window begins."""
        if self._total_steps is None:
            raise RuntimeError("call trial.ready(…) before trial.steps(…)")
        self._wait, self._event = wait, event
        self._restart_clock()
        self._sent = self._since = self._mark
        for number in range(self._made + 1, self._total_steps + 1):
            self._stop_if_asked()
            if self._window is None and self._is_warm():
                self._open_window(number, at_window)
            step = Step(self, number)
            yield step
            if self._made != number:
                raise RuntimeError(f"step.done(…) was not called in step {number}")
            if number % self["measure.log_every"] == 0 and number < self._total_steps:
                self._settle()
        self._close_window()
        self._settle()

    def evaluation_is_due(self, step):
        """Whether `train.evaluate.every` asks for an evaluation after this step; the one at the end is not meant."""
        every, per_epoch = self.get("train.evaluate.every", "end"), self._steps_per_epoch
        every = {"end": None, "epoch": per_epoch}.get(every, every)
        return bool(every) and step % every == 0 and 0 < step < self._total_steps

    def evaluate(self, compute):
        """Calls `compute`, whose result is the validation loss, outside the measured time. Returns the loss."""
        self._settle()
        with self.aside() as cut:
            loss = float(_number(compute()))
        self._result["evaluation_seconds"] = self._result.get("evaluation_seconds", 0.0) + cut.seconds
        self._take_valid_loss(loss, cut.seconds)
        return loss

    @contextlib.contextmanager
    def aside(self):
        """A block of work that is not training (a checkpoint): its time is cut out of the measured window."""
        cut = Cut()
        self._wait_for_device()
        begun = _now()
        self._say_cut("cut_started", begun)
        try:
            yield cut
        except BaseException:
            self._cut_is_said = False  # The end of a block that failed is not told.
            raise
        self._wait_for_device()
        self._say_cut("cut_ended", _now())
        ended = _now()
        cut.seconds, self._excluded = (ended - begun) / 1e9, self._excluded + ended - begun
        if self._window is not None and self._window_seconds is None:
            self._window["cuts"].append((begun, ended))
        self._restart_clock()

    def alive(self, batch, total_batches):
        """A sign of life of a long evaluation, at most a few times a second; stops where SIGTERM asks for it."""
        self._stop_if_asked()
        if _now() - self._sent >= PROGRESS_SECONDS * 1e9:
            self._sent = _now()
            self._say("evaluating", step=self._made, batch=int(batch), total_batches=int(total_batches))

    def notice(self, text):
        """Information for the reader of the run."""
        self._say("notice", text=text)
        if not self.is_of_kiln:
            print(f"notice: {text}", file=sys.stderr)

    def note(self, column, reason):
        """Why a cell of trials.csv is empty, or what its value is not."""
        self._notes[str(column)] = str(reason)

    def finish(self, **figures):
        """The training is complete. `figures` are columns of trials.csv, such as valid_loss or peak_allocated_bytes."""
        self._close_window()
        self._settle()
        figures = {name: _number(value) for name, value in figures.items() if value is not None}
        for name in [name for name, value in figures.items() if name in COUNTED or not _is_figure(name, value)]:
            # A figure that cannot be is left out: it costs no training.
            given = repr(figures.pop(name))[:60]
            why = "kiln_child counts it itself" if name in COUNTED else "it must be a whole number of 0 or more" if _is_count(name) else \
                "it must be a map or a list of texts and finite numbers" if name in CONTAINERS else "it must be a number"
            if name not in COUNTED:
                self._notes[name] = f"the program gave {given}, and {why}"
            self.notice(f"trial.finish: `{name}` is {given} and left out: {why}")
        if "valid_loss" in figures and self._evaluated_at != self._made:
            self._take_valid_loss(float(figures["valid_loss"]), None)
        for name, value in figures.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"trial.finish: `{name}` is {_name_of_loss(value)}")
        self._result.update(figures)
        self._finished = True

    # Clock and tables -------------------------------------------------------------------------------------------------

    def _is_warm(self):
        return self._made >= self["measure.warmup_steps"] and self._trained_seconds >= self["measure.warmup_seconds"]

    def _wait_for_device(self):
        if self._wait is not None:
            self._wait()

    def _restart_clock(self):
        self._mark, self._mark_event = _now(), self._moment()

    def _has_events(self):
        """Whether times are the device's; its events are read after a wait for it."""
        return self._event is not None and self._wait is not None

    def _moment(self):
        """A recorded event of the device, if the program gave a maker of them."""
        if not self._has_events():
            return None
        event = self._event()
        event.record()
        return event

    def _open_window(self, number, at_window):
        self._wait_for_device()
        if at_window is not None:
            at_window()
        self._restart_clock()
        self._window = {"started": self._mark, "left_out": self._made, "cuts": [], "times": [], "samples": 0, "tokens": None}
        self._window.update(waited=None)
        self._say("window_started", step=number, monotonic_nanoseconds=self._mark)

    def _say_cut(self, event, now):
        """kiln reads the device where a cut begins and ends, of at most a few cuts a second."""
        is_said = self._cut_is_said if event == "cut_ended" else now - self._cut_said >= PROGRESS_SECONDS * 1e9
        if self._window is not None and self._window_seconds is None and is_said:
            self._cut_said, self._cut_is_said = now, event == "cut_started"
            self._say(event, step=self._made, monotonic_nanoseconds=now)

    def _close_window(self):
        if self._window is None or self._window_seconds is not None:
            return
        self._wait_for_device()
        window, ended = self._window, _now()
        self._window_seconds = (ended - window["started"] - sum(end - begin for begin, end in window["cuts"])) / 1e9
        self._say("window_ended", step=self._made, monotonic_nanoseconds=ended)
        self._result.update(
            window_started_nanoseconds=window["started"], window_ended_nanoseconds=ended, window_seconds=self._window_seconds,
            window_cuts_nanoseconds=window["cuts"], window_samples=window["samples"],
            samples_per_second=window["samples"] / self._window_seconds,
        )
        if window["tokens"] is not None:
            self._result.update(window_tokens=window["tokens"], tokens_per_second=window["tokens"] / self._window_seconds)
        if self._steps_per_epoch:
            steps = self._made - window["left_out"]
            self._result["epoch_seconds"] = self._steps_per_epoch * self._window_seconds / steps

    def _end_step(self, step, samples, tokens, loss, learning_rate):
        if self._made >= step.number:
            raise RuntimeError(f"step.done(…) was called twice in step {step.number}")
        if step._is_short:
            raise RuntimeError(f"step.done: the iterator of batches ended in step {step.number}, which has not all its batches")
        if samples < 0 or (tokens or 0) < 0:
            raise ValueError(f"step.done: step {step.number} has {samples} samples and {tokens} tokens; they cannot be negative")
        if learning_rate is not None and not math.isfinite(learning_rate):
            learning_rate = None
        ended, moment = _now(), self._moment()
        seconds, self._mark = (ended - self._mark) / 1e9, ended
        # The host runs ahead of a device: its own clock does not time the device's steps.
        timed = seconds if self._wait is None else (self._mark_event, moment) if moment is not None else None
        self._mark_event = moment
        self._made, self._trained_seconds, self._samples_seen = step.number, self._trained_seconds + seconds, self._samples_seen + samples
        self._samples_since += samples
        self._waited_since += sum(seconds for seconds, begun, _ in step.waits if begun is None)
        self._is_text = self._is_text or tokens is not None
        loss = loss.detach() if hasattr(loss, "detach") else loss
        self._open.append((step.number, ended, loss, learning_rate, timed, step.waits, self._window is None))
        window = self._window
        if window is not None:
            window["samples"] += samples
            window["tokens"] = window["tokens"] if tokens is None else (window["tokens"] or 0) + tokens
        if ended - self._sent >= (PROGRESS_SECONDS if self.is_of_kiln else SECONDS_BETWEEN_LINES) * 1e9:
            self._tell_progress(ended)

    def _settle(self):
        """Reads the losses and times of the steps since the last call, writes their rows."""
        if not self._open:
            return
        self._wait_for_device()
        rows, self._open, diverged = self._open, [], None
        for number, ended, loss, learning_rate, timed, waits, is_warmup in rows:
            loss = None if loss is None else float(_number(loss))
            seconds = timed[0].elapsed_time(timed[1]) / 1e3 if isinstance(timed, tuple) else timed
            is_number = loss is not None and math.isfinite(loss)
            # While a device works off its queue, it does not wait with its host.
            waited = sum(wait if begun is None else min(wait, begun.elapsed_time(over) / 1e3) for wait, begun, over in waits)
            if not is_warmup:
                self._window["times"].append(seconds)
                self._window["waited"] = (self._window["waited"] or 0.0) + waited if waits else self._window["waited"]
            self._add_row(0, "steps/2", self._run_seconds(ended), self._epoch(number), number, loss if is_number else None,
                          learning_rate, seconds, waited, str(is_warmup).lower(), *[None] * 5)
            if loss is None:
                continue
            self._loss = loss if is_number else self._loss
            self._recent = (self._recent + [loss])[-self["measure.log_every"]:]
            self._row_losses.append(loss)
            if not is_number and diverged is None:
                diverged = f"the training loss of step {number} is {_name_of_loss(loss)}; try a smaller `learning_rate` or a `clip_norm`"
            ends_epoch = self._steps_per_epoch and number % self._steps_per_epoch == 0
            if ends_epoch and number < self._total_steps and not self.evaluation_is_due(number):
                self._add_epoch(number, ended)
        self._flush_tables()
        if diverged:
            raise Diverged(diverged)

    def _take_valid_loss(self, loss, seconds):
        if not math.isfinite(loss):
            raise Diverged(f"the validation loss after step {self._made} is {_name_of_loss(loss)}")
        self._result["valid_loss"], self._evaluated_at = loss, self._made
        if loss < self._result.get("lowest_valid_loss", math.inf):
            self._result["lowest_valid_loss"], self._result["lowest_valid_step"] = loss, self._made
        self._add_epoch(self._made, _now(), loss, seconds)
        self._flush_tables()
        self._say("evaluated", step=self._made, valid_loss=loss)
        if not self.is_of_kiln:
            print(f"step {self._made}: validation loss {loss:.4f}", flush=True)

    def _add_epoch(self, step, at, valid_loss=None, seconds=None):
        losses, self._row_losses = self._row_losses, []
        mean = sum(losses) / len(losses) if losses else None
        mean = mean if mean is None or math.isfinite(mean) else None
        perplexity = math.exp(valid_loss) if self._is_text and valid_loss is not None and valid_loss < 700 else None
        self._add_row(1, "epochs/3", self._run_seconds(at), self._epoch(step), step, mean, valid_loss, perplexity, seconds,
                      self._samples_seen, *[None] * 6)

    def _epoch(self, step):
        return (step - 1) // self._steps_per_epoch + 1 if self._steps_per_epoch else 1

    def _run_seconds(self, at):
        return (at - self["run_anchor_nanoseconds"]) / 1e9 if self.is_of_kiln else 0.0

    def _add_row(self, table, *cells):
        if self._tables is not None:
            csv.writer(self._tables[table], lineterminator="\n").writerow(cells)

    def _flush_tables(self):
        for table in self._tables or ():
            table.flush()

    # Messages ---------------------------------------------------------------------------------------------------------

    def _say(self, event, **fields):
        if self.is_of_kiln:
            text = json.dumps({"event": event, **fields}, allow_nan=False) + "\n"
            with self._uninterrupted():
                self._messages.write(text.encode())

    def _tell_progress(self, now):
        seconds = (now - self._since - self._excluded) / 1e9
        fields = {"loss": self._loss} if self._loss is not None else {}
        if seconds > 0 and self._samples_since:
            fields.update(samples_per_second=self._samples_since / seconds)
            if not self._has_events():  # By a device's events waits are known once they are read.
                fields.update(data_wait_fraction=min(1.0, self._waited_since / seconds))
        self._say("progress", step=self._made, total_steps=self._total_steps, **fields)
        self._sent, self._since, self._excluded, self._samples_since, self._waited_since = now, now, 0, 0, 0.0
        if not self.is_of_kiln:
            self._print_progress(fields)

    def _print_progress(self, fields):
        loss = f"  loss {self._loss:.4f}" if self._loss is not None else ""
        print(f"step {self._made}/{self._total_steps}{loss}  {fields.get('samples_per_second', 0):.1f} samples/s", flush=True)

    @contextlib.contextmanager
    def _uninterrupted(self):
        """A signal that comes meanwhile stops the trial at its end: no message or file is left half written."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def _stop_if_asked(self):
        if self._stopped_by and not self._busy:
            raise Interrupted(self._stopped_by)

    def _on_signal(self, number, _):
        self._stopped_by = signal.Signals(number).name
        self._stop_if_asked()

    # Beginning and end ------------------------------------------------------------------------------------------------

    def __enter__(self):
        path = sys.argv[-1] if len(sys.argv) > 1 and os.path.basename(sys.argv[-1]) == "trial.yaml" else None
        attempt = os.environ.get("KILN_ATTEMPT")  # Kiln sets it for whatever it starts.
        if path is None and not attempt:
            return self
        # Without the argument, the file is in the folder of the attempt or in the one above.
        places = [path] if path else [os.path.join(attempt, *above, "trial.yaml") for above in ((), ("..",))]
        if any(_is_of_command(place) for place in places):
            sys.exit(f"{self._program}: kiln_child.trial() is not for a command (`model.kind: command`); print numbers with "
                     "kiln_child.line(), which metrics read by `key`, or make the program a `model.kind: custom` or an engine of `run.engines`")
        if path is None:
            sys.exit(f"{self._program}: kiln started this program, but its last argument is not the `trial.yaml` that kiln puts behind `argv`, so "
                     "it would train with the defaults; a script between them passes it on, as `exec python3 train.py \"$@\"` does")
        # Messages have standard output for themselves: what the program and its libraries print goes to stderr.txt.
        self._messages = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        asked = os.environ.get("KILN_TRIAL_JSON") or os.path.join(os.path.dirname(path), "trial.asked.json")
        try:
            with open(asked, encoding="utf-8") as file:
                self._asked = json.load(file)
            if self._asked["kiln_trial"] != TRIAL_FILE:
                raise ValueError(f"its `kiln_trial` is {self._asked['kiln_trial']}, and this program reads {TRIAL_FILE}")
        except (OSError, ValueError, KeyError) as error:
            print(f"{self._program}: {asked}: {error}", file=sys.stderr)
            sys.exit(BAD_FILE)
        # It also gives this thread another stack for handlers, which Python uses from 3.10 on: on the thread's own one they write over
        # tensors while oneDNN, of which PyTorch makes LSTMs on the CPU, multiplies (oneDNN issue 4845).
        if not faulthandler.is_enabled():
            faulthandler.enable(2)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        with self._uninterrupted():
            self._begin()
        if self._stopped_by:
            self.__exit__(Interrupted, Interrupted(), None)
        return self

    def _begin(self):
        self._say("hello", protocol=PROTOCOL, kiln_trial=self._program, pid=os.getpid())
        self._tables = [open(os.path.join(self["folder"], name), "w", encoding="utf-8", newline="") for name in ("steps.csv", "epochs.csv")]
        self._add_row(0, *STEPS)
        self._add_row(1, *EPOCHS)

    def __exit__(self, kind, error, _):
        self._busy = True
        if not self.is_of_kiln:
            self._print_end(kind)
            return False
        try:
            outcome, reason, status = self._ending(error)
            self._write_result(outcome, reason)
        except OSError as failure:
            print(f"{self._program}: the result could not be written: {failure}", file=sys.stderr)
            sys.exit(DISK_FULL if _is_of_full_disk(failure) else FAILED)
        if error is not None and not isinstance(error, (Refused, Diverged, Interrupted)):
            traceback.print_exception(kind, error, error.__traceback__)
        self._say("finished", outcome=outcome, reason=reason)
        if outcome != "completed":
            sys.stderr.flush()
            sys.exit(status)
        return False

    def _ending(self, error):
        """Outcome, reason and exit status."""
        if error is None:
            return ("completed", None, 0) if self._finished else ("failed", "the program left its block without trial.finish(…)", FAILED)
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            return "interrupted", f"{self._stopped_by or 'SIGINT'} stopped the trial; its last step was {self._made}", INTERRUPTED
        if isinstance(error, Diverged):
            return "diverged", str(error), 0
        if isinstance(error, Refused):
            return "failed", str(error), FAILED
        if _is_of_full_disk(error):
            return "interrupted", str(error), DISK_FULL
        ended = next((link for link in _chain(error) if isinstance(link, BatchesEnded)), None)
        if ended is not None:
            return "failed", _first_line(ended), FAILED
        lack = next((link for link in _chain(error) if _is_out_of_memory(link)), None)
        if lack is not None:
            when = "while the model was built, before its first step" if self._total_steps is None else f"at step {self._made + 1}"
            return "oom", f"ran out of memory {when} ({_first_line(lack)})", OUT_OF_MEMORY
        if self._stopped_by:
            # The signal may have ended a process of the program's own, such as a loader's worker.
            return "interrupted", f"{self._stopped_by} stopped the trial at step {self._made}: {_first_line(error)}", INTERRUPTED
        return "failed", _first_line(error), FAILED

    def _write_result(self, outcome, reason):
        if self._window is None:
            text = f"only {self._made} steps in {self._trained_seconds:.1f} s, and the warm-up takes {self['measure.warmup_steps']} steps"
            self._notes.setdefault("window_seconds", f"{text} and {self['measure.warmup_seconds']} s; train longer, or lower both")
        result = {"kiln_trial_result": TRIAL_RESULT, "trial": self["trial"], "attempt": self["attempt"], "outcome": outcome}
        left_out = self._made if self._window is None else self._window["left_out"]
        result.update(reason=reason, steps=self._made, left_out_steps=left_out, **self._result)
        if self._recent and all(math.isfinite(loss) for loss in self._recent):
            result["train_loss"] = sum(self._recent) / len(self._recent)
        times = sorted(self._window["times"]) if self._window and None not in self._window["times"] else []
        if times:
            result["median_step_seconds"] = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
        elif self._window and self._window["times"]:
            self._notes.setdefault("median_step_seconds", "the program gave no timed events of its device; see samples_per_second")
        if self._window and self._window["waited"] is not None and self._window_seconds:
            result["data_wait_fraction"] = self._window["waited"] / self._window_seconds
        result["notes"] = self._notes
        path = os.path.join(self["folder"], "trial.json")
        for table in self._tables:
            table.flush()
            os.fsync(table.fileno())
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(result, file, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".new", path)

    def _print_end(self, kind):
        if kind is None and self._finished:
            rate = self._result.get("samples_per_second")
            loss = f", training loss {sum(self._recent) / len(self._recent):.4f}" if self._recent else ""
            speed = f", {rate:.1f} samples/s after the warm-up" if rate else ""
            print(f"{self._made} steps{loss}{speed}", flush=True)


class Cut:
    seconds = 0.0


class Step:
    """One optimizer update."""

    def __init__(self, of, number):
        self._of, self.number, self._is_short = of, number, False
        self.waits = []  # Of each: seconds of the host, and events of the device before and after, if the program makes any.

    def next(self, batches):
        """The next of an iterator of batches; the time until it is there counts as data wait."""
        event, begun = self._of._moment(), _now()
        try:
            batch = next(batches)
        except StopIteration:
            total, self._is_short = self._of._total_steps, True
            raise BatchesEnded(f"the iterator of batches ended in step {self.number} of {total}; begin it again for each epoch") from None
        self._is_short = False
        self.waits.append(((_now() - begun) / 1e9, event, event and self._of._moment()))
        return batch

    def done(self, samples, loss=None, tokens=None, learning_rate=None):
        """The update is made. A loss that is a tensor stays on its device until the losses are read together."""
        self._of._end_step(self, int(samples), None if tokens is None else int(tokens), loss, learning_rate)


def _chain(error):
    """An exception and those that led to it."""
    links = []
    while error is not None and not any(error is link for link in links):
        links.append(error)
        error = error.__cause__ or error.__context__
    return links


def _first_line(error):
    """`ValueError: the first line of its text`."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:2000]}" if lines[0] else type(error).__name__


def _is_of_full_disk(error):
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


# Phrases for a lack of memory by the class of the error; each class stands for other faults too.
SAID_BY_ALLOCATORS = ("out of memory", "can't allocate memory", "oom when allocating tensor")
LACK_OF_MEMORY = {
    "RuntimeError": SAID_BY_ALLOCATORS,
    "ResourceExhaustedError": SAID_BY_ALLOCATORS + ("failed to allocate memory", "unable to allocate output tensor"),
    "InternalError": ("dst tensor is not initialized",),
}


def _is_out_of_memory(error):
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    told = {name for name, phrases in LACK_OF_MEMORY.items() if any(words in text for words in phrases)}
    return bool(names & {"MemoryError", "OutOfMemoryError"} or names & told)
