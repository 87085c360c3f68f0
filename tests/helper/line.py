"""A model of two parameters through the Python helper: fits a line by gradient descent. tests/helper.rs has it as an engine."""

import kiln_child

DEFAULT = {"model.rate": 0.1, "train.steps": 200, "train.batch_size": 4, "measure.warmup_seconds": 0.0}


def batches(size):
    step = 0
    while True:
        yield [(step * size + row) % 17 / 8 - 1 for row in range(size)]
        step += 1


with kiln_child.trial(default=DEFAULT) as trial:
    trial.honours("model.* data.kind data.characters train.steps train.batch_size train.cpu_threads train.evaluate.every")
    slope, offset, rate, points = 0.0, 0.0, trial["model.rate"], batches(trial["train.batch_size"])
    error_at = lambda x: slope * x + offset - (3 * x - 1)
    trial.ready(parameters=2, total_steps=trial["train.steps"], device_name="python")
    for step in trial.steps():
        batch = step.next(points)
        errors = [error_at(x) for x in batch]
        slope -= rate * 2 * sum(error * x for error, x in zip(errors, batch)) / len(batch)
        offset -= rate * 2 * sum(errors) / len(batch)
        step.done(samples=len(batch), loss=sum(error * error for error in errors) / len(batch), learning_rate=rate)
        if trial.evaluation_is_due(step.number):
            trial.evaluate(lambda: error_at(0.5) * error_at(0.5))
    trial.finish(valid_loss=trial.evaluate(lambda: error_at(0.5) * error_at(0.5)), flops_per_sample=12)
