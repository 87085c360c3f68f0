//! The part of a probe on one node: it compares its clock with the file server's, meets the other
//! part, measures how late each sees the other's files, and then both race for the same tickets.

use std::{
    ffi::OsStr,
    io::{self, Read, Write},
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use kiln_core::{
    folder::Folder,
    record::{Check, RunFolder, Ticket, TicketQueue, TicketState},
};
use kiln_data::source::data_folder;
use kiln_hardware::host::{boot_id, node_name};
use serde::{Deserialize, Serialize};

/// Tickets that both parts try to take.
pub(super) const TICKETS: u64 = 200;
/// The other part may wait in Slurm's queue so long, if the job has the time.
pub(super) const PARTNER_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// A client of NFS may show a list that is a minute old.
const ROUND_PATIENCE: Duration = Duration::from_secs(120);
/// File names that go from the first part to the second and back.
const ROUNDS: u32 = 20;
/// With slow rounds there are fewer.
const ROUNDS_TIME: Duration = Duration::from_secs(120);
/// Files whose times are compared with this node's clock; the quickest one says most.
const CLOCK_FILES: u32 = 8;
/// The time of a file may be so much too early: a tick of the kernel, at 100 Hz.
const TICK_SECONDS: f64 = 0.01;
/// Time between two looks into the folder.
const LOOK: Duration = Duration::from_millis(10);
/// From the last round to the race, at least.
const RUN_UP_SECONDS: f64 = 1.0;
/// And at most.
const LONGEST_RUN_UP: Duration = Duration::from_secs(300);
/// The moments of the race are scattered over the error of the clocks, but not over more than this.
const MOST_SCATTER_SECONDS: f64 = 0.1;
/// The first part says when the race begins.
const RACE: &str = "race";
/// How long a part waits for the other one, in seconds: who starts the jobs knows their time.
pub(super) const PATIENCE: &str = "patience";
/// The report of a part at its end.
pub(super) const WORD: &str = "word.json";
/// Longest file of a probe, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The measurements of one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartWord {
    /// The node's name, as Slurm has it.
    pub(super) node: String,
    /// Identifies the boot of its host.
    pub(super) boot: Option<String>,
    pub(super) clock: Clock,
    /// `None` if the other part did not come.
    pub(super) meeting: Option<Meeting>,
    /// `KILN_DATA`, and whether a folder is there.
    pub(super) data: Option<(String, bool)>,
    /// `kiln doctor --quick` on this node.
    pub(super) checks: Vec<Check>,
}

/// The measurements of two parts together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Meeting {
    /// Measured by the first part.
    pub(super) rounds: Option<Rounds>,
    /// Numbers of the tickets that this part has taken.
    pub(super) won: Vec<u64>,
}

/// Rounds of file names between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Rounds {
    pub(super) count: u32,
    /// The longest time from the making of one name to the sight of the answer: two names.
    pub(super) longest_seconds: f64,
}

/// A node's clock beside that of the file server, which times the files of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Clock {
    /// The server's clock less this node's.
    pub(super) server_ahead_seconds: f64,
    /// By how much this may be wrong.
    pub(super) error_seconds: f64,
}

/// The message of a part that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Here {
    pub(super) node: String,
    clock: Clock,
}

/// When the race begins, by the server's clock, and over how much each moment of it is scattered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Race {
    begin: f64,
    scatter_seconds: f64,
}

/// A part on its node.
#[derive(Debug)]
struct Part {
    folder: Folder,
    /// 0 or 1.
    number: u64,
}

/// Takes part in the probe of which `own` is the folder of this part, and writes its word there.
/// `checks` are those of this node.
///
/// # Errors
/// The folder cannot be read or written, or the other part fell silent.
pub fn take_part(own: &Path, checks: Vec<Check>) -> io::Result<()> {
    let invalid = || {
        let problem = format!("{}: this is no part of a probe", own.display());
        io::Error::new(io::ErrorKind::InvalidInput, problem)
    };
    let name = own
        .file_name()
        .and_then(OsStr::to_str)
        .ok_or_else(invalid)?;
    let number = name
        .strip_prefix("part-")
        .and_then(|number| number.parse().ok());
    let number: u64 = number.filter(|number| *number < 2).ok_or_else(invalid)?;
    let probe = own.parent().ok_or_else(invalid)?;
    let part = Part {
        folder: Folder::open(probe)?,
        number,
    };
    let named = std::env::var("SLURMD_NODENAME").ok().or_else(node_name);
    let node = named.unwrap_or_else(|| "a node without a name".to_owned());
    let data = data_folder().map(|path| {
        let is_there = path.is_dir();
        (path.to_string_lossy().into_owned(), is_there)
    });
    let clock = part.compare_clocks()?;
    let word = PartWord {
        boot: boot_id().into_value(),
        meeting: part.meet(
            &Here {
                node: node.clone(),
                clock,
            },
            probe,
        )?,
        node,
        clock,
        data,
        checks,
    };
    let text = serde_json::to_vec(&word)?;
    Folder::open(own)?.write_among_others(WORD.as_ref(), &text)
}

impl Part {
    fn compare_clocks(&self) -> io::Result<Clock> {
        let name = format!("clock-{}", self.number);
        let mut best: Option<Clock> = None;
        for _ in 0..CLOCK_FILES {
            self.folder.remove(name.as_ref())?;
            let before = utc();
            let mut file = self.folder.create(name.as_ref())?;
            file.write_all(b"x")?;
            file.sync_all()?;
            let after = utc();
            let timed = since_1970(file.metadata()?.modified()?);
            let seen = Clock {
                server_ahead_seconds: timed + TICK_SECONDS / 2.0 - f64::midpoint(before, after),
                error_seconds: (after - before + TICK_SECONDS) / 2.0,
            };
            if best.is_none_or(|best| seen.error_seconds < best.error_seconds) {
                best = Some(seen);
            }
        }
        best.ok_or_else(|| io::Error::other("no file was timed"))
    }

    fn meet(&self, own: &Here, probe: &Path) -> io::Result<Option<Meeting>> {
        self.say(&here(self.number), &serde_json::to_string(own)?)?;
        let patience = self.read(PATIENCE)?.and_then(|text| text.parse().ok());
        let patience = patience.map_or(PARTNER_PATIENCE, Duration::from_secs);
        let Some(other) = self.await_name(&here(1 - self.number), patience)? else {
            return Ok(None);
        };
        let other: Here = serde_json::from_str(&other)?;
        let (rounds, race) = match self.number {
            0 => {
                let rounds = self.ask()?;
                let error = own.clock.error_seconds + other.clock.error_seconds;
                let run_up = (2.0 * rounds.longest_seconds).max(RUN_UP_SECONDS);
                let race = Race {
                    begin: utc() + own.clock.server_ahead_seconds + run_up,
                    scatter_seconds: (2.0 * error).min(MOST_SCATTER_SECONDS),
                };
                self.say(RACE, &serde_json::to_string(&race)?)?;
                (Some(rounds), race)
            }
            _ => (None, self.answer()?),
        };
        let won = self.race(probe, race, own.clock)?;
        Ok(Some(Meeting { rounds, won }))
    }

    /// The first part asks.
    fn ask(&self) -> io::Result<Rounds> {
        let began = Instant::now();
        let mut rounds = Rounds {
            count: 0,
            longest_seconds: 0.0,
        };
        while rounds.count < ROUNDS && began.elapsed() < ROUNDS_TIME {
            let asked = Instant::now();
            self.say(&format!("ask-{}", rounds.count), "")?;
            self.heard(&format!("answer-{}", rounds.count))?;
            let seconds = asked.elapsed().as_secs_f64();
            rounds.longest_seconds = rounds.longest_seconds.max(seconds);
            rounds.count += 1;
        }
        Ok(rounds)
    }

    /// The second part answers, until it hears of the race.
    fn answer(&self) -> io::Result<Race> {
        let mut next = 0;
        let until = Instant::now() + ROUNDS_TIME + 2 * ROUND_PATIENCE;
        while Instant::now() < until {
            if let Some(race) = self.read(RACE)? {
                return Ok(serde_json::from_str(&race)?);
            }
            if self.read(&format!("ask-{next}"))?.is_some() {
                self.say(&format!("answer-{next}"), "")?;
                next += 1;
                continue;
            }
            thread::sleep(LOOK);
        }
        Err(self.silent(RACE))
    }

    /// Both try each ticket at about the same moment, now the one and now the other a little
    /// earlier, by the renames that workers make.
    fn race(&self, probe: &Path, race: Race, clock: Clock) -> io::Result<Vec<u64>> {
        let queue = TicketQueue::of(&RunFolder::at(probe))?;
        let queue = queue.ok_or_else(|| io::Error::other("the tickets are gone"))?;
        let begin = race.begin - clock.server_ahead_seconds;
        let mut won = Vec::new();
        for number in 1..=TICKETS {
            let moment = 2.0 * number as f64 + fastrand::f64();
            sleep_until(begin + moment * race.scatter_seconds);
            let state = TicketState::Open;
            let taken = TicketState::Taken(self.number + 1);
            if queue.put(Ticket { number, state }, taken)?.is_some() {
                won.push(number);
            }
        }
        Ok(won)
    }

    fn say(&self, name: &str, text: &str) -> io::Result<()> {
        self.folder
            .write_among_others(name.as_ref(), text.as_bytes())
    }

    fn heard(&self, name: &str) -> io::Result<String> {
        let heard = self.await_name(name, ROUND_PATIENCE)?;
        heard.ok_or_else(|| self.silent(name))
    }

    fn silent(&self, name: &str) -> io::Error {
        io::Error::other(format!(
            "no file `{name}` of the other part was seen within {} s",
            ROUND_PATIENCE.as_secs()
        ))
    }

    fn await_name(&self, name: &str, patience: Duration) -> io::Result<Option<String>> {
        let until = Instant::now() + patience;
        loop {
            let read = self.read(name)?;
            if read.is_some() || Instant::now() >= until {
                return Ok(read);
            }
            thread::sleep(LOOK);
        }
    }

    /// The text of a file that the list of the folder shows, as a worker sees a ticket.
    fn read(&self, name: &str) -> io::Result<Option<String>> {
        if !self.folder.names()?.iter().any(|listed| listed == name) {
            return Ok(None);
        }
        let mut text = String::new();
        let file = self.folder.read(name.as_ref())?;
        file.take(MOST_BYTES).read_to_string(&mut text)?;
        Ok(Some(text))
    }
}

/// The name of the file with which a part says that it is there, and on which node.
pub(super) fn here(part: u64) -> String {
    format!("here-{part}")
}

/// Seconds since 1970 by this node's clock.
fn utc() -> f64 {
    since_1970(SystemTime::now())
}

fn since_1970(moment: SystemTime) -> f64 {
    let since = moment.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn sleep_until(moment: f64) {
    let left = (moment - utc()).clamp(0.0, LONGEST_RUN_UP.as_secs_f64());
    thread::sleep(Duration::from_secs_f64(left));
}

#[cfg(test)]
mod tests {
    use kiln_core::{
        plan::TrialId,
        record::{NewTicket, TicketEntry},
    };

    use super::*;

    #[test]
    fn two_parts_in_one_folder_meet_and_share_the_tickets() {
        let place = tempfile::tempdir().unwrap();
        let ticket = |number: u64| {
            NewTicket::open(vec![TicketEntry {
                trial: TrialId(number.to_string()),
                after: 0,
            }])
        };
        let tickets: Vec<NewTicket> = (1..=TICKETS).map(ticket).collect();
        TicketQueue::create(&RunFolder::at(place.path()), &tickets).unwrap();
        let parts = [0, 1].map(|number| {
            let own = place.path().join(format!("part-{number}"));
            std::fs::create_dir(&own).unwrap();
            own
        });
        let words = parts.map(|own| {
            thread::spawn(move || {
                take_part(&own, Vec::new()).unwrap();
                let text = std::fs::read(own.join(WORD)).unwrap();
                serde_json::from_slice::<PartWord>(&text).unwrap()
            })
        });
        let [first, second] = words.map(|word| word.join().unwrap());
        let (one, other) = (first.meeting.unwrap(), second.meeting.unwrap());
        assert_eq!(one.rounds.map(|rounds| rounds.count), Some(ROUNDS));
        let mut all = [&one.won[..], &other.won[..]].concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=TICKETS));
        // By chance alone one of them takes nothing once in 2^199.
        assert!(!one.won.is_empty() && !other.won.is_empty());
        // The clocks of a disk and its host are one.
        for clock in [first.clock, second.clock] {
            assert!(
                clock.server_ahead_seconds.abs() <= clock.error_seconds,
                "{clock:?}"
            );
        }
        let lost = take_part(&place.path().join("elsewhere"), Vec::new());
        assert!(
            lost.unwrap_err()
                .to_string()
                .contains("this is no part of a probe")
        );
    }
}
