//! Reads the metrics of an ended attempt again, from the output and files that it kept. The facts of
//! the program's end are in `program.json`.

use std::{fmt, path::Path};

use kiln_core::{
    kinds::command::{Command, Placeholders, Stream},
    limits::RESULT_BYTES,
    plan::TrialId,
    record::{
        TrialResult,
        attempt::STDERR,
        note::{LossRose, READ_AGAIN},
    },
};

use super::{
    STDOUT,
    end::{EndFacts, ProgramVerdict, decide, shown},
    files::{self, FileFault},
    kept_output::{HEAD_BYTES, KeptEnds, TAIL_BYTES},
    lines::{Lines, complete_from_beginning, complete_to_end},
    metrics::Metrics,
    program::Exit,
    program_ended::ProgramEnded,
    result::{self, Figures},
    resumed,
};

/// An ended attempt of a command.
#[derive(Clone, Copy, Debug)]
pub struct KeptAttempt<'a> {
    /// Its folder, absolute.
    pub folder: &'a Path,
    pub trial: &'a TrialId,
    pub seed: u64,
    pub is_on_gpu: bool,
}

/// Why the metrics of an attempt cannot be read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReadable {
    NoRecord,
    OtherEnd,
    Cut,
    FileElsewhere,
    /// The machine cannot read a file, so nothing is known of the attempt: the file and why.
    Failed(String),
}

impl From<FileFault> for NotReadable {
    fn from(fault: FileFault) -> Self {
        Self::Failed(fault.to_string())
    }
}

impl fmt::Display for NotReadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRecord => "without `program.json`, the record of its end",
            Self::OtherEnd => "not ended by itself with status 0",
            Self::Cut => "output not whole, of which the first MiB and the last 64 KiB are kept",
            Self::FileElsewhere => "a metric in a file outside of the attempt's folder",
            Self::Failed(why) => why,
        })
    }
}

/// The result that an ended attempt would have had with the metrics of `command`. `attempt` is its
/// number in the new run.
///
/// # Errors
/// See [`NotReadable`].
pub fn read_again(
    command: &Command,
    kept: &KeptAttempt<'_>,
    attempt: u64,
) -> Result<TrialResult, NotReadable> {
    let ended = ended_well(kept)?;
    let placeholders = placeholders(kept, ended.attempt);
    let mut metrics = metrics_of(command, kept, &ended, &placeholders)?;
    let needs_window = lacks_window(command, &ended);
    let [stdout_tail, stderr_tail] = read_outputs(&mut metrics, kept, &ended, needs_window)?;
    if metrics.may_lack_lines() {
        return Err(NotReadable::Cut);
    }
    metrics.read_files();
    metrics.unreadable_file().map_or(Ok(()), Err)?;
    let shown_attempt = format!("trials/{}/{attempt}", kept.trial);
    metrics.find_near_misses(&shown_attempt, &stdout_tail, &stderr_tail);
    let measured = ended.measured;
    let window = metrics.window(measured.began, measured.ended);
    let (numbers, fault) = metrics.numbers(&measured);
    let verdict = decide(&EndFacts {
        exit: Exit::Status(0),
        is_told: false,
        exits: &command.exits,
        fault: fault.as_ref(),
        program: &shown(&command.expand(&placeholders).argv),
        stderr_tail: &stderr_tail,
        stdout_tail: &stdout_tail,
    });
    let ProgramVerdict::Finished {
        outcome, reason, ..
    } = verdict
    else {
        return Err(NotReadable::OtherEnd);
    };
    let mut figures = Figures {
        window: window.as_ref().ok().copied(),
        missing_window: window.err(),
        numbers,
        notes: metrics.notes(),
        peak_memory_bytes: measured.peak_memory_bytes,
    };
    if let Some(note) = note_on_omitted(&metrics) {
        figures.notes.insert(READ_AGAIN.to_owned(), note);
    }
    resumed::mark(command, ended.finds_checkpoint, &mut figures);
    result::result((kept.trial, attempt), outcome, reason.as_deref(), figures)
        .and_then(TrialResult::without_impossible)
        .map_err(|_| NotReadable::NoRecord)
}

/// Looks for what forbids to read an ended attempt again, without reading its output: nothing is known
/// of the lines that a corrected pattern would match.
///
/// # Errors
/// See [`NotReadable`].
pub fn check_kept(command: &Command, kept: &KeptAttempt<'_>) -> Result<(), NotReadable> {
    let ended = ended_well(kept)?;
    let metrics = metrics_of(command, kept, &ended, &placeholders(kept, ended.attempt))?;
    let is_cut = |bytes: u64| bytes > (HEAD_BYTES + TAIL_BYTES) as u64;
    let needs = |stream| metrics.needs_all_lines_of(stream);
    let needs_stdout = needs(Stream::Stdout) || lacks_window(command, &ended);
    let lacks_stdout = needs_stdout && is_cut(ended.stdout_bytes);
    let lacks_stderr = needs(Stream::Stderr) && is_cut(ended.stderr_bytes);
    match lacks_stdout || lacks_stderr {
        true => Err(NotReadable::Cut),
        false => Ok(()),
    }
}

/// The record of a program that ended by itself with status 0.
fn ended_well(kept: &KeptAttempt<'_>) -> Result<ProgramEnded, NotReadable> {
    let ended = ProgramEnded::read(kept.folder)?.ok_or(NotReadable::NoRecord)?;
    match ended.exit_status {
        Some(0) => Ok(ended),
        _ => Err(NotReadable::OtherEnd),
    }
}

/// The metrics of an attempt that has ended, before anything is read.
///
/// # Errors
/// A file of them is not below the attempt's folder, or cannot be looked at.
fn metrics_of(
    command: &Command,
    kept: &KeptAttempt<'_>,
    ended: &ProgramEnded,
    placeholders: &Placeholders,
) -> Result<Metrics, NotReadable> {
    let metrics = Metrics::new(command, placeholders).map_err(|_| NotReadable::NoRecord)?;
    let metrics = metrics.of_ended(ended.window_nanoseconds);
    for file in metrics.files() {
        if !files::is_below(file, kept.folder)? {
            return Err(NotReadable::FileElsewhere);
        }
    }
    Ok(metrics)
}

/// Whether the command has a window, and none was measured.
fn lacks_window(command: &Command, ended: &ProgramEnded) -> bool {
    command.window.is_some() && ended.window_nanoseconds.is_none()
}

/// The placeholders of metrics, with their values in the attempt. `attempt` is the number that it
/// had when it ran.
fn placeholders(kept: &KeptAttempt<'_>, attempt: u64) -> Placeholders {
    let device = if kept.is_on_gpu { "cuda" } else { "cpu" };
    Placeholders {
        seed: Some(kept.seed),
        trial: Some(kept.trial.to_string()),
        attempt: Some(attempt),
        folder: Some(kept.folder.to_string_lossy().into_owned()),
        device: Some(device.to_owned()),
        ..Placeholders::default()
    }
}

/// Reads what is kept of standard output and of standard error; returns the end of each.
///
/// # Errors
/// Lines that are needed are not kept, or a file cannot be read.
fn read_outputs(
    metrics: &mut Metrics,
    kept: &KeptAttempt<'_>,
    ended: &ProgramEnded,
    needs_window: bool,
) -> Result<[String; 2], NotReadable> {
    let mut read = |stream: Stream, name: &str, bytes: u64| {
        // The note on a window that is missing counts all lines of standard output.
        let needs_all = stream == Stream::Stdout && needs_window;
        let file = files::kept(&kept.folder.join(name), &RESULT_BYTES)?;
        match file.as_deref().and_then(|file| KeptEnds::of(file, bytes)) {
            Some(ends) if ends.omitted == 0 || !needs_all => {
                Ok(read_output(metrics, &ends, stream))
            }
            None if !needs_all && !metrics.reads(stream) => Ok(String::new()),
            _ => Err(NotReadable::Cut),
        }
    };
    let stdout_tail = read(Stream::Stdout, STDOUT, ended.stdout_bytes)?;
    let stderr_tail = read(Stream::Stderr, STDERR, ended.stderr_bytes)?;
    Ok([stdout_tail, stderr_tail])
}

/// Reads the lines that are kept of an output; returns its end.
fn read_output(metrics: &mut Metrics, ends: &KeptEnds<'_>, stream: Stream) -> String {
    match ends.omitted {
        0 => read_lines(metrics, &[ends.head, ends.tail], stream),
        _ => {
            read_lines(metrics, &[complete_from_beginning(ends.head)], stream);
            metrics.skip_omitted_lines(stream);
            read_lines(metrics, &[complete_to_end(ends.tail)], stream);
        }
    }
    ends.end()
}

fn read_lines(metrics: &mut Metrics, pieces: &[&[u8]], stream: Stream) {
    let mut lines = Lines::default();
    // The times of lines are not kept, and not needed: the window was measured.
    let mut line = |line: &str| {
        let _ = metrics.line(line, stream, 0);
    };
    for piece in pieces {
        lines.add(piece, &mut line);
    }
    lines.finish(&mut line);
}

/// A note on the metrics that were read although lines of their output are not kept; `None` if
/// there are none.
fn note_on_omitted(metrics: &Metrics) -> Option<String> {
    let names: Vec<&str> = metrics.without_all_lines().collect();
    let rose = match names.contains(&LossRose::COLUMN) {
        true => ", and whether the loss rose is not known",
        false => "",
    };
    (!names.is_empty()).then(|| {
        format!(
            "the middle of an output is not kept, so a text there that is not a number was not seen \
             (`{}`){rose}",
            names.join("`, `")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

    use kiln_core::{plan::Outcome, record::note::MISSING_WINDOW};

    use super::{
        super::{
            kept_output::{HEAD_BYTES, KeptOutput, TAIL_BYTES},
            metrics::Measurements,
            program_ended::FORMAT,
        },
        *,
    };

    const STDOUT_TEXT: &str =
        "start\nloss 2.5\rloss 0.5\n{\"acc\": 0.25}\nbegin\nspeed 10\nspeed 12.5\nend";
    const STDERR_TEXT: &str = "warning\nWARNING acc 0.75\n";
    const METRICS: &str = "metrics: {loss: {line: 'loss (\\S+)', take: first}, \
                           acc: {key: acc}, speed: {line: 'speed (\\S+)', take: mean}, \
                           of_stderr: {line: 'acc (\\S+)', on: stderr}, \
                           rows: {csv: '{folder}/log.csv', column: x, take: max}, \
                           cpu: {measured: cpu_seconds}, wall: {measured: wall_seconds}}\n\
                           window: {from: begin, to: end}";

    fn command(yaml: &str) -> Command {
        serde_yaml::from_str(&format!("argv: [x]\n{yaml}")).unwrap()
    }

    fn ended() -> ProgramEnded {
        ProgramEnded {
            kiln_program: FORMAT,
            attempt: 1,
            exit_status: Some(0),
            measured: Measurements {
                began: 1_000_000_000,
                ended: 9_000_000_000,
                cpu_seconds: 0.5,
                peak_memory_bytes: Some(8 << 20),
            },
            window_nanoseconds: Some((4_000_000_000, 6_500_000_000)),
            finds_checkpoint: false,
            stdout_bytes: STDOUT_TEXT.len() as u64,
            stderr_bytes: STDERR_TEXT.len() as u64,
        }
    }

    /// The folder of an attempt with its output and a table.
    fn attempt(ended: &ProgramEnded) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(STDOUT, STDOUT_TEXT);
        write(STDERR, STDERR_TEXT);
        write("log.csv", "x\n1\n7\n3\n");
        ended.write(folder.path());
        folder
    }

    fn again(yaml: &str, folder: &Path) -> Result<TrialResult, NotReadable> {
        let trial = TrialId("t4f0c1a2b3d".to_owned());
        let kept = KeptAttempt {
            folder,
            trial: &trial,
            seed: 0,
            is_on_gpu: false,
        };
        read_again(&command(yaml), &kept, 1)
    }

    #[test]
    fn metrics_read_again_are_those_of_the_running_program() {
        let ended = ended();
        let folder = attempt(&ended);
        let placeholders = Placeholders {
            folder: Some(folder.path().to_string_lossy().into_owned()),
            ..Placeholders::default()
        };
        // As the relay reads them: in pieces, both outputs in turns, with the time of each line.
        let mut live = Metrics::new(&command(METRICS), &placeholders).unwrap();
        fs::write(folder.path().join("log.csv"), "x\n1\n7\n3\n\n").unwrap();
        let mut lines = [Lines::default(), Lines::default()];
        let outputs = [
            (Stream::Stdout, STDOUT_TEXT.as_bytes()),
            (Stream::Stderr, STDERR_TEXT.as_bytes()),
        ];
        let pieces = outputs.map(|(_, text)| text.chunks(7).collect::<Vec<_>>());
        for turn in 0..pieces[0].len().max(pieces[1].len()) {
            for (place, (stream, _)) in outputs.iter().enumerate() {
                let piece = pieces[place].get(turn).copied().unwrap_or_default();
                lines[place].add(piece, |line| {
                    let at = match line {
                        "begin" => 4_000_000_000,
                        _ => 5_000_000_000,
                    };
                    live.line(line, *stream, at);
                });
            }
        }
        lines[0].finish(|line| {
            live.line(line, Stream::Stdout, 6_500_000_000);
        });
        live.read_files();
        let (numbers, fault) = live.numbers(&ended.measured);
        assert_eq!(fault, None);
        let read = again(METRICS, folder.path()).unwrap();
        assert_eq!((read.outcome, &read.reason), (Outcome::Completed, &None));
        let numbers: BTreeMap<String, f64> = numbers.into_iter().collect();
        assert_eq!(read.metrics, numbers);
        assert_eq!(read.metrics["wall"], 2.5);
        assert_eq!(read.figures.window_seconds, Some(2.5));
        assert_eq!(read.notes, live.notes());
    }

    #[test]
    fn a_pattern_that_is_still_wrong_fails_as_after_a_run() {
        let folder = attempt(&ended());
        let read = again("metrics: {speed: {line: 'sped (\\S+)'}}", folder.path()).unwrap();
        assert_eq!(read.outcome, Outcome::Failed);
        let reason = read.reason.unwrap();
        let words = "x ended with status 0, and `speed` never came: 'sped (\\S+)' matched none of 8 \
                     lines; the nearest in trials/t4f0c1a2b3d/1/stdout.txt: 'speed 10', 'speed 12.5'";
        assert_eq!(reason, words);
        let diverged = "metrics: {train_loss: {line: 'loss (\\S+)', times: .inf}}";
        let read = again(diverged, folder.path()).unwrap();
        assert_eq!(read.outcome, Outcome::Diverged);
    }

    #[test]
    fn a_trial_without_its_window_completes_with_a_note() {
        let folder = attempt(&ProgramEnded {
            window_nanoseconds: None,
            ..ended()
        });
        let yaml = "metrics: {speed: {line: 'speed (\\S+)'}}\nwindow: {to: '^done'}";
        let read = again(yaml, folder.path()).unwrap();
        assert_eq!((read.outcome, &read.reason), (Outcome::Completed, &None));
        assert_eq!(read.metrics["speed"], 12.5);
        assert_eq!(read.figures.window_seconds, None);
        let note = "`window.to` never came: '^done' matched none of 8 lines";
        let notes = BTreeMap::from([(MISSING_WINDOW.to_owned(), note.to_owned())]);
        assert_eq!(read.notes, notes);
    }

    #[test]
    fn what_is_not_certain_is_not_read() {
        let lines = "metrics: {speed: {line: 'speed (\\S+)'}}";
        let file = "metrics: {rows: {csv: '{folder}/log.csv', column: x}}";
        let why = |yaml: &str, ended: &ProgramEnded| {
            let folder = attempt(ended);
            again(yaml, folder.path()).err()
        };
        let cut = ProgramEnded {
            stdout_bytes: 2 << 20,
            ..ended()
        };
        assert_eq!(why(lines, &cut), Some(NotReadable::Cut));
        assert_eq!(why(file, &cut), None, "no line is needed");
        let lacks_window = ProgramEnded {
            window_nanoseconds: None,
            ..cut.clone()
        };
        let with_window = format!("{file}\nwindow: {{from: begin}}");
        assert_eq!(why(&with_window, &lacks_window), Some(NotReadable::Cut));
        for exit_status in [None, Some(1)] {
            let other = ProgramEnded {
                exit_status,
                ..ended()
            };
            assert_eq!(why(lines, &other), Some(NotReadable::OtherEnd));
        }
        for place in [
            "log.csv",
            "{folder}/../log.csv",
            "{checkpoint_folder}/log.csv",
        ] {
            let yaml = format!("metrics: {{rows: {{csv: '{place}', column: x}}}}");
            let found = why(&yaml, &ended());
            assert_eq!(found, Some(NotReadable::FileElsewhere), "{place}");
        }
        let newer = ProgramEnded {
            kiln_program: FORMAT + 1,
            ..ended()
        };
        assert_eq!(why(lines, &newer), Some(NotReadable::NoRecord));
    }

    #[test]
    fn what_forbids_the_reading_is_known_without_the_output() {
        let check = |yaml: &str, ended: &ProgramEnded| {
            let folder = attempt(ended);
            let trial = TrialId("t4f0c1a2b3d".to_owned());
            let kept = KeptAttempt {
                folder: folder.path(),
                trial: &trial,
                seed: 0,
                is_on_gpu: false,
            };
            check_kept(&command(yaml), &kept).err()
        };
        let cut = ProgramEnded {
            stdout_bytes: 2 << 20,
            ..ended()
        };
        let lines = |more: &str| format!("metrics: {{speed: {{line: 'sped (\\S+)'{more}}}}}");
        // A corrected pattern may match at an end of the output.
        assert_eq!(check(&lines(""), &cut), None);
        assert_eq!(check(&lines(", take: first"), &cut), None);
        for needs_all in [", take: mean", ", skip: 1"] {
            assert_eq!(check(&lines(needs_all), &ended()), None);
            assert_eq!(check(&lines(needs_all), &cut), Some(NotReadable::Cut));
        }
        let on_stderr = lines(", take: mean, on: stderr");
        assert_eq!(check(&on_stderr, &cut), None);
        let lacks_window = ProgramEnded {
            window_nanoseconds: None,
            ..cut.clone()
        };
        let with_window = format!("{}\nwindow: {{from: begin}}", lines(""));
        assert_eq!(check(&with_window, &cut), None);
        assert_eq!(check(&with_window, &lacks_window), Some(NotReadable::Cut));
        let file = |place: &str| format!("metrics: {{rows: {{csv: '{place}', column: y}}}}");
        assert_eq!(check(&file("{folder}/log.csv"), &ended()), None);
        let elsewhere = check(&file("/tmp/log.csv"), &ended());
        assert_eq!(elsewhere, Some(NotReadable::FileElsewhere));
        let other = ProgramEnded {
            exit_status: Some(2),
            ..ended()
        };
        assert_eq!(check(&lines(""), &other), Some(NotReadable::OtherEnd));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_one_that_is_not_kept() {
        for name in ["program.json", STDOUT, STDERR, "log.csv"] {
            let folder = attempt(&ended());
            fs::remove_file(folder.path().join(name)).unwrap();
            symlink(name, folder.path().join(name)).unwrap();
            let found = again(METRICS, folder.path());
            let is_told = |why: &String| why.contains(name);
            let failed = matches!(&found, Err(NotReadable::Failed(why)) if is_told(why));
            assert!(failed, "{name}: {found:?}");
        }
    }

    #[test]
    fn a_file_behind_a_link_is_read_only_if_it_lies_in_the_attempt() {
        let elsewhere = tempfile::tempdir().unwrap();
        let outside = elsewhere.path().join("log.csv");
        fs::write(&outside, "x\n9\n").unwrap();
        let read = |target: &Path| {
            let folder = attempt(&ended());
            symlink(target, folder.path().join("link.csv")).unwrap();
            let yaml = "metrics: {rows: {csv: '{folder}/link.csv', column: x}}";
            again(yaml, folder.path()).map(|read| read.metrics["rows"])
        };
        assert_eq!(read(Path::new("log.csv")), Ok(3.0));
        assert_eq!(read(&outside), Err(NotReadable::FileElsewhere));
        let gone = elsewhere.path().join("gone");
        assert_eq!(read(&gone), Err(NotReadable::FileElsewhere));
    }

    /// This standard output, kept as the relay keeps it, read again.
    fn again_of(yaml: &str, stdout: &str) -> Result<TrialResult, NotReadable> {
        let folder = attempt(&ProgramEnded {
            stdout_bytes: stdout.len() as u64,
            ..ended()
        });
        let mut kept = KeptOutput::create(&folder.path().join(STDOUT));
        kept.add(stdout.as_bytes());
        kept.finish();
        again(yaml, folder.path())
    }

    fn live(yaml: &str, stdout: &str) -> BTreeMap<String, f64> {
        let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
        read_lines(&mut metrics, &[stdout.as_bytes()], Stream::Stdout);
        let (numbers, fault) = metrics.numbers(&ended().measured);
        assert_eq!(fault, None);
        numbers.into_iter().collect()
    }

    #[test]
    fn the_first_and_the_last_number_are_known_without_the_middle() {
        let yaml = "metrics: {first: {line: 'speed (\\S+)', take: first}, last: {line: 'speed \
                    (\\S+)'}, train_loss: {key: loss}}";
        let high = "{\"loss\": 3.5}\n{\"loss\": 3.6}\n".repeat(10);
        let middle = "speed 7\n".repeat(300_000);
        let text = format!("speed 2.5\n{{\"loss\": 0.5}}\n{middle}{high}speed 12.5\nend");
        let with_step = yaml.replace("}}", "}, step: {line: 'speed (\\S+)', take: max}}");
        let read = again_of(&with_step, &text).unwrap();
        let mut numbers = live(yaml, &text);
        assert_eq!(numbers.remove("train_loss"), read.figures.train_loss);
        assert_eq!((numbers["first"], numbers["last"]), (2.5, 12.5));
        assert_eq!(read.metrics, numbers);
        assert_eq!(read.outcome, Outcome::Completed);
        let note = "the middle of an output is not kept, so a text there that is not a number was \
                    not seen (`first`, `last`, `train_loss`), and whether the loss rose is not known";
        let notes = BTreeMap::from([(READ_AGAIN.to_owned(), note.to_owned())]);
        assert_eq!(read.notes, notes);
        let failed = again_of(yaml, &text.replace("end", "speed N/A")).unwrap();
        assert_eq!(failed.outcome, Outcome::Failed);
        let reason = failed.reason.unwrap();
        assert!(
            reason.contains("is 'N/A', which is not a number"),
            "{reason}"
        );
    }

    #[test]
    fn an_output_that_the_two_ends_hold_together_is_read_as_a_whole() {
        let yaml = "metrics: {speed: {line: 'speed (\\S+)', take: mean}}";
        let lines = (HEAD_BYTES + TAIL_BYTES) / 9;
        let text: String = (0..lines)
            .map(|at| format!("speed {:02}\n", at % 97))
            .collect();
        assert!(text.len() > HEAD_BYTES + TAIL_BYTES / 2);
        let read = again_of(yaml, &text).unwrap();
        assert_eq!(read.metrics, live(yaml, &text));
        assert_eq!(read.notes, BTreeMap::new());
    }

    #[test]
    fn a_number_that_may_be_in_the_middle_is_not_read() {
        let is_cut = |text: &str, more: &str| {
            let yaml = format!("metrics: {{speed: {{line: '([0-9]+)'{more}}}}}");
            again_of(&yaml, text).err() == Some(NotReadable::Cut)
        };
        let (last, first) = ("", ", take: first");
        let everywhere = "speed 7\n".repeat(300_000);
        let takes = "mean|median|min|max|last, skip: 1|first, skip: 1";
        for take in takes.split('|') {
            assert!(is_cut(&everywhere, &format!(", take: {take}")), "{take}");
        }
        assert!(!is_cut(&everywhere, last) && !is_cut(&everywhere, first));
        let filler = |bytes: usize| format!("{}\n", "x".repeat(bytes - 1));
        let none = filler(2 * HEAD_BYTES);
        let at_the_ends = [format!("speed 7\n{none}"), format!("{none}speed 7\n")];
        let are_cut = |more: &str| at_the_ends.each_ref().map(|text| is_cut(text, more));
        assert_eq!(are_cut(last), [true, false]);
        assert_eq!(are_cut(first), [false, true]);
        // The head ends with `speed 12`, or the tail begins with `345`.
        for (before, behind) in [(HEAD_BYTES - 8, HEAD_BYTES), (HEAD_BYTES, TAIL_BYTES - 4)] {
            let text = format!("{}speed 12345\n{}", filler(before), filler(behind));
            assert!(is_cut(&text, last) && is_cut(&text, first));
        }
    }
}
