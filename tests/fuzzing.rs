//! Makes inputs out of others and tries them: the machine behind `fuzz`, for every package.

use std::{
    fs,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};

/// Processor time that one input may take; most take milliseconds. Other programs of a busy machine
/// do not add to it, so it is no limit of the clock.
const MOST_PROCESSOR_TIME: Duration = Duration::from_secs(10);
/// Inputs that are made whatever time is left: a machine that is slow for a moment tries some all
/// the same.
const FEWEST_INPUTS: u64 = 100;
/// Larger inputs only take longer.
pub(crate) const MOST_BYTES: usize = 20_000;

/// Makes inputs out of others.
struct Spoiler {
    random: Rng,
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static str],
}

impl Spoiler {
    fn next(&mut self) -> Vec<u8> {
        let mut bytes = self.seed().clone();
        for _ in 0..=self.random.usize(..4) {
            self.spoil(&mut bytes);
        }
        bytes.truncate(MOST_BYTES);
        bytes
    }

    fn seed(&mut self) -> &Vec<u8> {
        let place = self.random.usize(..self.seeds.len());
        &self.seeds[place]
    }

    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random.usize(..=bytes.len());
        let to = at + self.random.usize(..=(bytes.len() - at).min(200));
        match self.random.u8(..10) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => {
                let again = bytes[at..to].to_vec();
                bytes.splice(at..at, again);
            }
            3 if at < bytes.len() => bytes[at] = self.random.u8(..),
            4 => {
                let other = self.seed().clone();
                let from = self.random.usize(..=other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            5 => self.change_number(bytes, at),
            6 => self.move_line(bytes),
            _ => {
                let word = self.words[self.random.usize(..self.words.len())]
                    .as_bytes()
                    .to_vec();
                let end = if self.random.bool() {
                    at
                } else {
                    to.min(at + word.len())
                };
                bytes.splice(at..end, word);
            }
        }
    }

    /// The next number behind a place becomes another.
    fn change_number(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let Some(from) = bytes[at..]
            .iter()
            .position(u8::is_ascii_digit)
            .map(|ahead| at + ahead)
        else {
            return;
        };
        let to = bytes[from..]
            .iter()
            .position(|byte| !byte.is_ascii_digit())
            .map_or(bytes.len(), |ahead| from + ahead);
        const NUMBERS: [&str; 9] = [
            "0",
            "1",
            "-1",
            "2",
            "65536",
            "1048577",
            "18446744073709551615",
            "0.5",
            "1e9",
        ];
        bytes.splice(
            from..to,
            NUMBERS[self.random.usize(..NUMBERS.len())].bytes(),
        );
    }

    fn move_line(&mut self, bytes: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        if lines.is_empty() {
            return;
        }
        let line = lines.remove(self.random.usize(..lines.len()));
        lines.insert(self.random.usize(..=lines.len()), line);
        *bytes = lines.concat();
    }
}

/// Processor time of this thread so far.
pub(crate) fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Memory of this process, which must not grow with the number of inputs.
fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let resident: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * rustix::param::page_size() as u64
}

/// One of two values, by the form of the suite.
fn by_form<T>(short: T, long: T) -> T {
    let is_long = std::env::var_os("KILN_TESTS").is_some_and(|form| form == "long");
    if is_long { long } else { short }
}

/// Tries the kept inputs and then new ones until the time is over; one that breaks something is
/// kept and named.
pub(crate) fn fire(
    name: &str,
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static str],
    try_one: impl Fn(&[u8]),
) {
    let known = fs::read_dir(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fuzz")
            .join(name),
    )
    .into_iter()
    .flatten()
    .flatten();
    let known: Vec<Vec<u8>> = known.map(|entry| fs::read(entry.path()).unwrap()).collect();
    let variable = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().unwrap())
    };
    let seed = variable("KILN_FUZZ_SEED").unwrap_or(1);
    let inputs = variable("KILN_FUZZ_INPUTS");
    let seconds = variable("KILN_FUZZ_SECONDS").unwrap_or(by_form(2, 20));
    let is_over = |tried: u64, began: Instant| match inputs {
        Some(inputs) => tried >= inputs,
        None => tried >= FEWEST_INPUTS && began.elapsed().as_secs() >= seconds,
    };
    let mut spoiler = Spoiler {
        random: Rng::with_seed(seed),
        seeds: [seeds, known.clone()].concat(),
        words,
    };
    assert!(spoiler.seeds.len() > 5, "nothing to begin with");
    let began = Instant::now();
    let (mut tried, mut kept) = (0_u64, known.into_iter());
    while let Some(bytes) = kept
        .next()
        .or_else(|| (!is_over(tried, began)).then(|| spoiler.next()))
    {
        let before = processor_time();
        let survived = catch_unwind(AssertUnwindSafe(|| try_one(&bytes))).is_ok();
        let took = processor_time() - before;
        if !survived || took > MOST_PROCESSOR_TIME {
            let place = std::env::temp_dir().join(format!("kiln-fuzz-{name}-{seed}-{tried}"));
            fs::write(&place, &bytes).unwrap();
            let what = if survived {
                format!("took {took:?} of processor time")
            } else {
                "broke a promise".to_owned()
            };
            panic!(
                "input {tried} of seed {seed} {what}; it is kept in {}: repair the reader, and put \
                 the input into tests/fuzz/{name}/",
                place.display()
            );
        }
        tried += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    let _ = writeln!(
        std::io::stderr(),
        "{name}: {tried} inputs in {seconds:.1} s ({:.0} a second), seed {seed}, {} MiB in memory",
        tried as f64 / seconds,
        resident_bytes() >> 20
    );
}
