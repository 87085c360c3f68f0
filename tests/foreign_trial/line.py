#!/usr/bin/env python3
"""A trial in another language, by docs/child-protocol.md alone: fits a line by gradient descent. No kiln library, no YAML library."""
import csv, json, os, signal, sys, time

KNOWN = ("model.kind model.name model.reads model.seq_len model.rate data.kind data.characters"
         " train.steps train.batch_size train.cpu_threads").split()

def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

def scalars(path):
    """The scalars of trial.yaml by dotted key; enough YAML for a file of maps."""
    found, at = {}, []
    for line in open(path, encoding="utf-8"):
        key, colon, value = line.strip().partition(":")
        depth = (len(line) - len(line.lstrip())) // 2
        if colon and not line.lstrip().startswith("- "):
            at[depth:] = [key]
            found[".".join(at)] = value.strip().strip("'\"")
    return found

def unknown(path):
    """The keys of the trial that would be ignored: not at their default, and not known here."""
    asked = os.environ.get("KILN_TRIAL_JSON") or os.path.join(os.path.dirname(path), "trial.asked.json")
    with open(asked, encoding="utf-8") as file:
        return [key for key in json.load(file)["differs_from_defaults"] if key not in KNOWN]

def say(**message):
    print(json.dumps(message), flush=True)

def finish(trial, folder, outcome, reason=None, **measured):
    result = dict(kiln_trial_result=1, trial=trial["trial"], attempt=int(trial["attempt"]), outcome=outcome, reason=reason, **measured)
    with open(folder + "/trial.json.new", "w", encoding="utf-8") as file:
        json.dump(result, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(folder + "/trial.json.new", folder + "/trial.json")
    say(event="finished", outcome=outcome, reason=reason)

def main():
    trial = scalars(sys.argv[1])
    folder, steps, log_every = trial["folder"], int(trial["train.steps"]), int(trial["measure.log_every"])
    rate, batch, warmup = float(trial["model.rate"]), int(trial["train.batch_size"]), int(trial["measure.warmup_steps"])
    say(event="hello", protocol=1, kiln_trial="line.py", pid=os.getpid())
    if trial["model.name"] != "line":
        finish(trial, folder, "failed", "`model.name` is `%s`; this program has `line`" % trial["model.name"], steps=0, left_out_steps=0)
        return 2
    ignored = unknown(sys.argv[1])
    if ignored:
        finish(trial, folder, "failed", "this program does not support `%s`" % "`, `".join(ignored), steps=0, left_out_steps=0)
        return 2
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    say(event="ready", parameters=2, total_steps=steps, device_name="python")
    anchor, slope, offset, losses, begun = int(trial["run_anchor_nanoseconds"]), 0.0, 0.0, [], None
    with open(folder + "/steps.csv", "w", newline="") as file, open(folder + "/epochs.csv", "w", newline="") as epochs:
        table = csv.writer(file, lineterminator="\n")
        table.writerow("kiln_table run_seconds epoch step loss learning_rate step_seconds data_wait_seconds is_warmup".split())
        csv.writer(epochs, lineterminator="\n").writerow(
            "kiln_table run_seconds epoch step train_loss valid_loss valid_perplexity evaluation_seconds samples valid_top1 valid_top5"
            " valid_mean_absolute_error valid_hit_rate valid_bleu4 valid_chrf".split())
        for step in range(1, steps + 1):
            if step == warmup + 1:
                begun = now()
                say(event="window_started", step=warmup, monotonic_nanoseconds=begun)
            before = now()
            points = [((step * batch + k) % 17 / 8 - 1) for k in range(batch)]
            errors = [slope * x + offset - (3 * x - 1) for x in points]
            loss = sum(error * error for error in errors) / batch
            slope -= rate * 2 * sum(error * x for error, x in zip(errors, points)) / batch
            offset -= rate * 2 * sum(errors) / batch
            losses.append(loss)
            after = now()
            table.writerow(["steps/1", (after - anchor) / 1e9, 1, step, loss, rate, (after - before) / 1e9, 0.0, str(step <= warmup).lower()])
            if step % log_every == 0:
                say(event="progress", step=step, total_steps=steps, loss=loss)
            if stopped:
                finish(trial, folder, "interrupted", "a signal asked it to stop", steps=step, left_out_steps=warmup)
                return 130
    ended = now()
    say(event="window_ended", step=steps, monotonic_nanoseconds=ended)
    seconds = (ended - begun) / 1e9
    finish(trial, folder, "completed", steps=steps, left_out_steps=warmup, parameters=2, window_seconds=seconds, window_started_nanoseconds=begun,
           window_ended_nanoseconds=ended, samples_per_second=(steps - warmup) * batch / seconds, train_loss=sum(losses[-log_every:]) / log_every,
           device_name="python", cpu_threads=1, flops_per_sample=12)
    return 0

sys.exit(main())
