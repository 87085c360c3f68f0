use super::{super::near_miss::MANY_LINES, *};

fn command(yaml: &str) -> Command {
    serde_yaml::from_str(&format!("argv: [x]\n{yaml}")).unwrap()
}

/// The metrics after these lines of output, a second apart, and what they come to at the end.
fn after(yaml: &str, lines: &[&str]) -> (Metrics, Numbers, Option<MetricFault>) {
    let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
    for (place, line) in lines.iter().enumerate() {
        metrics.line(line, Stream::Stdout, 10 + place as u64 * 1_000_000_000);
    }
    let (numbers, fault) = metrics.numbers(&Measurements {
        began: 0,
        ended: 9_000_000_000,
        cpu_seconds: 0.5,
        peak_memory_bytes: None,
    });
    (metrics, numbers, fault)
}

fn read(yaml: &str, lines: &[&str]) -> (Numbers, Option<MetricFault>) {
    let (_, numbers, fault) = after(yaml, lines);
    (numbers, fault)
}

#[test]
fn an_optional_metric_that_ends_as_nan_is_empty_with_a_note_and_one_that_recovers_is_not() {
    let of = |lines: &[&str], more: &str| {
        let yaml = format!("metrics: {{acc: {{line: 'acc (.+)', optional: true{more}}}}}");
        let (metrics, numbers, fault) = after(&yaml, lines);
        assert!(fault.is_none(), "{fault:?}");
        let value = numbers.first().map(|(_, value)| *value);
        (value, metrics.notes().remove("acc"))
    };
    assert_eq!(of(&["acc nan", "acc 0.6"], ""), (Some(0.6), None));
    assert_eq!(
        of(&["acc nan", "acc 0.6"], ", take: mean, skip: 1"),
        (Some(0.6), None)
    );
    let note = || Some("NaN is not a finite number".to_owned());
    assert_eq!(of(&["acc 0.6", "acc nan"], ""), (None, note()));
    assert_eq!(of(&["acc 0.6", "acc nan"], ", take: mean"), (None, note()));
}

#[test]
fn each_way_to_take_one_number_of_several() {
    let lines = ["speed 9", "speed 1", "speed 4", "noise", "speed 2"];
    for (take, expected) in [
        ("last", 2.0),
        ("first", 1.0),
        ("mean", 7.0 / 3.0),
        ("median", 2.0),
        ("min", 1.0),
        ("max", 4.0),
    ] {
        let yaml = format!(
            "metrics: {{speed: {{line: 'speed ([0-9]+)', take: {take}, skip: 1, times: 1}}}}"
        );
        assert_eq!(
            read(&yaml, &lines),
            (vec![("speed".into(), expected)], None)
        );
    }
}

#[test]
fn json_lines_are_read_by_keys_and_converted() {
    let yaml = "metrics: {speed: {key: a.b, times: 0.001}, other: {key: c, optional: true}}";
    let lines = [
        "{\"a\": {\"b\": 5000}}",
        "not json",
        "{\"a\": 1}",
        "{\"a\": {\"b\": null}}",
    ];
    assert_eq!(read(yaml, &lines), (vec![("speed".into(), 5.0)], None));
}

#[test]
fn a_metric_that_never_came_is_told_with_what_was_looked_for() {
    let words = |yaml: &str, lines: &[&str]| match read(yaml, lines).1 {
        Some(MetricFault::Missing(why)) => why,
        other => panic!("{other:?}"),
    };
    let line = "metrics: {gflops: {line: 'GFLOP/s: ([0-9.]+)'}}";
    assert_eq!(
        words(line, &["a", "b"]),
        "`gflops` never came: 'GFLOP/s: ([0-9.]+)' matched none of 2 lines"
    );
    let skip = "metrics: {gflops: {line: '([0-9]+)', skip: 3}}";
    assert!(words(skip, &["1", "2"]).contains("came 2 times"));
    let text = "metrics: {gflops: {line: 'v (.*)'}}";
    assert_eq!(
        words(text, &["v fast"]),
        "`gflops` is 'fast', which is not a number"
    );
    let count = "metrics: {steps: {line: '(.*)'}}";
    for not_a_count in ["1.5", "-5", "1e30"] {
        let said = words(count, &[not_a_count]);
        assert!(said.contains("must be an integer from 0 to 2^53"), "{said}");
    }
    let optional = "metrics: {steps: {line: 'made (.*)', optional: true}, step: {line: 'at (.*)'}}";
    for step in ["at 2.5", "at nan", "at last"] {
        let (metrics, numbers, fault) = after(optional, &["made 1.5", step]);
        assert_eq!((numbers, fault), (vec![], None), "{step}");
        let note = "1.5; it must be an integer from 0 to 2^53";
        assert_eq!(metrics.notes()["steps"], note);
    }
    let window = "window: {from: '^go'}";
    assert!(words(window, &["no"]).contains("'^go' matched none of 1 lines"));
}

#[test]
fn the_reason_shows_the_lines_that_a_pattern_may_have_been_meant_for() {
    let yaml = "metrics: {loss: {line: 'los: (.*)'}, seen: {line: 'step (.)'}, \
                other: {line: 'x(.)', on: stderr, optional: true}}";
    let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
    let output = "step 1\nloss: 2.5\nloss: 2.25\nbye\n";
    for line in output.lines() {
        metrics.line(line, Stream::Stdout, 0);
    }
    metrics.find_near_misses("trials/t1/2", output, "");
    let (_, fault) = metrics.numbers(&Measurements {
        began: 0,
        ended: 1,
        cpu_seconds: 0.5,
        peak_memory_bytes: None,
    });
    let why = "`loss` never came: 'los: (.*)' matched none of 4 lines; the nearest in \
               trials/t1/2/stdout.txt: 'loss: 2.5', 'loss: 2.25'";
    assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
}

#[test]
fn a_metric_that_many_lines_name_and_none_matches_is_told_once_while_the_program_runs() {
    let yaml = "metrics: {loss: {line: 'los: (.*)'}, seen: {line: 'seen (\\S+)'}, \
                rate: {key: rate}, most: {line: 'max (.*)', optional: true}, \
                step: {line: 'at step (.*)'}, final: {line: 'final (.*)'}}";
    let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
    let line = "loss: 2.5 seen 1 Rate 3 most 1 step 5";
    for _ in 1..MANY_LINES {
        metrics.line(line, Stream::Stdout, 0);
        metrics.line(line, Stream::Stderr, 0);
    }
    assert!(metrics.notices().is_empty(), "not yet");
    metrics.line(line, Stream::Stdout, 0);
    assert_eq!(
        metrics.notices(),
        [
            "metric `loss`: 10 lines contain this name, and none matches 'los: (.*)'; the last \
             of them: 'loss: 2.5 seen 1 Rate 3 most 1 step 5'; without it the trial fails, if it \
             does not come later",
            "metric `rate`: 10 lines contain this name, and none is a JSON object with `rate`; \
             the last of them: 'loss: 2.5 seen 1 Rate 3 most 1 step 5'; without it the trial \
             fails, if it does not come later",
        ]
    );
    metrics.line(line, Stream::Stdout, 0);
    assert!(metrics.notices().is_empty(), "once");
}

#[test]
fn a_text_that_is_no_number_is_left_out_where_that_is_asked_for() {
    let speed = |keys: &str, lines: &[&str]| {
        let yaml = format!("metrics: {{speed: {{line: 'v (.*)'{keys}}}}}");
        let (metrics, numbers, fault) = after(&yaml, lines);
        let value = numbers.first().map(|(_, value)| *value);
        (value, fault.is_some(), metrics.notes().remove("speed"))
    };
    assert_eq!(speed("", &["v N/A", "v 2"]), (None, true, None));
    assert_eq!(
        speed(", skip: 1", &["v N/A", "v 2"]),
        (Some(2.0), false, None)
    );
    assert_eq!(speed(", skip: 1", &["v 2", "v N/A"]), (None, true, None));
    let why = Some("'N/A' is not a number".to_owned());
    assert_eq!(speed(", optional: true", &["v N/A"]), (None, false, why));
}

#[test]
fn a_text_that_is_not_the_number_is_told_once_while_the_program_runs() {
    let yaml = "metrics: {loss: {line: 'loss ([0-9.]+)'}, other: {line: 'x (.*)', optional: true}}";
    let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
    metrics.line("loss 0.5", Stream::Stdout, 0);
    metrics.line("x none", Stream::Stdout, 0);
    assert!(metrics.notices().is_empty());
    metrics.line("loss 2e-07", Stream::Stdout, 0);
    let notices = metrics.notices();
    let words = "ends inside '2e-07'";
    assert!(
        notices.len() == 1 && notices[0].contains(words),
        "{notices:?}"
    );
    assert!(
        notices[0].ends_with("; the trial fails at its end for it"),
        "{notices:?}"
    );
    metrics.line("loss 3e-07", Stream::Stdout, 0);
    assert!(metrics.notices().is_empty());
}

#[test]
fn a_number_that_the_group_cuts_off_is_a_fault_and_not_another_number() {
    let of = |keys: &str, lines: &[&str]| {
        let yaml = format!("metrics: {{speed: {{line: 'v ([0-9.]+)'{keys}}}}}");
        let (metrics, numbers, fault) = after(&yaml, lines);
        let value = numbers.first().map(|(_, value)| *value);
        (value, fault, metrics.notes().remove("speed"))
    };
    let why = "`speed` is cut off: the group of 'v ([0-9.]+)' ends inside '2.06e-07'; use \
               `([^\\s,\\]]+)`, or put the text that follows the number into the pattern";
    let fault = Some(MetricFault::Missing(why.to_owned()));
    assert_eq!(of("", &["v 1.5", "v 2.06e-07", "v 3"]), (None, fault, None));
    assert_eq!(
        of(", skip: 1", &["v 2.06e-07", "v 3"]),
        (Some(3.0), None, None)
    );
    let note = Some("the group of its pattern ends inside '1,234'".to_owned());
    assert_eq!(of(", optional: true", &["v 1,234"]), (None, None, note));
}

#[test]
fn a_loss_of_digits_that_becomes_nan_diverged() {
    let yaml = "metrics: {train_loss: {line: 'loss: ([0-9.]+)'}}";
    let (_, fault) = read(yaml, &["loss: 2.5", "loss: nan"]);
    let why = "`train_loss` is NaN".to_owned();
    assert_eq!(fault, Some(MetricFault::Diverged(why)));
}

#[test]
fn nan_in_place_of_digits_counts_as_the_last_number_or_if_there_is_no_other() {
    let of = |take: &str, lines: &[&str]| {
        let yaml = format!("metrics: {{norm: {{line: 'norm ([0-9.]+)', take: {take}}}}}");
        let (numbers, fault) = read(&yaml, lines);
        (numbers.first().map(|(_, value)| *value), fault.is_some())
    };
    let lines = ["norm inf, skipping step", "norm 3.0", "norm 1.0"];
    for (take, expected) in [
        ("mean", 2.0),
        ("median", 2.0),
        ("max", 3.0),
        ("min", 1.0),
        ("first", 3.0),
        ("last", 1.0),
    ] {
        assert_eq!(of(take, &lines), (Some(expected), false), "{take}");
    }
    assert_eq!(of("last", &["norm 3.0", "norm inf"]), (None, true));
    assert_eq!(of("mean", &["norm inf"]), (None, true));
    let (_, fault) = read(
        "metrics: {train_loss: {line: 'loss ([0-9.]+)', take: min}}",
        &["loss nan"],
    );
    let why = "`train_loss` is NaN".to_owned();
    assert_eq!(fault, Some(MetricFault::Diverged(why)));
}

#[test]
fn a_comma_or_bracket_behind_the_text_of_a_group_is_no_part_of_the_number() {
    let yaml = "metrics: {speed: {line: 'v (\\S+)'}}";
    for line in ["v 1.5, w 2;", "[v 1.5]", "(v 1.5),", "{v 1.5}"] {
        let numbers = read(yaml, &[line]).0;
        assert_eq!(numbers, [("speed".into(), 1.5)], "{line}");
    }
}

#[test]
fn a_dictionary_of_python_is_told_from_json_with_the_pattern_that_reads_it() {
    let lines = ["{'loss': 1.25, 'epoch': 0.5}", "{'loss': '1.5'}"];
    let why = "`train_loss` never came: none of 2 lines is a JSON object with `loss`; Python's \
               `{'loss': …}` is not JSON: use `line: \"'loss': '?([^,'}]+)\"`";
    let (_, fault) = read("metrics: {train_loss: {key: loss}}", &lines);
    assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
    let yaml = "metrics: {train_loss: {line: \"'loss': '?([^,'}]+)\"}}";
    assert_eq!(read(yaml, &lines), (vec![("train_loss".into(), 1.5)], None));
    let (_, fault) = read("metrics: {speed: {key: speed}}", &lines);
    let why = "`speed` never came: none of 2 lines is a JSON object with `speed`";
    assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
}

#[test]
fn a_metric_that_the_other_output_has_is_said_to_be_there() {
    let of = |keys: &str, stream: Stream| {
        let yaml = format!("metrics: {{speed: {{{keys}}}}}");
        let mut metrics = Metrics::new(&command(&yaml), &Placeholders::default()).unwrap();
        metrics.line("v 1.5", stream, 0);
        metrics.line("{\"v\": 1.5}", stream, 0);
        let measured = Measurements {
            began: 0,
            ended: 1,
            cpu_seconds: 0.5,
            peak_memory_bytes: None,
        };
        match metrics.numbers(&measured).1 {
            Some(MetricFault::Missing(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        of("line: 'v (.*)'", Stream::Stderr),
        "`speed` never came: 'v (.*)' matched none of 0 lines; lines of stderr have it: add \
         `on: stderr`"
    );
    let of_key = of("key: v", Stream::Stderr);
    assert!(
        of_key.ends_with("`v`; lines of stderr have it: add `on: stderr`"),
        "{of_key}"
    );
    let of_stderr = of("line: 'v (.*)', on: stderr", Stream::Stdout);
    assert!(
        of_stderr.ends_with("; lines of stdout have it: remove `on: stderr`"),
        "{of_stderr}"
    );
    let of_none = of("line: 'w (.*)'", Stream::Stderr);
    assert!(of_none.ends_with("none of 0 lines"), "{of_none}");
}

#[test]
fn a_percentage_is_no_share() {
    let yaml = |keys: &str| format!("metrics: {{valid_top1: {{line: '(.*)'{keys}}}}}");
    let (_, fault) = read(&yaml(""), &["87.5"]);
    let why = "`valid_top1` is 87.5; it is a share, from 0 to 1 (`times: 0.01` converts percent)";
    assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
    assert_eq!(read(&yaml(", times: 0.01"), &["87.5"]).0[0].1, 0.875);
    let rate = read("metrics: {samples_per_second: {line: '(.*)'}}", &["-3"]).1;
    let why = "`samples_per_second` is -3; it cannot be negative";
    assert_eq!(rate, Some(MetricFault::Missing(why.to_owned())));
}

#[test]
fn a_loss_that_is_not_a_number_diverged_and_another_metric_failed() {
    let of = |name: &str, take: &str| {
        let yaml = format!("metrics: {{{name}: {{key: v, take: {take}}}}}");
        read(&yaml, &["{\"v\": 1}", "{\"v\": NaN}", "{\"v\": 2}"]).1
    };
    assert!(matches!(
        of("train_loss", "max"),
        Some(MetricFault::Diverged(_))
    ));
    assert!(matches!(
        of("train_loss", "median"),
        Some(MetricFault::Diverged(_))
    ));
    assert!(matches!(
        of("eval_loss", "max"),
        Some(MetricFault::Diverged(_))
    ));
    assert!(matches!(of("speed", "mean"), Some(MetricFault::Missing(_))));
    assert_eq!(of("train_loss", "last"), None);
}

#[test]
fn an_optional_loss_of_the_program_alone_may_be_nan() {
    let of = |name: &str, keys: &str| {
        let yaml = format!("metrics: {{{name}: {{line: 'loss (.+)'{keys}}}}}");
        let (metrics, numbers, fault) = after(&yaml, &["loss nan"]);
        assert!(numbers.is_empty(), "{numbers:?}");
        (fault, metrics.notes().remove(name))
    };
    let note = Some("NaN is not a finite number".to_owned());
    assert_eq!(of("packet_loss", ", optional: true"), (None, note));
    for (name, keys) in [("packet_loss", ""), ("valid_loss", ", optional: true")] {
        let (fault, _) = of(name, keys);
        assert!(matches!(fault, Some(MetricFault::Diverged(_))), "{name}");
    }
}

#[test]
fn without_metrics_the_relay_measures_over_the_window() {
    let (numbers, fault) = read(
        "window: {from: '^go', to: '^end'}",
        &["x", "go", "y", "end"],
    );
    assert_eq!(fault, None);
    assert_eq!(
        numbers,
        [("wall_seconds".into(), 2.0), ("cpu_seconds".into(), 0.5)]
    );
}

#[test]
fn a_window_that_never_came_fails_only_the_metric_of_its_length() {
    let of = |more: &str| {
        let yaml = format!(
            "metrics: {{speed: {{line: 'v (.*)'}}, wall: {{measured: wall_seconds{more}}}}}\n\
             window: {{to: '^end'}}"
        );
        read(&yaml, &["v 2"])
    };
    let speed = vec![("speed".to_owned(), 2.0)];
    assert_eq!(of(", optional: true"), (speed.clone(), None));
    let why = "`wall` is the length of the window, and `window.to` never came: '^end' matched none \
               of 1 lines";
    assert_eq!(of(""), (speed, Some(MetricFault::Missing(why.to_owned()))));
}

#[test]
fn a_needed_file_that_cannot_be_looked_at_is_told_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let [itself, absent] = ["loop.csv", "absent.csv"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("loop.csv", &itself).unwrap();
    let unknown = |path: &Path, more: &str| {
        let place = path.display();
        let yaml = format!("metrics: {{x: {{csv: '{place}', column: x{more}}}}}");
        let mut metrics = Metrics::new(&command(&yaml), &Placeholders::default()).unwrap();
        let told = metrics.unknown_file();
        metrics.read_files();
        (told, metrics.notes().remove("x"))
    };
    let (told, note) = unknown(&itself, "");
    assert!(told.is_some_and(|why| why.contains("loop.csv")));
    assert_eq!(note, None);
    let (told, note) = unknown(&itself, ", optional: true");
    assert_eq!(told, None);
    assert!(note.is_some_and(|why| why.contains("could not be looked at")));
    assert_eq!(unknown(&absent, ", optional: true"), (None, None));
}

#[test]
fn the_reason_names_a_file_of_the_attempt_as_the_experiment_does() {
    let attempt = tempfile::tempdir().unwrap();
    let placeholders = Placeholders {
        folder: Some(attempt.path().to_string_lossy().into_owned()),
        ..Placeholders::default()
    };
    let why = |place: &str| {
        let yaml = format!("metrics: {{acc: {{json: '{place}', at: acc}}}}");
        let mut metrics = Metrics::new(&command(&yaml), &placeholders).unwrap();
        metrics.read_files();
        let (_, fault) = metrics.numbers(&Measurements {
            began: 0,
            ended: 1,
            cpu_seconds: 0.0,
            peak_memory_bytes: None,
        });
        fault
    };
    let missing = |why: &str| Some(MetricFault::Missing(why.to_owned()));
    assert_eq!(
        why("{folder}/out/r.json"),
        missing("`acc` never came: {folder}/out/r.json does not exist")
    );
    assert_eq!(
        why("/nowhere/r.json"),
        missing("`acc` never came: /nowhere/r.json does not exist")
    );
}

/// The kernel's file of a process's memory begins where nothing is mapped: reading there fails with EIO.
#[test]
fn a_file_that_fails_while_it_is_read_gives_no_number() {
    let measured = Measurements {
        began: 0,
        ended: 1,
        cpu_seconds: 0.0,
        peak_memory_bytes: None,
    };
    let yaml = "metrics: {x: {csv: /proc/self/mem, column: x}}";
    let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
    metrics = metrics.of_ended(None);
    metrics.read_files();
    assert!(metrics.unreadable_file().is_some());
    let (numbers, fault) = metrics.numbers(&measured);
    assert!(numbers.is_empty(), "{numbers:?}");
    assert!(matches!(fault, Some(MetricFault::Missing(why)) if why.contains("cannot be read")));
}
