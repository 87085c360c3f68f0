//! The order of the runs of one experiment, in a working tree and in a commit.

use std::cmp::Reverse;

use super::RunFolder;

/// Runs with the numbers in their `run.json`, oldest first: by number, then by name. One whose number
/// cannot be read has its place by the time in its name. `folder` is that of a run.
pub fn in_order<T>(runs: Vec<(Option<u64>, T)>, folder: impl Fn(&T) -> &RunFolder) -> Vec<T> {
    let (mut numbered, mut unread) = (Vec::new(), Vec::new());
    for (number, run) in runs {
        match number {
            Some(number) => numbered.push((number, run)),
            None => unread.push(run),
        }
    }
    // A copy of a run has the same number and a longer name, or a name that its user chose.
    numbered.sort_by_cached_key(|(number, run)| {
        let (began, ..) = age_by_name(folder(run));
        let name = folder(run).name();
        // Old runs have no number: of two that began in one second the later has `-2` behind its name.
        let length = if *number > 0 { name.len() } else { 0 };
        (*number, began, Reverse(length), name)
    });
    let mut ordered: Vec<T> = numbered.into_iter().map(|(_, run)| run).collect();
    unread.sort_by_cached_key(|run| age_by_name(folder(run)));
    for run in unread {
        let own = age_by_name(folder(&run));
        let is_older = |other: &T| {
            let other = age_by_name(folder(other));
            other.0.is_some() && other < own
        };
        let before = ordered.iter().rposition(is_older);
        ordered.insert(before.map_or(0, |last| last + 1), run);
    }
    ordered
}

/// The time in the name of a run, if it has one, then the order of runs with the same time: the later of
/// two has `-2` behind its name; any other longer name is that of a copy.
fn age_by_name(run: &RunFolder) -> (Option<String>, Reverse<usize>, u64, String) {
    let name = run.name();
    let began = name.get(..STAMP.len()).filter(|_| is_run_name(&name));
    let began = began.map(str::to_owned);
    let rest = name.get(STAMP.len()..).unwrap_or("");
    let again = rest.rsplit_once('-');
    let again = again.and_then(|(stem, again)| Some((stem.len(), again.parse::<u64>().ok()?)));
    let (length, again) = again.unwrap_or((rest.len(), 0));
    (began, Reverse(length), again, name)
}

/// How the name of a run begins: with a time, each digit of which is 0 here.
const STAMP: &[u8] = b"00000000T000000Z-";

/// Whether a name begins like a run's: `20261120T100809Z-`.
pub fn is_run_name(name: &str) -> bool {
    let fits = |(found, wanted): (u8, &u8)| {
        if *wanted == b'0' {
            found.is_ascii_digit()
        } else {
            found == *wanted
        }
    };
    name.len() > STAMP.len() && name.bytes().zip(STAMP).all(fits)
}
